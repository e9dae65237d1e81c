"""p2pstore's client, with an end to every call and a type to every failure.

``P2PClient.put`` runs in an event loop of its own thread. Values are fetched with the client's own transport rather
than with ``P2PClient.get``: that one tries for up to 46 s whatever happens, answers None for everything that goes
wrong, and in releases up to 0.1.13 unpickles what it gets from the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError  # not the built-in one before Python 3.11
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import BackendError, CorruptDataError, StoreUnavailableError
from ....store.pool import DaemonPool
from . import logs
from .held import Held

if TYPE_CHECKING:
    from ..config import RdmaConfig
    from .config import P2pAddress

MAX_VALUE = 1 << 40  # bytes; p2pstore's record says how much is received
_STARTS = 5  # tries to find a free port
_RETRIES = 2  # p2pstore's tries for one command; tries until a deadline are made by this package
_CLOSING = 2.0  # s
_PROBE = 1.0  # s


class P2pClient:
    """One ``P2PClient``.

    Args:
        address: Where Redis is, and what p2pstore is told besides.
        config: Options.
        host: Address that readers reach this process by.

    Raises:
        StoreUnavailableError: Redis does not answer.
        BackendError: p2pstore does not start.
    """

    def __init__(self, address: P2pAddress, config: RdmaConfig, host: str) -> None:
        self._module = logs.load()
        self._timeout = config.timeout
        self._fetching = DaemonPool(16, "fd-routing-p2pstore")
        self._putting: dict[str, Future[bool]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="fd-routing-p2pstore-loop", daemon=True)
        self._thread.start()
        self._client: Any = None
        try:
            self._client = self._start(address, config, host)
        except BaseException:
            self.close()
            raise
        self.client_id: str = self._client.client_id
        self.held = Held()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _start(self, address: P2pAddress, config: RdmaConfig, host: str) -> Any:
        how: dict[str, Any] = {}
        stated = config.transport if config.transport in ("tcp", "rdma") else ""
        protocol = address.protocol or config.protocol or stated
        if protocol:
            how["protocol"] = protocol
        if address.device or config.device:
            how["device"] = address.device or config.device
        end = time.monotonic() + self._timeout
        for start in range(_STARTS):
            settings = self._module.P2PConfig(metadata_server=address.url, local_host=host, **how)
            if settings.protocol == "tcp":  # p2pstore's TCP listens where it is told, and needs a port for that
                settings.local_host = f"{host}:{config.port or _free_port(host)}"
            settings.redis_socket_timeout = settings.redis_socket_connect_timeout = self._timeout / 2
            settings.redis_max_retries = _RETRIES  # not among its fields, but looked for
            made = self._fetching.submit(self._module.P2PClient, settings)
            try:
                return made.result(max(0.1, end - time.monotonic()))
            except FutureTimeoutError as err:
                made.add_done_callback(_close_late)
                raise StoreUnavailableError(f"p2pstore did not start within {self._timeout} s") from err
            except RuntimeError as err:
                if settings.protocol != "tcp" or config.port or start == _STARTS - 1:
                    raise BackendError(f"p2pstore does not start: {err}") from err
            except Exception as err:
                if "redis" in type(err).__module__ or isinstance(err, OSError):
                    raise StoreUnavailableError(f"p2pstore cannot reach Redis at {address}: {err}") from err
                raise BackendError(f"p2pstore does not start: {type(err).__name__}: {err}") from err
        raise AssertionError("the last try returned or raised")

    # --- verbs --------------------------------------------------------------------------------------------------

    def put(self, key: str, value: object, deadline: float) -> None:
        """Puts a value under a key.

        A put that takes longer than the deadline goes on by itself; nothing else is put under the key meanwhile.

        Raises:
            StoreUnavailableError: p2pstore did not say that it is stored.
        """
        earlier = self._putting.get(key)
        if earlier is not None:
            with contextlib.suppress(Exception):  # how it ended was said to whoever asked for it
                self._ended(earlier, deadline, key)
        future: Future[bool] = asyncio.run_coroutine_threadsafe(self._client.put(key, value), self._loop)
        self._putting[key] = future
        try:
            stored = self._ended(future, deadline, key)
        except StoreUnavailableError:
            raise
        except Exception as err:
            raise StoreUnavailableError(f"p2pstore failed to put {key!r:.100}: {type(err).__name__}: {err}") from err
        if stored is not True:
            raise StoreUnavailableError(f"p2pstore did not store {key!r:.100}", hint="is Redis running, and writable?")

    def _ended(self, future: Future[bool], deadline: float, key: str) -> bool:
        try:
            stored = future.result(max(0.0, deadline - time.monotonic()))
        except FutureTimeoutError as err:
            if not future.done():
                raise StoreUnavailableError(f"p2pstore does not answer a put of {key!r:.100}") from err
            raise
        finally:
            if future.done() and self._putting.get(key) is future:
                del self._putting[key]
        return stored

    def busy(self, key: str) -> bool:
        """Whether a put under a key that was given up is still going on."""
        return key in self._putting

    def fetch(self, record: dict[str, Any], deadline: float) -> memoryview | None:
        """Returns the bytes that a record of p2pstore leads to, or None if whoever holds them does not give them.

        Raises:
            CorruptDataError: the record cannot be one, or other bytes came than it says.
            StoreUnavailableError: nothing came until the deadline.
        """
        metadata = record.get("metadata")
        host, size = record.get("host"), metadata.get("data_size") if isinstance(metadata, dict) else None
        if not isinstance(metadata, dict) or not isinstance(host, str) or ":" not in host:
            raise CorruptDataError("this is no record of p2pstore")
        if type(size) is not int or not 0 < size <= MAX_VALUE:
            raise CorruptDataError(f"p2pstore's record says that there are {size!r:.40} bytes")
        request = self._client._request_from_metadata("", metadata)
        if request is None:
            raise CorruptDataError("p2pstore does not take its own record")
        transport = self._client._select_transport_for_recv(host)
        call = self._fetching.submit(transport.recv, request=request, remote_addr=host)
        try:
            value = call.result(max(0.0, deadline - time.monotonic()))
        except FutureTimeoutError as err:
            call.cancel()
            raise StoreUnavailableError(f"{host} does not send {size} bytes in time") from err
        except Exception:  # noqa: BLE001 - whatever its transports raise, and they raise much: the caller looks again
            return None
        if value is None:
            return None
        raw = memoryview(value.reshape(-1).view(np.uint8).data if isinstance(value, np.ndarray) else value).cast("B")
        if raw.nbytes != size:
            raise CorruptDataError(f"{host} sent {raw.nbytes} bytes instead of {size}")
        return raw

    def clear(self, deadline: float) -> int:
        """Deletes everything in p2pstore, whoever put it; returns how many values."""
        future = asyncio.run_coroutine_threadsafe(self._client.clear(), self._loop)
        try:
            answer: dict[str, Any] = future.result(max(0.0, deadline - time.monotonic()))
        except Exception as err:
            future.cancel()
            raise StoreUnavailableError(f"p2pstore did not clear: {type(err).__name__}: {err}") from err
        if not answer.get("success"):
            raise StoreUnavailableError(f"p2pstore did not clear everything: {answer.get('msg', '')!s:.200}")
        return int(answer.get("cleared", 0))

    def alive(self, record: dict[str, Any], provider: str) -> bool:
        """Whether whoever put a value may still serve it.

        Args:
            record: p2pstore's record.
            provider: The client that last said that it serves at the record's address; nothing if that is forgotten.
        """
        metadata, host = record.get("metadata"), record.get("host")
        client = metadata.get("client_id") if isinstance(metadata, dict) else None
        if client == self.client_id:
            return True
        if not isinstance(host, str) or (provider and client != provider):
            return False
        name, _, port = host.partition(":")
        try:
            socket.create_connection((name, int(port.partition(",")[0])), _PROBE).close()
        except (ConnectionRefusedError, ValueError, OverflowError):
            return False
        except OSError:  # cannot be reached from here, which says nothing
            return True
        return True

    def let_go(self, key: str, record: dict[str, Any]) -> None:
        """Frees a value whose record is gone; does nothing if another put took its place, or p2pstore heard of it."""
        metadata = record.get("metadata")
        if isinstance(metadata, dict):
            with contextlib.suppress(Exception):
                self._client.metadata_client._handle_delete_event(
                    key, metadata.get("put_id"), metadata.get("client_id")
                )

    # --- closing ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the client, its listener and the threads; returns within seconds, whether Redis answers or not."""
        client, self._client = self._client, None
        if client is not None:
            closing = threading.Thread(target=_close, args=(client,), name="fd-routing-p2pstore-close", daemon=True)
            closing.start()
            closing.join(_CLOSING)
            for transport in getattr(client, "transports", ()):
                _stop_listening(transport)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSING)
        self._fetching.shutdown()


def _close(client: Any) -> None:
    keys = client._registered_keys
    for key in list(keys):  # their records are deleted already, all at once; p2pstore would do it one by one
        for transport in client.transports:
            with contextlib.suppress(Exception):
                transport.release(key)
        keys.pop(key, None)
    with contextlib.suppress(Exception):
        client.close()


def _close_late(made: Future[Any]) -> None:
    if made.exception() is None:
        client = made.result()
        _close(client)
        for transport in getattr(client, "transports", ()):
            _stop_listening(transport)


def _stop_listening(transport: Any) -> None:
    """p2pstore leaves the listener of its TCP transport, and the thread behind it, for the process to end."""
    listener = getattr(transport, "_server_socket", None)
    if isinstance(listener, socket.socket):
        transport._running = False
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError as err:
            raise BackendError(f"this host cannot listen at {host}: {err}", hint="option bind") from err
        port: int = probe.getsockname()[1]
        return port


def local_host(bind: str, server: str, port: int) -> str:
    """Returns the address that readers reach this process by.

    Args:
        bind: What the option says.
        server: Redis' host.
        port: Its port.
    """
    if bind or os.environ.get("POD_IP"):  # p2pstore's own variable
        return bind or os.environ["POD_IP"].strip()
    from ..host import local_address  # noqa: PLC0415 - with shared memory and sockets of the other form of rdma

    return local_address(server, port)
