"""One connection of a reader to a producer's TCP server; ``frames`` says what is spoken.

Replies are received straight into recycled memory, see ``stream``.

Nothing on a connection tells a producer that is frozen from one that is slow, so while nothing comes the reader asks
elsewhere, see ``silent``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from ....backend import Blob
from ....errors import (
    AbsentError,
    CorruptDataError,
    RoutingError,
    SupersededError,
)
from . import frames
from .frames import ReplyHead, Status
from .greeting import shake_hands
from .refusals import MAX_ERROR, decode_error
from .spans import cut
from .stream import FEW, Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....arena.pool import Pool
    from .base import Wanted

_WINDOW: Final = 16 << 10  # bytes of requests without a reply; both kernels have room for them, so nobody waits
_MOST: Final = 64  # small replies that are received together
_TOGETHER: Final = 512 << 10  # bytes of small replies that are received together; they stay in the processor's cache
_NOTHING: Final = memoryview(b"")


def _wait_on() -> None:
    """Knows nothing of the producer."""


class Job(msgspec.Struct, gc=False):
    """An object to fetch.

    Attributes:
        wanted: What is wanted.
        spans: The same as spans, one for each piece of the answer.
        nbytes: Their bytes.
        header_bytes: Bytes of the object's header.
        into: Where they are received; None: in memory of the reader's own.
        number: The request's number.
        request: The request's bytes.
        result: What came.
        done: Whether the result was handed over already.
    """

    wanted: Wanted
    spans: tuple[tuple[int, int], ...]
    nbytes: int
    header_bytes: int
    into: memoryview | None
    number: int
    request: bytes
    result: Blob | RoutingError | None = None
    done: bool = False


class Link:
    """An open connection. Only one thread uses it at a time; after any error it must be closed.

    Args:
        host: The producer's address.
        port: The producer's port.
        owner: The producer's id.
        secret: What both know; empty: nothing.
        pool: Where payloads are received.
        deadline: When to give up, in ``time.monotonic()``.
        silent: Called while the producer is silent; raises if that is no use any more.

    Raises:
        TimeoutError: the deadline passed.
        OSError: nobody listens, or the connection broke.
        StoreUnavailableError: somebody else listens there, or the producer has too many readers.
        ConfigError: one side has a secret that the other has not.
        UnsupportedError: the other side speaks another version.
    """

    def __init__(
        self,
        host: str,
        port: int,
        owner: str,
        secret: str,
        pool: Pool,
        deadline: float,
        silent: Callable[[], None] = _wait_on,
    ) -> None:
        self._pool = pool
        self._where = f"{host}:{port}"
        self._head = memoryview(bytearray(frames.REPLY_BYTES))
        self._stream = Stream(host, port, deadline, silent)
        try:
            shake_hands(self._stream, self._where, owner, secret, deadline)
        except BaseException:
            self._stream.close()
            raise

    def close(self) -> None:
        """Closes the connection."""
        self._stream.close()

    # --- fetching -----------------------------------------------------------------------------------------------

    def fetch(
        self,
        jobs: Sequence[Job],
        deadline: float,
        arrived: Callable[[Job], None] = lambda job: None,
        *,
        fleeting: bool = False,
    ) -> None:
        """Fetches objects; each job has its result as soon as it is there.

        Args:
            jobs: What to fetch.
            deadline: When to give up.
            arrived: Told of each job as soon as it has its result, while others are still on their way.
            fleeting: Whether results are let go of one by one: small ones then share memory that is used again.

        Raises:
            TimeoutError: the deadline passed.
            OSError: the connection broke.
            StoreUnavailableError: the producer cannot serve now.
            CorruptDataError: what came is not what was asked for.
        """
        at = sent = waiting = 0
        count = len(jobs)
        most = _MOST  # small replies that are received together; what is no object moves all that follow it
        ahead = False  # whether the next reply's head is there
        while at < count:
            batch: list[bytes] = []
            if waiting <= _WINDOW // 2:
                while sent < count:
                    request = jobs[sent].request
                    if waiting and waiting + len(request) > _WINDOW:
                        break
                    batch.append(request)
                    waiting += len(request)
                    sent += 1
            if batch:
                self._stream.send(b"".join(batch), deadline)
            before, job = at, jobs[at]
            if job.nbytes < FEW:
                some = _small(jobs[at : min(sent, at + most)])
                came, good = self._take_some(some, deadline, arrived, fleeting=fleeting)
                at += came
                most = min(2 * most, _MOST) if good else 1
            else:
                if not ahead:
                    self._stream.fill([self._head], deadline)
                at += 1
                ahead = at < sent and jobs[at].nbytes >= FEW
                self._take(job, [self._head] if ahead else [], deadline)
                arrived(job)
            waiting -= sum([len(job.request) for job in jobs[before:at]])
        if self._stream.unread_bytes:
            raise CorruptDataError(f"the producer at {self._where} sends more than was asked for")

    def _take(self, job: Job, after: list[memoryview], deadline: float) -> None:
        """Receives what follows a reply's head, and what comes after the reply."""
        reply = self._reply(job, self._head)
        if reply.status == Status.ERROR:
            raw = bytearray(reply.header_bytes)
            self._stream.fill([memoryview(raw), *after], deadline)
            job.result = _absence(raw, job)
        else:
            header, memory = bytearray(reply.header_bytes), self._memory(job)
            self._stream.fill([memoryview(header), memory, *after], deadline)
            job.result = Blob(bytes(header), cut(memory, job.spans))

    def _take_some(
        self, jobs: Sequence[Job], deadline: float, arrived: Callable[[Job], None], *, fleeting: bool
    ) -> tuple[int, bool]:
        """Receives small replies: as if all were objects, so that one call is often enough for several.

        Args:
            jobs: Whose replies come next.
            deadline: When to give up.
            arrived: See ``fetch``.
            fleeting: See ``fetch``.

        Returns:
            How many came, and whether all are objects; one that is none ends it, since it moves all that follow.
        """
        pieces = self._pieces(jobs, shared=fleeting)
        missing = list(pieces)
        came = begin = 0
        for index, job in enumerate(jobs):
            head, payload = pieces[2 * index], pieces[2 * index + 1]
            if came < begin + frames.REPLY_BYTES:
                came += self._stream.fill(missing, deadline, begin + frames.REPLY_BYTES - came)
            if not frames.begins_object(head, job.number, job.header_bytes, job.nbytes):
                reply = self._reply(job, head[: frames.REPLY_BYTES])
                if reply.status == Status.ERROR:
                    after = b"".join([head[frames.REPLY_BYTES :], *pieces[2 * index + 1 :]])
                    self._stream.unread(after[: came - begin - frames.REPLY_BYTES])
                    job.result = _absence(self._stream.exactly(reply.header_bytes, deadline), job)
                    arrived(job)
                    return index + 1, False
            begin += frames.REPLY_BYTES + job.header_bytes + job.nbytes
            if came < begin:
                came += self._stream.fill(missing, deadline, begin - came)
            job.result = Blob(bytes(head[frames.REPLY_BYTES :]), cut(payload, job.spans))
            arrived(job)
        return len(jobs), True

    def _pieces(self, jobs: Sequence[Job], *, shared: bool) -> list[memoryview]:
        """Returns where the replies to small jobs go: by turns head and header, and payload."""
        heads = memoryview(bytearray(sum([frames.REPLY_BYTES + job.header_bytes for job in jobs])))
        own = sum([job.nbytes for job in jobs if job.into is None])
        memory = self._pool.take(own) if shared and own else None
        pieces: list[memoryview] = []
        at = used = 0
        for job in jobs:
            end, nbytes = at + frames.REPLY_BYTES + job.header_bytes, job.nbytes
            if memory is None or job.into is not None:
                payload = self._memory(job)
            else:
                payload = memory[used : used + nbytes]
                used += nbytes
            pieces += heads[at:end], payload
            at = end
        return pieces

    def _memory(self, job: Job) -> memoryview:
        if job.into is not None:
            return job.into
        return self._pool.take(job.nbytes) if job.nbytes else _NOTHING

    def _reply(self, job: Job, head: memoryview) -> ReplyHead:
        """Returns the head of the reply to a job if it is one that may come."""
        reply = frames.decode_reply(head)
        if reply.number != job.number:
            raise CorruptDataError(f"the producer at {self._where} answers something else than was asked")
        if reply.status == Status.ERROR:
            sound = reply.header_bytes <= MAX_ERROR and reply.payload_bytes == 0
        else:
            expected = Status.OBJECT, job.wanted.place.header_bytes, job.nbytes
            sound = (reply.status, reply.header_bytes, reply.payload_bytes) == expected
        if not sound:
            raise CorruptDataError(
                f"the producer at {self._where} sends {reply.payload_bytes} bytes of {job.wanted.name} instead of "
                f"{job.nbytes}",
                name=job.wanted.name,
            )
        return reply


def _small(jobs: Sequence[Job]) -> Sequence[Job]:
    """Returns the first of some jobs that are small, and not too large together."""
    size = count = 0
    for job in jobs:
        size += job.nbytes
        if count and (job.nbytes >= FEW or size > _TOGETHER):
            break
        count += 1
    return jobs[:count]


def _absence(raw: bytes | bytearray, job: Job) -> RoutingError:
    """Returns why an object is not there.

    Raises:
        StoreUnavailableError: the producer cannot serve now.
        CorruptDataError: the bytes are no error.
    """
    err = decode_error(raw)
    if not isinstance(err, (AbsentError, SupersededError)):
        raise err
    return err.with_facts(name=job.wanted.name)
