"""Transport ``rdma``: a reader's network card reads a producer's memory through Mooncake Transfer Engine.

The producer's processor has no part in it, so nobody counts readers: ``rdma_blocks`` says how a reader knows that what
arrived is what it wanted. Without an RDMA device Mooncake moves bytes by TCP, which option ``allow_tcp`` permits, for
tests; our own ``tcp`` is faster and asks for a secret.
"""

from __future__ import annotations

import atexit
import ipaddress
import socket
import weakref
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Final

from ....arena.forks import Forgetful
from ....arena.pool import Pool
from ....errors import StoreClosedError, StoreUnavailableError, UnsupportedError
from . import rdma_env
from .base import Source
from .rdma_engine import Engine
from .rdma_env import available
from .rdma_fetch import Fetch
from .rdma_line import Line
from .rdma_pool import DEFAULT_BYTES
from .rdma_server import Exposed

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Sequence

    from ....backend import Blob
    from ....errors import RoutingError
    from ..config import RdmaConfig
    from ..place import OwnerInfo
    from .base import Wanted

__all__ = ["MooncakeSource", "RdmaEndpoint", "available"]

_STAND_IN: Final = "tcp/"  # what the name of a segment begins with where Mooncake runs without RDMA


class RdmaEndpoint(Forgetful):
    """Mooncake in this process: serves memory, and reads others'. Nothing listens before the first use.

    Methods may be called from several threads. A forked child goes on with an engine of its own, and serves nothing.

    Args:
        config: The store's configuration.
        host: Address under which other hosts reach this one; empty: chosen as option ``bind`` says.
        pool_bytes: Size of the memory that reads arrive in.

    Raises:
        UnsupportedError: it cannot be used here; see ``available``.
    """

    def __init__(self, config: RdmaConfig, host: str = "", pool_bytes: int = DEFAULT_BYTES) -> None:
        reason = available(config)
        if reason:
            raise UnsupportedError(f"transport 'rdma' cannot be used here: {reason}")
        protocol = rdma_env.protocol(config)
        host = host or advertised(config)
        self.protocol = protocol
        self._in_order = rdma_env.reads_in_order(protocol)
        self._line = Line(lambda: Engine(host, protocol, config.device), pool_bytes)
        self._exposed: Exposed | None = None
        self._copies = Pool()
        self.remember()
        _open_ones().add(self)

    # --- serving ----------------------------------------------------------------------------------------------------

    @property
    def segment(self) -> str:
        """What others call this process, for ``OwnerInfo.rdma``.

        Raises:
            UnsupportedError: Mooncake does not start.
        """
        name = self._line.serving().name
        return name if self.protocol == rdma_env.RDMA else _STAND_IN + name

    def expose(self, memory: mmap.mmap | memoryview) -> int:
        """Serves memory until ``withdraw`` or ``close``; returns its address, for ``ArenaInfo.address``.

        Raises:
            UnsupportedError: it cannot be registered, or Mooncake does not start.
        """
        engine = self._line.serving()
        if self._exposed is None:
            self._exposed = Exposed(engine)
        return self._exposed.add(memory)

    def withdraw(self, address: int) -> None:
        """Ends serving what ``expose`` returned the address of."""
        if self._exposed is not None:
            self._exposed.remove(address)

    # --- reading ----------------------------------------------------------------------------------------------------

    def reaches(self, info: OwnerInfo) -> bool:
        """Whether a producer can be read from, as far as both sides' equipment goes."""
        return bool(info.rdma) and info.rdma.startswith(_STAND_IN) == (self.protocol == rdma_env.TCP)

    def fetch(self, info: OwnerInfo, fresh: Callable[[], bool], deadline: float) -> Fetch:
        """Returns what reads from a producer; see ``Fetch``."""
        segment = info.rdma.removeprefix(_STAND_IN)
        return Fetch(self._line, self._copies, info, segment, self._in_order, fresh, deadline)

    # --- ending -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends serving and reading; calls under way end with ``StoreClosedError``. What was handed out stays valid.

        Takes about half a second, for which the interpreter stands still: so Mooncake's engine ends.
        """
        self._end(final=False)

    def _end(self, *, final: bool) -> None:
        if self._exposed is not None:
            self._exposed.clear()
        self._line.close(final=final)
        self._copies.close()

    def forget(self) -> None:
        """In a forked child: leaves the parent's engine alone."""
        self._exposed = None
        self._line.abandon()


class MooncakeSource(Source):
    """The memory of one producer.

    Args:
        info: The producer.
        endpoint: Mooncake in this process.
        fresh: Whether the producer gave a sign of life within two periods; asked before it is met.
    """

    kind: ClassVar[str] = "rdma"

    def __init__(self, info: OwnerInfo, endpoint: RdmaEndpoint, fresh: Callable[[], bool]) -> None:
        self._info = info
        self._endpoint = endpoint
        self._fresh = fresh
        self._closed = False

    def read(self, wanted: Sequence[Wanted], deadline: float, *, view: bool = False) -> list[Blob | RoutingError]:
        """See ``Source``. Views and copies are the same here: bytes cross the network.

        Raises:
            UnsupportedError: the producer has no RDMA, or Mooncake does not start here.
        """
        if self._closed:
            raise StoreClosedError("this way to the producer is closed")
        if not self._endpoint.reaches(self._info):
            raise UnsupportedError(
                f"producer {self._info.producer or self._info.owner} does not serve "
                f"{'RDMA' if self._endpoint.protocol == rdma_env.RDMA else 'the TCP mode of Mooncake'}",
                hint="transport 'auto' takes another way; option allow_tcp is for tests, on both sides",
            )
        return self._endpoint.fetch(self._info, self._fresh, deadline).read(wanted)

    def close(self) -> None:
        """See ``Source``."""
        self._closed = True


def advertised(config: RdmaConfig) -> str:
    """Returns the address of this host that others reach.

    Raises:
        StoreUnavailableError: the metadata service's host is not known here.
    """
    if config.bind:
        return config.bind
    address = config.address
    if address is None or address.loopback:
        return "127.0.0.1"
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(address.host, address.coord, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)  # sends nothing: it only chooses a route
            return str(ipaddress.ip_address(probe.getsockname()[0]))
    except OSError as err:
        raise StoreUnavailableError(
            f"no way from this host to {address.host}: {err}", hint="option bind says which address others reach"
        ) from err


@lru_cache(maxsize=1)
def _open_ones() -> weakref.WeakSet[RdmaEndpoint]:
    """Those of this process: an engine must end before the interpreter does."""
    found: weakref.WeakSet[RdmaEndpoint] = weakref.WeakSet()

    def close() -> None:
        for each in list(found):
            each._end(final=True)

    atexit.register(close)
    return found
