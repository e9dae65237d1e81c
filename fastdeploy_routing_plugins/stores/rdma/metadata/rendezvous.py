"""How the processes of one host and user find the service that one of them runs: a file, under a lock.

``<runtime dir>/fd-routing/<uid>/<namespace>.json`` says where the service is, and how to prove that one may ask it,
since its ports are open to every user of the host. Whoever holds the lock beside it serves. The kernel frees the lock
of a dead process, and who notices first that the service is gone takes its place.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
import time
from typing import Annotated, Final

import msgspec

from ....errors import StoreUnavailableError
from ..address import Address

_OLD: Final = 3600.0  # s after which a lock that nobody holds is a leftover
_MAX_FILE: Final = 4096  # bytes
_Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class Meeting(msgspec.Struct, frozen=True):
    """What the file says.

    Attributes:
        sync: Port of the stream of changes, on loopback.
        coord: Port of questions and answers.
        pid: Who serves.
        epoch: Number of this start of the service.
        secret: What clients prove to know.
    """

    sync: _Port
    coord: _Port
    pid: int
    epoch: int
    secret: str

    @property
    def address(self) -> Address:
        """Where the service is."""
        return Address("127.0.0.1", self.sync, self.coord)


def folder() -> str:
    """Returns the folder for this user's rendezvous files; makes it if missing.

    Raises:
        StoreUnavailableError: it cannot be made, or is not this user's alone.
    """
    uid = os.geteuid()
    usual = f"/run/user/{uid}"  # what XDG_RUNTIME_DIR is for whoever logged in; services do not have it
    base = os.environ.get("XDG_RUNTIME_DIR") or (usual if os.access(usual, os.W_OK) else "")
    path = f"{base}/fd-routing/{uid}" if base else f"{tempfile.gettempdir()}/fd-routing-{uid}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        found = os.lstat(path)
    except OSError as err:
        raise _unusable(path, err.strerror or "") from err
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
        raise _unusable(path, "it is not a folder of this user alone")
    return path


def _unusable(path: str, why: str) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"the processes of this host cannot meet in {path}: {why}",
        hint="set XDG_RUNTIME_DIR to a folder of this user, mode 0700, or rdma_store_server to a service's address",
    )


def take_lock(path: str) -> int | None:
    """Returns a descriptor that holds the lock of a rendezvous file; None if another process holds it.

    Raises:
        StoreUnavailableError: there can be no lock.
    """
    name = f"{path}.lock"
    while True:
        try:
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as err:
            raise _unusable(name, err.strerror or "") from err
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(name)):
                return fd
        except FileNotFoundError:
            pass
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError as err:
            os.close(fd)
            raise _unusable(name, err.strerror or "") from err
        os.close(fd)  # who had it removed it meanwhile; the next one is another file


def free_lock(path: str, fd: int) -> None:
    """Gives a lock back and removes its file: who opened it before sees that it is not the lock any more."""
    with contextlib.suppress(OSError):
        os.unlink(f"{path}.lock")
    os.close(fd)


def tidy(where: str) -> None:
    """Removes what services that were killed long ago left in a folder."""
    now = time.time()
    for name in os.listdir(where):
        lock = os.path.join(where, name)
        path = lock.removesuffix(".lock")
        if path == lock:
            continue
        with contextlib.suppress(OSError, StoreUnavailableError):
            if os.lstat(lock).st_mtime < now - _OLD and (fd := take_lock(path)) is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                free_lock(path, fd)


def write(path: str, meeting: Meeting) -> None:
    """Writes the file, whole or not at all."""
    part = f"{path}.{os.getpid()}"
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, msgspec.json.encode(meeting))
    finally:
        os.close(fd)
    os.replace(part, path)


def read(path: str) -> Meeting | None:
    """Returns what the file says; None if there is none, or it is nothing of ours."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_size > _MAX_FILE:
            return None
        return msgspec.json.decode(os.read(fd, _MAX_FILE), type=Meeting)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    finally:
        os.close(fd)


def remove(path: str, epoch: int) -> None:
    """Removes the file if it still is of this start of the service. Only for who holds the lock."""
    meeting = read(path)
    if meeting is not None and meeting.epoch == epoch:
        with contextlib.suppress(OSError):
            os.unlink(path)
