"""From a request's id to the rollout that it belongs to, and when the request arrived.

FastDeploy's API server composes ids as ``chatcmpl-<user>-<uuid4>_<choice>`` (``cmpl-`` for completions), as
``chatcmpl-<request id>_<choice>`` if the client gives an id of its own, or as ``chatcmpl-<uuid4>_<choice>``. The
rollout id is what the client gave as ``user`` or as request id, else the uuid. Ids of any other form are rollout ids
as they are.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import OrderedDict

_REQUEST = re.compile(r"(?:chatcmpl|cmpl)-(.+)_(0|[1-9][0-9]{0,5})", re.DOTALL | re.ASCII)
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
_WITH_UUID = re.compile(rf"(.+)-{_UUID}", re.DOTALL | re.ASCII)
_KEPT = 1 << 16
_SKEW = 86_400.0  # s that another machine's clock may be ahead


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


def split(request_id: str) -> tuple[str, int]:
    """Returns the rollout id and the choice of a request; never fails, evaluates and guesses nothing."""
    match = _REQUEST.fullmatch(request_id)
    if match is None:
        return request_id, 0
    inner = _WITH_UUID.fullmatch(match[1])
    return (match[1] if inner is None else inner[1]), int(match[2])


def identify(request_id: str) -> HostId:
    """Returns a finished request's rollout id; from then on its arrival is forgotten."""
    rollout_id, choice = split(str(request_id))
    return HostId(rollout_id, choice, ARRIVALS.take(request_id))


class Arrivals:
    """When requests arrived, until they finish. The oldest are forgotten when there are very many."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._times: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, request_id: str, seconds: float | None = None) -> None:
        """Notes when a request arrived, in seconds since the epoch; of several times the latest counts.

        Without a time, or with an impossible one, that is now, unless one was noted before.
        """
        now, name = time.time_ns(), str(request_id)
        with self._lock:
            known = self._times.get(name, 0)
            if seconds is not None and math.isfinite(seconds) and 0 < seconds <= now / 1e9 + _SKEW:
                self._times[name] = max(known, round(seconds * 1e9))
            elif not known:
                self._times[name] = now
            while len(self._times) > self._kept:
                self._times.popitem(last=False)

    def take(self, request_id: str) -> int:
        """Returns when a request arrived, in ns, and forgets it; now, if that was never noted."""
        with self._lock:
            return self._times.pop(str(request_id), None) or time.time_ns()


ARRIVALS = Arrivals()
"""Those of this process."""


def arrival_of(request: object) -> float | None:
    """Returns when a request arrived, in seconds since the epoch, wherever this FastDeploy keeps that; else None."""
    for owner in (getattr(request, "metrics", None), request):
        seconds = getattr(owner, "arrival_time", None)
        if isinstance(seconds, (int, float)):
            return float(seconds)
    return None
