"""Putting into p2pstore as the contract of a backend has it: a name is created once, whole, and never changes.

p2pstore overwrites whatever is under a key. So whoever puts claims the key in Redis first, looks at what is there,
puts, and then makes the object visible, if the value under the key is still the one that it put.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ....envelope import PartHeader, decode_header, encode_header
from ....errors import (
    AlreadyExistsError,
    ConflictError,
    RoutingError,
    StoreUnavailableError,
    SupersededError,
    UnsupportedError,
)
from . import wire
from .foreign import ForeignReader
from .index import Claimed, Place, RedisIndex, parsed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ....backend import Buffer
    from ..config import RdmaConfig
    from .client import P2pClient

_PAUSE = 0.005  # s
_CLAIM = 4  # claims last so many times longer than a put may take
_SLOWEST = 50e6  # bytes/s that a put or get of large values is given time for, beyond the timeout


def time_limit(timeout: float, nbytes: int) -> float:
    """Returns when a call for so many bytes has to be done, in seconds of ``time.monotonic()``."""
    return time.monotonic() + timeout + nbytes / _SLOWEST


class Putter:
    """Puts objects.

    Args:
        config: Options.
        index: The index in Redis.
        client: Gives p2pstore's client, which is made for the first use.
        fetch: Gives a value's bytes, by key and record.
    """

    def __init__(
        self,
        config: RdmaConfig,
        index: RedisIndex,
        client: Callable[[], P2pClient],
        fetch: Callable[[str, str], memoryview],
    ) -> None:
        self._config = config
        self._index = index
        self._client = client
        self._fetch = fetch
        self._token = secrets.token_hex(16)
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    def put(self, name: str, header: bytes, payload: Buffer) -> None:
        """See ``BlockingBackend._put``."""
        public = wire.public_header(name, header)
        if not self._config.header and (public is None or not payload.nbytes):
            what = "a value of no bytes" if public is not None else "anything but whole rollouts or layers of choice 0"
            raise UnsupportedError(
                f"FastDeploy's form of p2pstore has no place for {what} ({name!r:.100})",
                hint="header=true keeps what this package knows beside p2pstore's values",
            )
        if not payload.nbytes:  # p2pstore registers values of no bytes and then does not find them
            stored = self._index.mark(name, header)
            if stored is not None:
                raise AlreadyExistsError(f"{name} exists", header=stored)
            self._client().held.add(name, header, Place("", "", ""))
            return
        deadline = time_limit(self._config.timeout, payload.nbytes)
        key = wire.own_key(name)
        if public is not None:
            key = wire.public_key(public)
            wire.check_key(key)
        with self._alone(key, deadline):
            self._claim(key, name, header, public, deadline)
            try:
                self._store(key, name, header, public, payload, deadline)
            except BaseException:
                self._give_up(key)
                raise
            if not self._config.header:
                self._index.release(key, self._token)
                self._index.changed()

    # --- steps --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _alone(self, key: str, deadline: float) -> Iterator[None]:
        """One put at a time under a key in this process."""
        with self._guard:
            lock, waiting = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = (lock, waiting + 1)
        try:
            if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise StoreUnavailableError(f"another put under p2pstore's key {key!r:.100} is not done yet")
            try:
                yield
            finally:
                lock.release()
        finally:
            with self._guard:
                lock, waiting = self._locks.pop(key)
                if waiting > 1:
                    self._locks[key] = (lock, waiting - 1)

    def _claim(self, key: str, name: str, header: bytes, public: PartHeader | None, deadline: float) -> None:
        """Returns when the key is this process's, and free."""
        seconds = _CLAIM * max(1.0, deadline - time.monotonic())
        while True:
            claimed = self._index.claim(key, name, self._token, seconds, deadline)
            if claimed.state == "mine":
                break
            if claimed.state == "exists":
                if self._lives(claimed.generation):
                    raise AlreadyExistsError(f"{name} exists", header=claimed.header)
                self._index.delete([name])  # whoever held it is gone, and with it the value
                continue
            if time.monotonic() + _PAUSE >= deadline:
                raise StoreUnavailableError(f"another process is putting under p2pstore's key {key!r:.100}")
            time.sleep(_PAUSE)
        if claimed.generation:
            try:
                self._make_room(key, name, header, public, claimed)
            except BaseException:
                self._give_up(key)
                raise

    def _make_room(self, key: str, name: str, header: bytes, public: PartHeader | None, claimed: Claimed) -> None:
        """Deletes what is under the key, if it is an older attempt or dead; refuses otherwise."""
        generation, owner = claimed.generation, claimed.owner
        known = self._client().held.get(self._client().held.under(key))
        if not owner and known is not None and known[1].generation == generation:
            owner = self._client().held.under(key)
            if owner == name:
                raise AlreadyExistsError(f"{name} exists", header=known[0])
        if owner:
            older = _attempts(owner, name)
            if older > 0:
                raise SupersededError(f"{owner} is stored, a higher attempt than {name}", attempt=older)
            if older == 0 and self._lives(generation):
                raise ConflictError(
                    f"p2pstore's key {key!r:.100} is that of {owner}, so {name} has no place",
                    hint="p2pstore has one space of keys for all namespaces: give each run a Redis database, or clear "
                    "the other namespace",
                )
            self._index.delete([owner])
            self._index.drop(key, generation)
            self._client().held.pop(owner)
            return
        if self._mine(generation) or not self._lives(generation):
            self._index.drop(key, generation)
        elif self._config.header or public is None:
            raise ConflictError(
                f"p2pstore's key {key!r:.100} holds a value that another program put",
                hint="delete it, or clear the server: fd-routing with exclusive=true does, as FastDeploy does",
            )
        else:
            raise self._taken(key, name, public, generation)

    def _taken(self, key: str, name: str, header: PartHeader, generation: str) -> RoutingError:
        """Returns the error for a value without a header, which is looked at to see whether it is the same."""
        reader = ForeignReader(header.schema(), self._config.dtype, header.namespace, self._fetch)
        found = reader.look(key, generation)
        stored = None if found is None else decode_header(found.header, name=found.name)
        if isinstance(stored, PartHeader) and (stored.tokens, stored.layers) == (header.tokens, header.layers):
            same = msgspec.structs.replace(
                header, digests=stored.digests, whole=stored.whole, producer=stored.producer
            )
            return AlreadyExistsError(f"{name} exists", header=encode_header(same))
        return ConflictError(f"p2pstore's key {key!r:.100} holds something else than {name}")

    def _store(
        self, key: str, name: str, header: bytes, public: PartHeader | None, payload: Buffer, deadline: float
    ) -> None:
        value: Any
        if public is None:
            value, code = np.frombuffer(bytes(payload.data), np.uint8), ""
        else:
            value, code = wire.encode(payload.data, public, self._config)
        self._client().put(key, value, deadline)
        generation = self._index.generations([key])[0]
        if not self._mine(generation):
            raise StoreUnavailableError(f"p2pstore's key {key!r:.100} was overwritten or deleted by another program")
        place = Place(generation, code, key)
        if self._config.header and not self._index.commit(name, self._token, header, place, deadline):
            raise StoreUnavailableError(f"{name} was overwritten or deleted while it was put", hint="try again")
        self._client().held.add(name, header, place)

    def _give_up(self, key: str) -> None:
        """Ends a claim, unless p2pstore may still be putting under the key: then it ends by itself."""
        if not self._client().busy(key):
            with contextlib.suppress(RoutingError):
                self._index.release(key, self._token)

    def _mine(self, generation: str) -> bool:
        metadata = parsed(generation).get("metadata")
        return isinstance(metadata, dict) and metadata.get("client_id") == self._client().client_id

    def _lives(self, generation: str) -> bool:
        record = parsed(generation)
        host = record.get("host")
        return isinstance(host, str) and self._client().alive(record, self._index.provider(host))


def _attempts(stored: str, new: str) -> int:
    """Compares the attempts of two names: the stored one's number if it is higher, -1 if lower, 0 if unrelated."""
    one, other = stored.split("/"), new.split("/")
    if one[:4] != other[:4] or one[4] == other[4]:
        return 0
    return int(one[4]) if one[4] > other[4] else -1
