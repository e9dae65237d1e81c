"""A process's engines: the one that it began with, and the one that it reads with now.

Usually that is the same. A new one takes over reading when the old one is held up by a producer that froze in its
first contact, or knows a name as somebody's who is gone. The old one goes on serving if it served.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ....errors import StoreClosedError, UnsupportedError
from .rdma_contact import Contacts, NewEngineError
from .rdma_env import RDMA
from .rdma_pool import ReceivePool

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..place import OwnerInfo
    from .rdma_engine import Engine


class Line:
    """Engines of this process. Methods may be called from several threads.

    Args:
        make: Makes an engine.
        pool_bytes: Size of the receive memory.
    """

    def __init__(self, make: Callable[[], Engine], pool_bytes: int) -> None:
        self._make = make
        self._pool_bytes = pool_bytes
        self.reset()

    def reset(self) -> None:
        """Begins anew."""
        self._lock = threading.Lock()
        self._closed = False
        self._first: Engine | None = None  # serves, if anything is served
        self._reading: tuple[Engine, Contacts] | None = None  # with the pool below
        self._old: list[Engine] = []
        self._pool: ReceivePool | None = None

    @property
    def pool(self) -> ReceivePool:
        """The receive memory."""
        with self._lock:
            return self._receive()

    def _receive(self) -> ReceivePool:
        if self._pool is None:
            self._pool = ReceivePool(self._pool_bytes)
        return self._pool

    def serving(self) -> Engine:
        """Returns the engine that peers know.

        Raises:
            UnsupportedError: there can be none.
            StoreClosedError: the endpoint was closed.
        """
        with self._lock:
            return self._begin()

    def _begin(self) -> Engine:
        if self._closed:
            raise StoreClosedError("the store is closed")
        if self._first is None:
            self._first = self._made()
        return self._first

    def _made(self) -> Engine:
        try:
            return self._make()
        except (ImportError, OSError) as err:
            raise UnsupportedError(
                f"transport 'rdma' cannot be used here: {err}", hint="`fd-routing doctor` shows what is missing"
            ) from err

    def meet(self, segment: str, info: OwnerInfo, fresh: Callable[[], bool], deadline: float) -> Engine:
        """Returns an engine that has met a producer; see ``Contacts.meet``."""
        while True:
            engine, contacts = self._read_with()
            try:
                contacts.meet(segment, info, fresh, deadline)
            except NewEngineError:
                self.replace(engine)
            else:
                return engine

    def _read_with(self) -> tuple[Engine, Contacts]:
        reading = self._reading
        if reading is not None:
            return reading
        with self._lock:
            if self._reading is None:
                self._reading = self._ready(self._begin())
            return self._reading

    def _ready(self, engine: Engine) -> tuple[Engine, Contacts]:
        pool = self._receive()
        try:
            engine.register(pool.address, pool.nbytes)
        except OSError as err:
            raise UnsupportedError(
                f"the receive memory cannot be registered for RDMA: {err}",
                hint="registered memory is pinned: `ulimit -l` must be unlimited, and a container needs "
                "--cap-add=IPC_LOCK",
            ) from err
        if engine.protocol == RDMA:
            pool.keep_apart()
        return engine, Contacts(engine, pool)

    def renew(self, pool: ReceivePool) -> None:
        """Takes new receive memory, and a new engine for it, if most of the old is held by reads that never ended."""
        with self._lock:
            reading = self._reading
            if self._closed or reading is None or pool is not self._pool:
                return
            engine = reading[0]
            if engine.quarantined_bytes < pool.nbytes // 2:
                return
            self._pool = None
            self._reading = self._ready(self._made())
            self._put_away(engine)

    @property
    def closed(self) -> bool:
        """Whether all is over."""
        return self._closed

    def replace(self, engine: Engine) -> None:
        """Takes a new engine for reading instead of this one, unless somebody did already."""
        with self._lock:
            if self._closed or self._reading is None or self._reading[0] is not engine:
                return
            self._reading = self._ready(self._made())
            self._put_away(engine)

    def _put_away(self, engine: Engine) -> None:
        if engine is not self._first:
            self._old.append(engine)
            engine.retire()

    def lost(self, engine: Engine, segment: str) -> None:
        """Takes note that reading from a producer failed."""
        reading = self._reading
        if reading is not None and reading[0] is engine:
            reading[1].lost(segment)

    def close(self, *, final: bool = False) -> None:
        """Ends all engines, each as soon as nothing is under way in it; ``final``: see ``Engine.close``."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            engines = {self._first, *self._old, *([self._reading[0]] if self._reading else [])} - {None}
            self._reading = None
        for engine in engines:
            assert engine is not None
            engine.close(final=final)

    def abandon(self) -> None:
        """In a forked child: lets go of the parent's engines without ending them, which would never return."""
        for engine in [self._first, *self._old, self._reading[0] if self._reading else None]:
            if engine is not None:
                engine.leak()
        self.reset()
