"""Which transport a reader takes to each producer."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, NoReturn

from ....arena.forks import Forgetful
from ....arena.pool import Pool
from ....errors import ArenaError, RoutingError, StoreClosedError, StoreUnavailableError, UnsupportedError
from .shm import ShmSource
from .tcp import TcpSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..config import RdmaConfig
    from ..place import OwnerInfo
    from .base import Source
    from .rdma import RdmaEndpoint

_TIDY: Final = 5.0  # s between looks at what producers removed


class Sources(Forgetful):
    """The ways from this process to producers, one for each. Methods may be called from several threads.

    Args:
        config: The store's configuration; a transport that it names is never replaced.
        host: This running system, as ``OwnerInfo.host``.
        endpoint: Mooncake in this process; None without.
        lives: Whether a producer, by its id, gives signs of life, or None if that is not known; asked before first
            contact by RDMA, and while a read by TCP waits for it. Without, whoever is asked for counts as alive.
    """

    def __init__(
        self,
        config: RdmaConfig,
        host: str,
        endpoint: RdmaEndpoint | None = None,
        *,
        lives: Callable[[str], bool | None] | None = None,
    ) -> None:
        self._config = config
        self._host = host
        self._endpoint = endpoint
        self._lives = lives or (lambda owner: True)
        self._pool = Pool()
        self._lock = threading.Lock()
        self._known: dict[str, tuple[OwnerInfo, Source]] = {}
        self._tidied = time.monotonic()
        self._closed = False
        self.remember()

    def get(self, info: OwnerInfo) -> Source:
        """Returns the way to a producer.

        Raises:
            UnsupportedError: the transport that is asked for does not lead there, or none does; says why.
            StoreUnavailableError: it should, but the producer's memory is gone; a retry may succeed.
        """
        known = self._known.get(info.owner)
        if known is not None and known[0].revision >= info.revision and time.monotonic() < self._tidied + _TIDY:
            return known[1]
        with self._lock:
            if self._closed:
                raise StoreClosedError("the store is closed")
            self._tidy()
            known = self._known.get(info.owner)
            if known is None or known[0].revision < info.revision:
                other = None if known is None else known[1]
                known = self._known[info.owner] = info, self._choose(info, other)
                if other is not None and other.kind != known[1].kind:
                    other.close()
            return known[1]

    def kinds(self) -> dict[str, int]:
        """Returns how many producers are read from by which transport."""
        return dict(Counter(source.kind for _, source in list(self._known.values())))

    def drop(self, owner: str) -> None:
        """Lets go of a producer that is gone."""
        with self._lock:
            known = self._known.pop(owner, None)
        if known is not None:
            known[1].close()

    def _tidy(self) -> None:
        """Lets go of producers that removed their arenas, whose memory is free only then. With the lock held."""
        self._tidied = time.monotonic()
        for owner, (_, source) in list(self._known.items()):
            if isinstance(source, ShmSource) and source.removed:
                del self._known[owner]
                source.close()

    def close(self) -> None:
        """Closes all ways; what was handed out stays valid."""
        with self._lock:
            self._closed = True
            known, self._known = self._known, {}
        for _, source in known.values():
            source.close()
        self._pool.close()

    def forget(self) -> None:
        """In a forked child: a thread that is not here may hold the lock."""
        self._lock = threading.Lock()

    # --- choosing -----------------------------------------------------------------------------------------------

    def _choose(self, info: OwnerInfo, other: Source | None) -> Source:
        wanted = self._config.transport
        ways = {"shm": self._shm, "rdma": self._rdma, "tcp": self._tcp}
        if wanted != "auto":
            way = ways[wanted](info, other)
            return _refuse(wanted, info, way) if isinstance(way, RoutingError) else way
        reasons = []
        for kind, choose in ways.items():
            way = choose(info, other)
            if not isinstance(way, RoutingError):
                return way
            reasons.append(f"{kind}: {way.message}")
        raise UnsupportedError(f"no way to {_who(info)}: {'; '.join(reasons)}")

    def _shm(self, info: OwnerInfo, other: Source | None) -> Source | RoutingError:
        if info.host != self._host:
            return UnsupportedError("it runs on another host")
        if not info.arenas:
            return UnsupportedError("it has no shared memory")
        try:
            return ShmSource(info, self._pool, other if isinstance(other, ShmSource) else None)
        except ArenaError as err:
            if isinstance(err.__cause__, FileNotFoundError):
                return StoreUnavailableError(
                    err.message, hint="it is gone, or in another container: then share its arena_dir, or use tcp"
                )
            return UnsupportedError(err.message)

    def _rdma(self, info: OwnerInfo, other: Source | None) -> Source | RoutingError:
        from . import rdma  # noqa: PLC0415 - loads Mooncake's library

        endpoint = self._endpoint
        if endpoint is None:
            return UnsupportedError(rdma.available(self._config) or "it is not in use here")
        if not endpoint.reaches(info):
            return UnsupportedError("the producer does not serve it")
        if self._config.transport == "auto" and endpoint.protocol != "rdma":
            return UnsupportedError("Mooncake would move the bytes by TCP")
        return rdma.MooncakeSource(info, endpoint, lambda: bool(self._lives(info.owner)))

    def _tcp(self, info: OwnerInfo, other: Source | None) -> Source | RoutingError:
        if not info.tcp:
            return UnsupportedError("the producer serves no TCP")
        if isinstance(other, TcpSource) and other.address == info.tcp:
            return other
        return TcpSource(info, self._config.secret, self._pool, lambda: self._lives(info.owner))


def _refuse(transport: str, info: OwnerInfo, reason: RoutingError) -> NoReturn:
    """Raises why a named transport does not lead to a producer."""
    hint = reason.hint or "transport 'auto' takes another way"
    raise type(reason)(f"transport {transport!r} does not lead to {_who(info)}: {reason.message}", hint=hint)


def _who(info: OwnerInfo) -> str:
    return f"the producer on {info.node} (process {info.pid})"
