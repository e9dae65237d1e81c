"""The service that the processes of one host and user share, run by one of them: ``Shared``."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import threading
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from ....errors import StoreUnavailableError
from ....threads import begin
from ..address import Address
from . import rendezvous
from .rendezvous import Meeting
from .security import Security
from .whereabouts import Spot

if TYPE_CHECKING:
    from .service import Service

_PAUSE: Final = 0.01  # s between looks for a service that another process is about to start
_PATIENCE: Final = 5.0  # s for that
_HINT: Final = "a process of this user serves, and does not answer; is it stopped?"

_log = logging.getLogger("fastdeploy_routing_plugins.stores.rdma")
_left_behind: list[object] = []  # a forked child's copies of what belongs to its parent: not even freed


class Host:
    """A service that this process runs for the others.

    Attributes:
        users: How many clients of this process keep it.
        meeting: Where it is.
    """

    def __init__(self, path: str, lock: int) -> None:
        from .service import Service  # noqa: PLC0415 - most processes never serve

        self.users = 0
        self._path = path
        self._lock = lock
        secret = secrets.token_hex(16)
        self.service: Service = Service(Address("127.0.0.1", 0, 0), Security(secret=secret, bound=False), page=path)
        address = self.service.address
        self.meeting = Meeting(address.sync, address.coord, os.getpid(), self.service.epoch, secret)
        self._thread = threading.Thread(target=self._run, name="fd-routing-metadata", daemon=True)
        try:
            rendezvous.write(path, self.meeting)
            begin(self._thread)
        except BaseException:
            self.service.close()
            raise

    def _run(self) -> None:
        try:
            self.service.run()
        finally:
            rendezvous.remove(self._path, self.meeting.epoch)
            lock, self._lock = self._lock, -1
            if lock >= 0:
                rendezvous.free_lock(self._path, lock)  # another process may serve

    @property
    def serves(self) -> bool:
        """Whether it still does."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ends it."""
        self.service.stop()
        self._thread.join()

    def in_child(self) -> None:
        """In a forked child, which does not serve: keeps neither the lock, nor anything else from being freed."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)
        self.service.in_child()
        _left_behind.append(self)


class _Hosts:
    """The services that this process runs, by their rendezvous file."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_path: dict[str, Host] = {}
        self._tidy = True
        atexit.register(self.at_exit)
        os.register_at_fork(after_in_child=self.in_child)

    def at_exit(self) -> None:
        for host in list(self.by_path.values()):
            host.stop()
        self.by_path.clear()

    def in_child(self) -> None:
        self.lock = threading.Lock()
        for host in self.by_path.values():
            host.in_child()
        self.by_path.clear()

    def serve(self, path: str) -> Host | None:
        """Returns this process's service if it has the lock, or gets it now."""
        host = self.by_path.get(path)
        if host is not None and host.serves:
            return host
        lock = rendezvous.take_lock(path)
        if lock is None:
            return None
        if self._tidy:
            self._tidy = False
            rendezvous.tidy(os.path.dirname(path))
        try:
            host = self.by_path[path] = Host(path, lock)
        except BaseException:
            os.close(lock)
            raise
        _log.info("this process serves the routing's metadata at %s for %s", host.service.address, path)
        return host


@lru_cache(maxsize=1)
def _hosts() -> _Hosts:
    return _Hosts()


class Shared:
    """Finds the shared service, and runs it if nobody else does; see ``Whereabouts``.

    Args:
        namespace: The encoded namespace; each has a service of its own.
    """

    wanders = True

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._path = ""
        self._host: Host | None = None
        self._closed = False

    def spot(self) -> Spot:
        """See ``Whereabouts``."""
        if not self._path:
            self._path = os.path.join(rendezvous.folder(), f"{self._namespace}.json")
        return self.silent()

    def silent(self) -> Spot:
        """See ``Whereabouts``."""
        end = time.monotonic() + _PATIENCE
        while True:
            with _hosts().lock:
                host = None if self._closed else _hosts().serve(self._path)
                if host is not None and host is not self._host:
                    host.users += 1
                    self._host = host
            meeting = host.meeting if host is not None else rendezvous.read(self._path)
            if meeting is not None and _exists(meeting.pid):
                sync, coord = meeting.address.endpoints[0], meeting.address.endpoints[1]
                return Spot(coord, sync, "", meeting.secret, _HINT)
            if time.monotonic() > end:
                raise StoreUnavailableError(f"a process that serves for {self._path} does not say where", hint=_HINT)
            time.sleep(_PAUSE)

    def close(self) -> None:
        """Ends the service if no other client of this process keeps it."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(_hosts().lock)
            self._closed = True
            host, self._host = self._host, None
            if host is None:
                return
            host.users -= 1
            if host.users > 0:
                return
            _hosts().by_path.pop(self._path, None)
            host.stop()

    def in_child(self) -> None:
        """See ``Whereabouts``."""
        self._host = None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
