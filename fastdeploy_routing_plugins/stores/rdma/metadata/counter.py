"""Where questions come in and answers go out: checks frames and greetings, and lets early questions wait."""

from __future__ import annotations

import os
import time
from collections import Counter as Count
from typing import TYPE_CHECKING, Any, Final

import zmq

from ....errors import CorruptDataError, InvalidKeyError
from ....keys import decode_component
from . import messages as m
from .asked import Asked, RefusalError
from .flood import Flood, memory
from .framing import VERSION, Flag, VersionError, decode_question, encode_answer, split_question
from .post import Post
from .sessions import Sessions

if TYPE_CHECKING:
    from .asked import Identity
    from .changes import Stream
    from .desk import Desk
    from .limits import Limits
    from .page import Page
    from .security import Security
    from .unix_server import UnixServer

_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
_PATIENT: Final = int(Flag.PATIENT)
_IN_DOUBT: Final = int(Flag.SETTLING)
_AT_ONCE: Final = 200  # messages read before everything else has its turn
_PATIENCE: Final = 3600.0  # s that a question may wait
_CHANGING: Final = (m.Publish, m.Delete, m.DeletePrefix)
_SHED: Final = 100_000  # questions thrown away at once
_LONGEST: Final = 3  # times as long as usual the service settles if producers of its predecessor have not come back
_HERE: Final = 1.0  # s between words to followers


class Counter:
    """Carries questions to the desk and answers back.

    Args:
        coord: The socket of questions.
        desk: Answers them.
        stream: Is told of changes.
        page: The page of counters.
        limits: What is allowed.
        security: The secret.
        epoch: The service's.
        unix: The unix socket, if there is one.
    """

    def __init__(
        self,
        coord: zmq.Socket[bytes],
        desk: Desk,
        stream: Stream,
        page: Page,
        limits: Limits,
        security: Security,
        epoch: int,
        unix: UnixServer | None,
    ) -> None:
        self.sync_port = 0
        self._coord = coord
        self._unix = unix
        self._desk = desk
        self._stream = stream
        self._page = page
        self._limits = limits
        self._epoch = epoch
        bound = security.bound and bool(security.secret or security.keys)
        self._sessions = Sessions(limits.connections, security.secret, bound)
        self._parked: dict[tuple[bytes, int], tuple[Asked, Any]] = {}
        self._early_bytes = 0  # of questions that wait; none of them goes before the service has settled
        self._started = time.monotonic()
        self._settling = True
        self._doubtful = page.inherited or limits.strict
        self._refused: Count[str] = Count()
        self._asked: Count[str] = Count()
        self._rate = (self._started, 0, 0.0)
        self._turned_away = 0
        self._said = self._started
        self._flood = Flood(limits.unread)
        self._post = Post(coord, unix, self._refused, self._sessions.forget)

    @property
    def stale(self) -> bool:
        """See ``Post``."""
        return self._post.stale

    # --- frames -------------------------------------------------------------------------------------------------

    def read(self) -> bool:
        """Answers what came by ZeroMQ; returns whether there may be more."""
        self._post.stale = False
        if self._flood.rises:
            return self._shed()
        recv, coord = self._coord.recv, self._coord
        for _ in range(_AT_ONCE):
            if not int(coord.getsockopt(_EVENTS)) & _POLLIN:  # an exception costs as much as an answer
                self._flood.drained()
                return False
            identity = recv(zmq.NOBLOCK)
            raw, frames = b"", 0
            while coord.getsockopt(zmq.RCVMORE):
                raw = recv(zmq.NOBLOCK)
                frames += 1
            if frames == 1:
                self._take(identity, raw)
            else:
                self._refused["frames"] += 1
        return True

    def attend(self, fd: int, event: int) -> bool:
        """Answers what came by the unix socket; returns False if the descriptor is none of its."""
        return self._unix is not None and self._unix.attend(fd, event, self._take, self._sessions.forget)

    def _shed(self) -> bool:
        """Throws away what came, as nobody can answer so much; who waits for an answer asks again."""
        for _ in range(_SHED):
            try:
                self._coord.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            while self._coord.getsockopt(zmq.RCVMORE):
                self._coord.recv(zmq.NOBLOCK)
            self._refused["flood"] += 1
        self._flood.over()
        return True

    def _take(self, identity: Identity, raw: bytes) -> None:
        now = time.monotonic()
        try:
            flags, number, patience = split_question(raw)
        except VersionError:
            self._refused["version"] += 1
            number = int.from_bytes(raw[2:10], "little")
            self._send(identity, m.Refused(int(m.Refusal.VERSION), f"this service speaks version {VERSION}"), number)
            return
        except CorruptDataError:
            self._refused["short"] += 1
            return
        try:
            body = decode_question(raw)
        except CorruptDataError as err:
            self._refused["malformed"] += 1
            self._send(identity, m.Refused(int(m.Refusal.MALFORMED), err.message[:200]), number)
            return
        self._asked[type(body).__name__] += 1
        session = self._sessions.get(identity)
        if session is None or type(body) is m.Hello:
            self._greet(identity, number, body)
            return
        if number == session.memory.id and session.memory.answer and isinstance(body, _CHANGING):
            self._post.put(identity, session.memory.answer)
            return
        asked = Asked(identity, session, number, now + min(patience / 1000, _PATIENCE))
        if self._settling and (flags & _PATIENT or self._doubtful) and self._early(body):
            self._park(asked, body, len(raw))
            return
        self._work(asked, body, now)

    def _park(self, asked: Asked, body: Any, nbytes: int) -> None:
        """Lets a question wait until the service has settled; one that is asked again takes the place of itself."""
        key = asked.session.token, asked.id
        if key not in self._parked:
            if self._early_bytes + nbytes > self._limits.early:
                self._send(asked.identity, m.Refused(int(m.Refusal.LATE), "too many questions wait"), asked.id)
                return
            self._early_bytes += nbytes
        self._parked[key] = asked, body

    def _greet(self, identity: Identity, number: int, body: Any) -> None:
        if type(body) is not m.Hello:
            self._send(identity, m.Refused(int(m.Refusal.GREET), "say hello first"), number)
            return
        if not _is_namespace(body.namespace):
            self._refused["namespace"] += 1
            self._send(identity, m.Refused(int(m.Refusal.NAMESPACE), "no namespace is called so"), number)
            return
        verdict = self._sessions.examine(identity, body.namespace, body.proof)
        if verdict is False:
            self._refused["secret"] += 1
            self._send(identity, m.Refused(int(m.Refusal.SECRET), "wrong secret"), number)
            return
        if isinstance(verdict, bytes):
            self._send(identity, m.Prove(verdict), number)
            return
        self._sessions.greet(identity, body.namespace, body.token)
        topic = self._stream.start_of(body.namespace)
        page = self._page
        unix = "" if self._unix is None else self._unix.name
        welcome = m.Welcome(page.path, page.key, topic, self.sync_port, self._limits.lease, unix)
        self._send(identity, welcome, number)

    # --- work ---------------------------------------------------------------------------------------------------

    def _work(self, asked: Asked, body: Any, now: float) -> None:
        desk = self._desk
        if type(body) is m.AskStatus:
            self._send(asked.identity, m.StatusIs(self.figures()), asked.id)
            return
        try:
            answer = desk.works[type(body)](body, asked, now)
        except RefusalError as err:
            answer = err.body
            self._refused[m.Refusal(answer.code).name.lower()] += 1
        if desk.told or desk.turned or desk.waiters.touched or desk.changes:
            self._tell(now)
        if answer is None:
            return
        raw = encode_answer(answer, asked.id, self._epoch, self._flags())
        if isinstance(body, _CHANGING) and type(answer) is not m.Refused:
            asked.session.did(asked.id, raw)
        self._post.put(asked.identity, raw)

    def _tell(self, now: float) -> None:
        """Tells everybody whom a change concerns."""
        desk = self._desk
        for waiter in desk.waiters.take_touched():
            self._send(waiter.identity, desk.after_wait(waiter), waiter.id)
        for owner in desk.turned:
            self._stream.owner_died(owner)
        desk.turned.clear()
        for owner in {id(owner): owner for owner in desk.told}.values():
            dropped = owner.untold(now)
            if dropped is not None:
                self._send(owner.identity, dropped, 0)
        desk.told.clear()
        self._stream.tell()

    def _flags(self) -> int:
        return _IN_DOUBT if self._settling else 0

    def _send(self, identity: Identity, body: Any, number: int) -> None:
        self._post.put(identity, encode_answer(body, number, self._epoch, self._flags()))

    # --- time ---------------------------------------------------------------------------------------------------

    def _early(self, body: Any) -> bool:
        """Whether a question of somebody who knew this service before its start had better wait a moment."""
        desk = self._desk
        if isinstance(body, m.AskEntries):
            return any(desk.index.holder(name) is None for name in body.names)
        if isinstance(body, m.AskOwner):
            return body.owner not in desk.index.owners
        return isinstance(body, (m.AskListings, m.AskChange, m.Delete, m.DeletePrefix)) or (
            isinstance(body, m.Publish) and not body.again
        )

    def _settled(self, now: float) -> bool:
        age, desk = now - self._started, self._desk
        if age < self._limits.settle:
            return False
        if age >= self._limits.lease:
            return True
        if desk.back < self._page.expected and age < _LONGEST * self._limits.settle:
            return False
        return all(owner.listed or owner.dead for owner in desk.index.owners.values())

    def expire(self, now: float) -> None:
        """Answers those who waited for a change to no avail."""
        for waiter in self._desk.waiters.take_expired(now):
            self._send(waiter.identity, m.Unchanged(), waiter.id)

    def look(self, now: float, away: float, turned_away: int) -> None:
        """Does what time brings.

        Args:
            now: The time.
            away: Seconds for which nobody looked, if that was long.
            turned_away: Connections that were refused for their keys so far.
        """
        desk = self._desk
        self._page.beat()
        self._turned_away = turned_away
        desk.judge(now, away)
        self._flood.look()
        if self._unix is not None:
            self._unix.try_again()
        if not self._settling or desk.living > self._page.expected:
            self._page.expect(desk.living)
        if self._settling and self._settled(now):
            self._settling = False
            self._page.settle()
            parked, self._parked = self._parked, {}
            for asked, body in parked.values():
                self._work(asked, body, now)
        for key, (asked, _) in list(self._parked.items()):
            if asked.deadline <= now:
                del self._parked[key]
                self._send(asked.identity, m.Refused(int(m.Refusal.LATE), "producers are still awaited"), asked.id)
        self._tell(now)
        since, before, _ = self._rate
        if now - since >= 1.0:
            total = sum(self._asked.values())
            self._rate = (now, total, (total - before) / (now - since))
        if now - self._said >= _HERE:
            self._said = now
            self._stream.say_where()

    def figures(self) -> dict[str, Any]:
        """Returns the service's figures."""
        return {
            "version": VERSION,
            "epoch": self._epoch,
            "pid": os.getpid(),
            "time": time.time(),
            "uptime": round(time.monotonic() - self._started, 3),
            "settling": self._settling,
            "connections": len(self._sessions),
            "unix": 0 if self._unix is None else len(self._unix),
            "followed": len(self._stream),
            "asked": dict(self._asked),
            "asked_per_second": round(self._rate[2], 1),
            "refused": {**self._refused, **({"keys": self._turned_away} if self._turned_away else {})},
            "memory": memory(),
            **self._desk.figures(),
        }

    def close(self) -> None:
        """Closes the socket."""
        self._coord.close(0)


def _is_namespace(text: str) -> bool:
    try:
        return decode_component(text) is not None
    except InvalidKeyError:
        return False
