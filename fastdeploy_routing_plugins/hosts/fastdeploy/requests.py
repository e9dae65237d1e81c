"""From a request's id to the rollout that it belongs to, and when the request arrived.

FastDeploy's API server composes ids as ``chatcmpl-<user>-<uuid4>_<choice>`` (``cmpl-`` for completions), as
``chatcmpl-<request id>_<choice>`` if the client gives an id of its own, or as ``chatcmpl-<uuid4>_<choice>``. The
rollout id is what the client gave as ``user`` or as request id, else the uuid. Ids of any other form are rollout ids
as they are.

A client's own id may end in a uuid as well. What the client gave as ``user`` tells the two apart; FastDeploy drops
that where its server's dictionary becomes a ``Request``, so ``patch_request`` keeps it.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import sys
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from types import ModuleType

_REQUEST = re.compile(r"(?:chatcmpl|cmpl)-(.+)_(0|[1-9][0-9]{0,5})", re.DOTALL | re.ASCII)
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
_WITH_UUID = re.compile(rf"(.+)-{_UUID}", re.DOTALL | re.ASCII)
_KEPT = 1 << 14
_KEPT_BYTES = 8 << 20
_LONGEST = 1 << 15  # bytes of an id; no store takes longer ones
_SKEW = 86_400.0  # s that another machine's clock may be ahead
_USER = "routing_user"  # the attribute of a request that holds the client's user, "" if it gave none
_FROM_REQUEST = "prefill_start_index"  # a key that the server does not send, and another engine's request does


class HostId(str):
    """A rollout id on its way through FastDeploy's code, which takes it for a text.

    Attributes:
        choice: Which of the request's choices.
        attempt: When the request arrived, in ns since the epoch; 0 if nobody knows.
    """

    choice: int
    attempt: int

    def __new__(cls, text: str, choice: int = 0, attempt: int = 0) -> HostId:
        """Makes one of its parts."""
        made = super().__new__(cls, text)
        made.choice = choice
        made.attempt = attempt
        return made


def split(request_id: str, user: str | None = None) -> tuple[str, int]:
    """Returns the rollout id and the choice of a request; never fails, evaluates and guesses nothing.

    Args:
        request_id: FastDeploy's id.
        user: What the client gave as such, empty if nothing; None if nobody knows, then a uuid at the end is always
            taken for FastDeploy's.
    """
    match = _REQUEST.fullmatch(request_id)
    if match is None:
        return request_id, 0
    inner = _WITH_UUID.fullmatch(match[1])
    appended = inner is not None and user in (None, inner[1])
    return (inner[1] if inner is not None and appended else match[1]), int(match[2])


def identify(request_id: str) -> HostId:
    """Returns a finished request's rollout id; from then on its arrival is forgotten."""
    noted = ARRIVALS.take(request_id)
    rollout_id, choice = split(str(request_id), "" if noted.whole else None)
    return HostId(rollout_id, choice, noted.time)


class Arrival(NamedTuple):
    """What is noted of a request.

    Attributes:
        time: When it arrived, in ns since the epoch.
        whole: Whether a uuid at the end of its id is the client's own.
    """

    time: int
    whole: bool = False


class Arrivals:
    """When requests arrived, until they finish. The oldest are forgotten when there are very many, or very long."""

    def __init__(self, kept: int = _KEPT, kept_bytes: int = _KEPT_BYTES) -> None:
        self._kept = kept
        self._kept_bytes = kept_bytes
        self.forget()

    def forget(self) -> None:
        """Forgets all. A forked child begins with that: the lock that it inherits may be held for ever."""
        self._noted: OrderedDict[str, Arrival] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def note(self, request_id: str, seconds: float | None = None, user: str | None = None) -> None:
        """Notes when a request arrived, in seconds since the epoch; of several times the latest counts.

        Without a time, or with an impossible one, that is now, unless one was noted before. What the client gave as
        ``user`` (see ``split``) counts until another is given.
        """
        now, name = time.time_ns(), str(request_id)
        size = sys.getsizeof(name)
        if size > _LONGEST:
            return
        whole = None if user is None else split(name, user) != split(name)
        with self._lock:
            known = self._noted.get(name)
            self._bytes += 0 if known else size
            arrived, was_whole = known or Arrival(0)
            if seconds is not None and math.isfinite(seconds) and 0 < seconds <= now / 1e9 + _SKEW:
                arrived = max(arrived, round(seconds * 1e9))
            self._noted[name] = Arrival(arrived or now, was_whole if whole is None else whole)
            while len(self._noted) > self._kept or self._bytes > self._kept_bytes:
                self._bytes -= sys.getsizeof(self._noted.popitem(last=False)[0])

    def take(self, request_id: str) -> Arrival:
        """Returns what is noted of a request, and forgets it; that it arrived now, if nothing was ever noted."""
        name = str(request_id)
        with self._lock:
            noted = self._noted.pop(name, None)
            if noted is None:
                return Arrival(time.time_ns())
            self._bytes -= sys.getsizeof(name)
            return noted

    def __len__(self) -> int:
        """Returns of how many requests something is noted."""
        return len(self._noted)


ARRIVALS = Arrivals()
"""Those of this process."""
os.register_at_fork(after_in_child=ARRIVALS.forget)


def note_arrival(request: object, request_id: str) -> None:
    """Notes what a request says of its arrival; nothing if it says nothing."""
    seconds, user = arrival_of(request), user_of(request)
    if seconds is not None or user is not None:
        ARRIVALS.note(request_id, seconds, user)


def arrival_of(request: object) -> float | None:
    """Returns when a request arrived, in seconds since the epoch, wherever this FastDeploy keeps that; else None."""
    for owner in (getattr(request, "metrics", None), request):
        seconds = getattr(owner, "arrival_time", None)
        if isinstance(seconds, (int, float)):
            return float(seconds)
    return None


def user_of(request: object) -> str | None:
    """Returns what the client gave as ``user``, empty if nothing; None if this FastDeploy does not tell."""
    for name in (_USER, "user"):  # FastDeploy's own is None for all that came from its server
        user = getattr(request, name, None)
        if isinstance(user, str):
            return user
    return None


def patch_request(module: ModuleType) -> None:
    """Patches ``Request``, as a module has it: it keeps the client's ``user``, also on its way to other processes."""
    request: Any = getattr(module, "Request", None)
    parts = vars(request) if isinstance(request, type) else {}
    made_from, to_dict = parts.get("from_dict"), parts.get("to_dict")
    if not isinstance(made_from, classmethod) or not callable(to_dict):
        return  # nothing tells the user then
    original: Any = made_from.__func__

    @functools.wraps(original)
    def from_dict(cls: Any, d: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(cls, d, *args, **kwargs)
        user = d.get("user")
        if not isinstance(user, str):
            user = None if _FROM_REQUEST in d else ""  # an engine without this package loses it
        with contextlib.suppress(AttributeError):
            setattr(made, _USER, user)
        return made

    @functools.wraps(to_dict)
    def with_user(self: Any, *args: Any, **kwargs: Any) -> Any:
        said = to_dict(self, *args, **kwargs)
        user = user_of(self)
        return said if user is None else {**said, "user": user}

    request.from_dict = classmethod(from_dict)
    request.to_dict = with_user
