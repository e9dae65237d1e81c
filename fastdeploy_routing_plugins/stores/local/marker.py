"""Opening a store's folder: a marker file proves that it is ours, before anything in it is touched."""

from __future__ import annotations

import errno
import os
import stat

import msgspec

from ...errors import ConfigError
from .folder import Folder, unavailable
from .publish import TEMPORARY, publish

MARKER = ".fd-routing-store"
FORMAT = "fd-routing-store"
VERSION = 1
_LIMIT = 4096
_HARMLESS = frozenset({TEMPORARY, "lost+found"})  # a starting process's, a mounted volume's
_FAULTS_OF_CONFIG = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ELOOP,
    errno.ENAMETOOLONG,
)


class _Marker(msgspec.Struct, frozen=True):
    format: str
    version: int


def open_folder(path: str) -> Folder:
    """Opens a store's folder; creates it, with its marker, if there is none or it is empty. Deletes nothing.

    Raises:
        ConfigError: ``path`` is no folder of ours and must not become one, or this user cannot use it.
        StoreUnavailableError: the file system fails; a retry may succeed.
    """
    try:
        os.makedirs(path, exist_ok=True)
        folder = Folder.at(path)
        if not _has_marker(folder, path):
            foreign = sorted(set(os.listdir(folder.fd)) - _HARMLESS)
            # The marker comes before anything else of ours, so one look after the listing settles a race of openers.
            if foreign and not _has_marker(folder, path):
                shown = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")
                raise _config_error(
                    f"{path} holds files that are not a routing store's: {shown}",
                    "choose an empty or new folder as store_dir; a store shares its folder with nothing else",
                )
            if not foreign:
                _mark(folder)
    except OSError as err:
        if err.errno in _FAULTS_OF_CONFIG:
            raise _config_error(f"{path} cannot be a store's folder: {os.strerror(err.errno)}", _hint(err)) from err
        raise unavailable(err, "opening the store", path) from err
    return folder


def _hint(err: OSError) -> str:
    if err.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "this user must be allowed to create it, or to read one that exists"
    return "store_dir must name a folder, or one that can be created"


def _config_error(problem: str, hint: str) -> ConfigError:
    return ConfigError(problem, hint=hint, problems=(problem,))


def _has_marker(folder: Folder, path: str) -> bool:
    try:
        fd = os.open(MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder.fd)
    except FileNotFoundError:
        return False
    try:
        raw = os.read(fd, _LIMIT) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)
    try:
        marker = msgspec.json.decode(raw, type=_Marker)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as err:
        raise _config_error(f"{path}/{MARKER} is no marker of a routing store", "choose another store_dir") from err
    if marker.format != FORMAT or marker.version != VERSION:
        raise _config_error(
            f"{path} is a store of format {marker.format} {marker.version}, this version knows {FORMAT} {VERSION}",
            "upgrade fastdeploy-routing-plugins, or choose another store_dir",
        )
    return True


def _mark(folder: Folder) -> None:
    marker = msgspec.json.encode(_Marker(FORMAT, VERSION)) + b"\n"
    try:
        publish(folder, MARKER, (marker,), fsync=True)
    except FileExistsError:
        return
