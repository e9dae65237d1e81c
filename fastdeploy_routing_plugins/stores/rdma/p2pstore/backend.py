"""The backend of ``rdma`` over p2pstore: values are p2pstore's, names and headers are in the same Redis."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING

from ....backend import Blob, BlockingBackend, Buffer, GetRequest, Ranges
from ....envelope import PartHeader, decode_header
from ....errors import (
    AbsentError,
    CorruptDataError,
    NotFoundError,
    ProducerLostError,
    RoutingError,
    StoreClosedError,
    StoreUnavailableError,
)
from ....keys import encode_namespace
from ....names import PartName, parse_name
from ....store.pool import DaemonPool
from . import held, wire
from .client import P2pClient, local_host
from .config import parse, parse_schema
from .foreign import ForeignReader
from .held import Held
from .index import Place, RedisIndex, parsed
from .others import Others
from .putting import Putter, time_limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....spec import StoreContext
    from ..config import RdmaConfig

_PAUSE = 0.02  # s between tries to fetch
_LOOK = 0.5  # s between looks for what others put, who tell nobody
_LINGER_LOOK = 0.2
_CLOSING = 2.0
_DYING = 0.5  # s
_PRUNE_EVERY = 10.0  # s between looks for what was deleted without this process hearing of it


class P2pBackend(BlockingBackend):
    """Objects are served by the process that put them, by p2pstore, until they are deleted or it closes.

    Args:
        context: What the store is opened with.
    """

    threads = 16

    def __init__(self, context: StoreContext) -> None:
        config: RdmaConfig = context.config
        self._config = config
        self._address = parse(config.server)
        self._root = f"{encode_namespace(context.namespace)}/"
        self._index = RedisIndex(self._address, config.timeout)
        self._putter = Putter(config, self._index, self._client, self._fetch)
        schema = parse_schema(config.schema)
        self._others: Others | None = None
        if schema is not None:
            reader = ForeignReader(schema, config.dtype, context.namespace, self._fetch)
            self._others = Others(reader, self._index, self._held, context.namespace)
        self._lock = threading.Lock()
        self._made: P2pClient | None = None
        self._pool: DaemonPool | None = None
        self._open_here = False
        self._pid = os.getpid()
        self._pruned = time.monotonic()

    # --- opening and closing ------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._index.open()
        self._pool = DaemonPool(self.threads, "fd-routing-fetch")
        self._parent = os.getppid()
        self._open_here = True

    def _close(self) -> None:
        self._open_here = False
        if os.getpid() != self._pid:
            return
        with self._lock:
            client, self._made = self._made, None
        if client is not None and held.release(self._config):
            with contextlib.suppress(RoutingError):
                self._withdraw(client.held.items(), time.monotonic() + _CLOSING)
            client.close()
        if self._pool is not None:
            self._pool.shutdown()
        self._index.close()

    def _withdraw(self, kept: list[tuple[str, Place]], deadline: float) -> None:
        """Deletes what this process put: nobody can serve it from now on."""
        self._index.delete([name for name, _ in kept], deadline)
        if not self._config.header:
            for _, place in kept:
                self._index.drop(place.key, place.generation)

    def _linger(self) -> None:
        """Serves on if the engine died; one that closes its writer waits for the worker, and FastDeploy's ends too."""
        if self._made is None or not self._orphaned():
            return
        end = time.monotonic() + self._config.linger
        while time.monotonic() < end:
            with contextlib.suppress(StoreUnavailableError):
                self._prune()
                if not any(place.key for _, place in self._held().items()):
                    return
            time.sleep(_LINGER_LOOK)

    def _orphaned(self) -> bool:
        """Whether the process that started this one is gone; a dying one closes its sockets a moment before it is."""
        until = time.monotonic() + _DYING
        while os.getppid() == self._parent and time.monotonic() < until:
            time.sleep(_PAUSE)
        return os.getppid() != self._parent

    def _prune(self) -> None:
        """Lets go of what others deleted, or Redis forgot: p2pstore misses what happens while Redis is away."""
        client = self._client()
        kept = [(name, place) for name, place in self._held().items() if place.key]
        now = self._index.generations([place.key for _, place in kept])
        for (name, place), generation in zip(kept, now, strict=True):
            if generation != place.generation:
                client.let_go(place.key, parsed(place.generation))
                client.held.pop(name)

    def _ready(self) -> None:
        if os.getpid() != self._pid:
            raise StoreClosedError("this store was opened in another process", hint="open it again after a fork")
        if not self._open_here:
            raise StoreClosedError("the store is not open")

    def _client(self) -> P2pClient:
        """Returns p2pstore's client; makes it for the first put or get, since it listens and registers itself."""
        client = self._made
        if client is not None:
            return client
        with self._lock:
            self._ready()
            if self._made is None:
                host = local_host(self._config.bind, *self._address.places[0])
                self._made = held.acquire(self._config, lambda: P2pClient(self._address, self._config, host))
            return self._made

    def _held(self) -> Held:
        client = self._made
        return Held() if client is None else client.held

    # --- writing ------------------------------------------------------------------------------------------------

    def _put(self, name: str, header: bytes, payload: Buffer) -> None:
        self._ready()
        self._client()
        self._putter.put(name, header, payload)
        payload.release()  # p2pstore has a copy
        if time.monotonic() - self._pruned >= _PRUNE_EVERY:
            self._pruned = time.monotonic()
            with contextlib.suppress(RoutingError):  # the put has succeeded
                self._prune()

    def _delete(self, names: Sequence[str]) -> int:
        self._ready()
        if not names:
            return 0
        count = self._index.delete(names)
        for name in names:
            known = self._held().pop(name)
            if known is not None and not self._config.header and self._index.drop(known[1].key, known[1].generation):
                count += 1
        if self._others is not None and count < len(names):
            count += self._others.delete(names)
        return count

    def _clear(self, prefix: str) -> int:
        self._ready()
        if self._config.exclusive and self._root.startswith(prefix):
            count = len(self._list(prefix))
            self._index.delete(self._index.list(""))
            self._client().clear(time_limit(self._config.timeout, 0))
            return count
        own = [name for name, _ in self._held().items() if name.startswith(prefix)]
        return self._delete(list(dict.fromkeys([*self._index.list(prefix), *own])))

    def _release(self, names: Sequence[str]) -> None:
        self._delete(names)

    # --- looking ------------------------------------------------------------------------------------------------

    def _list(self, prefix: str) -> list[str]:
        self._ready()
        names = set(self._index.list(prefix))
        if not self._config.header:
            names |= {name for name, place in self._unlisted(prefix) if self._is_there(place)}
        if self._others is not None:
            names |= set(self._others.names(prefix))
        return sorted(names)

    def _unlisted(self, prefix: str) -> list[tuple[str, Place]]:
        return [(name, place) for name, place in self._held().items() if name.startswith(prefix)]

    def _is_there(self, place: Place) -> bool:
        return self._index.generations([place.key])[0] == place.generation

    def _wait(self, prefix: str, seen: Sequence[str], deadline: float) -> list[str]:
        names = self._list(prefix)
        if names != list(seen) or time.monotonic() >= deadline:
            return names
        with self._index.listening() as hear:
            while True:
                names = self._list(prefix)
                left = deadline - time.monotonic()
                if names != list(seen) or left <= 0:
                    return names
                hear(min(left, _LOOK))

    # --- reading ------------------------------------------------------------------------------------------------

    def _get(self, name: str, ranges: Ranges | None = None) -> Blob:
        blob = self._get_many([GetRequest(name, ranges)])[0]
        if isinstance(blob, AbsentError):
            raise blob
        return blob

    def _get_many(self, requests: Sequence[GetRequest]) -> list[Blob | AbsentError]:
        self._ready()
        found = self._index.read([request.name for request in requests])
        jobs = list(zip(requests, found, strict=True))
        pool = self._pool
        if len(jobs) == 1 or pool is None:
            return [self._one(*job) for job in jobs]
        return [call.result() for call in [pool.submit(self._one, *job) for job in jobs]]

    def _one(self, request: GetRequest, found: tuple[bytes, Place] | None) -> Blob | AbsentError:
        try:
            return self._blob(request, found)
        except AbsentError as err:
            return err

    def _blob(self, request: GetRequest, found: tuple[bytes, Place] | None) -> Blob:
        name, ranges = request.name, request.ranges
        if found is None and not self._config.header:
            found = self._held().get(name)
            if found is not None and not self._is_there(found[1]):
                found = None
        if found is None:
            other = None if self._others is None else self._others.find(name)
            if self._others is None or other is None:
                raise NotFoundError(f"{name} is not there")
            if ranges is not None and not ranges:
                return Blob(other.header, ())
            return _cut(other.header, memoryview(self._others.payload(other)), ranges)
        header, place = found
        if ranges is not None and not ranges:
            return Blob(header, ())
        if not place.key:
            return _cut(header, memoryview(b""), ranges)
        raw = self._fetch(place.key, place.generation)
        if place.dtype:
            stored = decode_header(header, name=name)
            if not isinstance(stored, PartHeader):
                raise CorruptDataError("the header is not that of a part", name=name)
            raw = wire.decode(raw, stored, place.dtype)
        what = parse_name(name).object
        if not isinstance(what, PartName) or raw.nbytes != what.nbytes:
            raise CorruptDataError(f"p2pstore's value has {raw.nbytes} bytes, not what the name says", name=name)
        return _cut(header, raw, ranges)

    def _fetch(self, key: str, generation: str) -> memoryview:
        """Returns a value's bytes.

        Raises:
            NotFoundError: it is gone.
            ProducerLostError: whoever held it is gone.
            StoreUnavailableError: whoever holds it does not answer.
        """
        record = parsed(generation)
        metadata = record.get("metadata")
        size = metadata.get("data_size") if isinstance(metadata, dict) else 0
        client = self._client()  # may take a while the first time
        deadline = time_limit(self._config.timeout, size if isinstance(size, int) and 0 < size < 1 << 40 else 0)
        while True:
            raw = client.fetch(record, deadline)
            if raw is not None:
                return raw
            if self._index.generations([key])[0] != generation:
                raise NotFoundError(f"p2pstore's key {key!r:.100} was deleted or overwritten meanwhile")
            host = str(record.get("host"))
            if not client.alive(record, self._index.provider(host)):
                raise ProducerLostError(
                    f"the process at {host} that held p2pstore's key {key!r:.100} is gone",
                    hint="p2pstore keeps values in the process that put them, and their keys for ever",
                )
            if time.monotonic() + _PAUSE >= deadline:
                raise StoreUnavailableError(f"{host} does not give out p2pstore's key {key!r:.100}")
            time.sleep(_PAUSE)


def _cut(header: bytes, payload: memoryview, ranges: Ranges | None) -> Blob:
    if ranges is None:
        return Blob(header, (payload,))
    return Blob(header, tuple([payload[start:stop] for start, stop in ranges]))
