"""The index of objects in Redis: names, headers, and which put of p2pstore holds each one's value."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from ....errors import BackendError, ConfigError, RoutingError, StoreUnavailableError, UnsupportedError
from . import scripts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .config import P2pAddress

T = TypeVar("T")

_BATCH = 500  # names in one script, which keeps Redis from everything else
_FIRST_PAUSE = 0.01  # s
_LAST_PAUSE = 0.25
_CONNECTIONS = 64
MAX_RECORD = 1 << 20  # bytes of p2pstore's record that are parsed; it has a few hundred


@dataclass(frozen=True, slots=True)
class Place:
    """Where an object's value is.

    Attributes:
        generation: p2pstore's record of the put, as text; empty for objects without a payload.
        dtype: The value's dtype as a code of NumPy; empty: the payload's own bytes.
        key: p2pstore's key.
    """

    generation: str
    dtype: str
    key: str


@dataclass(frozen=True, slots=True)
class Claimed:
    """What Redis says to a claim: the object ``exists``, the key is ``busy``, or it is ``mine``.

    Attributes:
        state: One of the three.
        header: The stored header, if it exists.
        owner: Whose object has its value under the key, if it is ``mine`` and there is a value of this package.
        generation: p2pstore's record under the key, or of the object that exists; empty if there is none.
    """

    state: str
    header: bytes = b""
    owner: str = ""
    generation: str = ""


class RedisIndex:
    """One connection pool to Redis; every call ends by a deadline, in a result or a typed error.

    Args:
        address: Where Redis is.
        timeout: Seconds that a call may take.
    """

    def __init__(self, address: P2pAddress, timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        self._redis: Any = None
        self._scripts: dict[str, Any] = {}

    def open(self) -> None:
        """Connects.

        Raises:
            UnsupportedError: it is a cluster, or a Redis that runs no scripts.
            StoreUnavailableError: it does not answer.
        """
        if self._address.scheme == "redis+cluster":
            raise UnsupportedError(
                "p2pstore does not work on a Redis cluster: it hands redis-py nodes of a kind that it does not take, "
                "and its scripts touch several slots at once",
                hint="redis:// or redis+sentinel://",
            )
        self._redis = self._connect()
        for name in ("CLAIM", "RELEASE", "COMMIT", "MARK", "READ", "LIST", "DELETE", "DROP"):
            self._scripts[name] = self._redis.register_script(getattr(scripts, name))
        self.call(self._redis.ping)

    def _connect(self) -> Any:
        redis: Any = import_module("redis")  # comes with p2pstore
        address = self._address
        limit = self._timeout / 2
        how: dict[str, Any] = {
            "db": address.database,
            "username": address.username,
            "password": address.password,
            "socket_timeout": limit,
            "socket_connect_timeout": limit,
            "max_connections": _CONNECTIONS,
            "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 0),  # tries again until the deadline are made here
        }
        if address.scheme == "redis":
            (host, port) = address.places[0]
            return redis.Redis(host=host, port=port, **how)
        sentinel: Any = import_module("redis.sentinel")
        return sentinel.Sentinel(list(address.places), socket_timeout=limit).master_for(address.service, **how)

    def close(self) -> None:
        """Closes all connections."""
        if self._redis is not None:
            self._redis.close()
            self._redis.connection_pool.disconnect()

    # --- calling ------------------------------------------------------------------------------------------------

    def call(self, command: Callable[..., T], *args: Any, deadline: float | None = None, **options: Any) -> T:
        """Calls Redis, again and again while it cannot be reached, until the deadline.

        Raises:
            StoreUnavailableError: it could not be reached.
            ConfigError: it refuses who asks.
            BackendError: it answers an error.
        """
        exceptions: Any = import_module("redis.exceptions")
        end = time.monotonic() + self._timeout if deadline is None else deadline
        pause = _FIRST_PAUSE
        while True:
            try:
                return command(*args, **options)
            except (exceptions.AuthenticationError, exceptions.AuthorizationError) as err:
                problem = f"Redis at {self._address} refuses this user: {err}"
                raise ConfigError(problem, hint="user and password are part of rdma_store_server") from err
            except (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ReadOnlyError, OSError) as err:
                if time.monotonic() + pause >= end:
                    raise self._unavailable(err) from err
            except exceptions.OutOfMemoryError as err:
                raise StoreUnavailableError(f"Redis at {self._address} is full: {err}") from err
            except exceptions.RedisError as err:
                raise BackendError(f"Redis at {self._address} answers {type(err).__name__}: {err}") from err
            time.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    def _unavailable(self, err: Exception) -> RoutingError:
        return StoreUnavailableError(f"Redis at {self._address} cannot be reached: {err}", hint="is it running?")

    def _run(self, script: str, *args: Any, deadline: float | None = None) -> Any:
        return self.call(self._scripts[script], keys=[], args=list(args), deadline=deadline)

    # --- putting ------------------------------------------------------------------------------------------------

    def claim(self, key: str, name: str, token: str, seconds: float, deadline: float) -> Claimed:
        """Asks to be the one that puts under a key; the claim ends by itself after ``seconds``."""
        answer = self._run("CLAIM", key, name, token, int(seconds * 1000), deadline=deadline)
        state = _text(answer[0])
        if state == "exists":
            return Claimed(state, header=answer[1] or b"", generation=_text(answer[2]))
        if state == "busy":
            return Claimed(state)
        return Claimed(state, owner=_text(answer[1]), generation=_text(answer[2]))

    def release(self, key: str, token: str) -> None:
        """Ends a claim."""
        self._run("RELEASE", key, token)

    def commit(self, name: str, token: str, header: bytes, place: Place, deadline: float) -> bool:
        """Makes an object visible; False if the claim ran out, or the value was overwritten or lost meanwhile."""
        args = (place.key, name, token, header, place.generation, place.dtype)
        return int(self._run("COMMIT", *args, deadline=deadline)) == 1

    def mark(self, name: str, header: bytes) -> bytes | None:
        """Stores an object without a payload; returns the stored header if there is one already."""
        stored: bytes | None = self._run("MARK", name, header)
        return stored

    # --- looking ------------------------------------------------------------------------------------------------

    def generations(self, keys: Sequence[str]) -> list[str]:
        """Returns p2pstore's record of each key as text, empty where there is none."""
        found: list[str] = []
        for at in range(0, len(keys), _BATCH):
            values = self.call(self._redis.mget, [scripts.FILES + key for key in keys[at : at + _BATCH]])
            found += [_text(value or b"") for value in values]
        return found

    def owners(self, keys: Sequence[str]) -> list[str]:
        """Returns whose object has its value under each key, empty where none of this package has."""
        if not keys:
            return []
        return [_text(value or b"") for value in self.call(self._redis.hmget, scripts.OWNERS, list(keys))]

    def every_key(self) -> Iterator[str]:
        """Returns all of p2pstore's keys, in no order."""
        cursor = 0
        while True:
            cursor, members = self.call(self._redis.sscan, f"{scripts.FILES}index", cursor=cursor, count=1000)
            for member in members:
                with contextlib.suppress(UnicodeDecodeError):
                    yield member.decode()
            if not cursor:
                return

    def provider(self, host: str) -> str:
        """Returns the client that last said that it serves at an address, or nothing."""
        value = self.call(self._redis.get, scripts.PROVIDERS + host)
        return str(parsed(_text(value or b"")).get("client_id", ""))

    def read(self, names: Sequence[str]) -> list[tuple[bytes, Place] | None]:
        """Returns header and place of each object, None for those that are not there."""
        found: list[tuple[bytes, Place] | None] = []
        for at in range(0, len(names), _BATCH):
            answer = self._run("READ", *names[at : at + _BATCH])
            for header, place in zip(answer[::2], answer[1::2], strict=True):
                found.append(None if header is None else (header, Place(*_text(place).split("\n", 2))))
        return found

    def list(self, prefix: str) -> list[str]:
        """Returns the names under a prefix, sorted."""
        first, last = (b"[" + prefix.encode(), b"(" + prefix.encode() + b"\xff") if prefix else (b"-", b"+")
        names: list[str] = []
        while True:
            at, *found = self._run("LIST", first, last, _BATCH)
            names += [_text(name) for name in found]
            if not at:
                return names
            first = b"(" + at

    # --- deleting -----------------------------------------------------------------------------------------------

    def delete(self, names: Sequence[str], deadline: float | None = None) -> int:
        """Deletes objects and their values, and tells p2pstore's clients; returns how many there were."""
        count = 0
        for at in range(0, len(names), _BATCH):
            count += int(self._run("DELETE", *names[at : at + _BATCH], deadline=deadline))
        return count

    def drop(self, key: str, generation: str) -> bool:
        """Deletes p2pstore's value under a key if it is still that one."""
        return bool(self._run("DROP", key, generation))

    # --- waiting ------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Tells those who wait that something changed."""
        self.call(self._redis.publish, scripts.CHANGED, "")

    @contextlib.contextmanager
    def listening(self) -> Iterator[Callable[[float], None]]:
        """Gives a function that returns after a change from now on, or after so many seconds."""
        channel = self._redis.pubsub()
        try:
            self.call(channel.subscribe, scripts.CHANGED)
            self._hear(channel, "subscribe", self._timeout)
            yield lambda seconds: self._hear(channel, "message", seconds)
        finally:
            channel.close()

    def _hear(self, channel: Any, kind: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            message = self.call(channel.get_message, timeout=left, deadline=end + self._timeout)
            if message is not None and message["type"] == kind:
                return


def parsed(generation: str) -> dict[str, Any]:
    """Returns p2pstore's record, or an empty one if it is none."""
    if 0 < len(generation) <= MAX_RECORD:
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(generation)
            if isinstance(value, dict):
                return value
    return {}


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
