"""Reading from a producer over TCP: a few connections that stay open, one round trip a read."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, ClassVar, Final
from weakref import WeakSet

from ....arena.forks import Forgetful
from ....backend import Blob
from ....errors import CorruptDataError, RoutingError, StoreUnavailableError
from ..card import MAX_NAME
from . import frames
from .base import Source
from .link import Job, Link
from .spans import spans_of, total
from .stream import seconds_left

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....arena.pool import Pool
    from ....backend import Deliver
    from ..place import OwnerInfo
    from .base import Wanted

CONNECTIONS: Final = 4  # of one reader to one producer; they are opened only when threads read at the same time
_PAUSE: Final = 0.0002  # s between looks whether one of them is free: what notifies is not safe from interrupts


class TcpSource(Source, Forgetful):
    """Connections to one producer's TCP server, opened as needed; a forked child opens its own.

    Args:
        info: The producer.
        secret: What producers and readers share; empty: nothing.
        pool: Where payloads are received.
        lives: Whether the producer gives signs of life, or None if nobody can tell; asked while a read waits for it.

    Raises:
        CorruptDataError: the producer's address is none.
    """

    kind: ClassVar[str] = "tcp"

    def __init__(
        self, info: OwnerInfo, secret: str, pool: Pool, lives: Callable[[], bool | None] = lambda: None
    ) -> None:
        self.address = info.tcp
        self._host, self._port = _parse(info.tcp)
        self._who = f"the producer on {info.node} (process {info.pid}, {info.tcp})"
        self._owner = info.owner
        self._secret = secret
        self._pool = pool
        self._lives = lives
        self._lock = threading.Lock()
        self._idle: list[Link] = []
        self._used: WeakSet[_Use] = WeakSet()
        self._closed = False
        self.remember()

    def read(self, wanted: Sequence[Wanted], deadline: float, *, view: bool = False) -> list[Blob | RoutingError]:
        """See ``Source``. A connection that breaks is opened again, once, and the rest is asked for again.

        Raises:
            ConfigError: one side has a secret that the other has not.
            UnsupportedError: the other side speaks another version of the protocol.
        """
        results: list[Blob | RoutingError | None] = []
        jobs = []
        for number, each in enumerate(wanted):
            try:
                jobs.append(_job(each, number))
                results.append(None)
            except CorruptDataError as err:
                results.append(err.with_traceback(None))  # which would keep this list in a cycle
        self._fetch(jobs, deadline, _keep)
        for job in jobs:
            results[job.number] = job.result
        return [each for each in results if each is not None]

    def each(self, wanted: Sequence[Wanted], deadline: float, deliver: Deliver, *, view: bool = False) -> None:
        """See ``Source``: each object is handed over while the next ones are on their way."""

        def arrived(job: Job) -> None:
            result, job.result, job.done = job.result, None, True
            if isinstance(result, Blob):
                deliver(job.number, result)

        self._fetch([_job(one, number) for number, one in enumerate(wanted)], deadline, arrived)

    def _fetch(self, jobs: Sequence[Job], deadline: float, arrived: Callable[[Job], None]) -> None:
        broken = False  # not the error itself, which would keep this frame, and all that was read, in a cycle
        while left := [job for job in jobs if not job.done]:
            try:
                self._try(left, deadline, arrived, fresh=broken)
            except OSError as err:
                if time.monotonic() >= deadline:
                    raise StoreUnavailableError(
                        f"{self._who} does not answer in time",
                        hint="it hangs, or the network to it is broken; option timeout says how long is waited",
                    ) from err
                if broken or isinstance(err, ConnectionRefusedError):
                    raise self._unreachable(err) from err
                broken = True

    def _try(self, jobs: Sequence[Job], deadline: float, arrived: Callable[[Job], None], *, fresh: bool) -> None:
        """Fetches over one connection, which is closed if anything goes wrong.

        Args:
            jobs: What to fetch.
            deadline: When to give up.
            arrived: Told of each that came.
            fresh: Whether a connection that is there is no use: the producer may have been started again.
        """
        use = self._use(deadline, fresh)
        whole = False
        try:
            if use.link is None:
                use.link = Link(self._host, self._port, self._owner, self._secret, self._pool, deadline, self._silent)
            use.link.fetch(jobs, deadline, arrived, fleeting=arrived is not _keep)
            whole = True
        finally:
            with self._lock:
                self._used.discard(use)
                if whole and use.link is not None and not self._closed:
                    self._idle.append(use.link)
                elif use.link is not None:
                    use.link.close()

    def _silent(self) -> None:
        """Ends a read from a producer that is frozen; one that is only slow is waited for."""
        if self._lives() is False:
            raise StoreUnavailableError(
                f"{self._who} gives no sign of life",
                hint="it hangs, or is gone; a retry may find it, or its successor",
            )

    def _unreachable(self, err: OSError) -> StoreUnavailableError:
        if isinstance(err, ConnectionRefusedError):
            return StoreUnavailableError(f"{self._who} does not listen", hint="it is gone, or is being started again")
        return StoreUnavailableError(f"{self._who} cannot be reached: {err.strerror or err}")

    # --- connections --------------------------------------------------------------------------------------------

    def _use(self, deadline: float, fresh: bool) -> _Use:
        """Returns a connection that nobody uses, or the right to open one."""
        while True:
            with self._lock:
                while fresh and self._idle:
                    self._idle.pop().close()
                if self._closed:
                    raise StoreUnavailableError("this way to the producer was closed meanwhile")
                if self._idle or len(self._used) < CONNECTIONS:
                    use = _Use(self._idle.pop() if self._idle else None)
                    self._used.add(use)
                    return use
            seconds_left(deadline)
            time.sleep(_PAUSE)

    def close(self) -> None:
        """See ``Source``. Reads that go on end first."""
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().close()

    def forget(self) -> None:
        """In a forked child: the connections are its parent's."""
        self._lock = threading.Lock()
        for link in [*self._idle, *[use.link for use in self._used]]:
            if link is not None:
                link.close()
        self._idle = []
        self._used = WeakSet()


class _Use:
    """A connection in use, or the right to open one; what an interrupt lets fall is not counted any more."""

    __slots__ = ("__weakref__", "link")

    def __init__(self, link: Link | None) -> None:
        self.link = link


def _keep(job: Job) -> None:
    job.done = True


def _job(wanted: Wanted, number: int) -> Job:
    """Returns what to ask for.

    Raises:
        CorruptDataError: nothing can have that place.
    """
    place = wanted.place
    spans = spans_of(wanted)
    if (
        place.header_bytes > frames.MAX_HEADER
        or len(spans) > frames.MAX_RANGES
        or not 0 < len(wanted.name) <= MAX_NAME
        or not wanted.name.isascii()
    ):
        raise CorruptDataError(f"{wanted.name!r:.400} cannot be asked for", name=wanted.name)
    asked = None if wanted.ranges is None else spans
    request = frames.encode_request(number, wanted.name, place.card, place.generation, asked)
    nbytes, into = total(spans), wanted.into
    if into is not None and into.nbytes != nbytes:
        into = None
    return Job(wanted, spans, nbytes, place.header_bytes, into, number, request)


def _parse(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise CorruptDataError(f"{address!r:.100} is no address of a producer")
    return host, int(port)
