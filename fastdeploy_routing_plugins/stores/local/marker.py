"""Opening a store's folder: a marker file proves that it is ours, before anything in it is touched."""

from __future__ import annotations

import errno
import os
import stat

import msgspec

from ...errors import ConfigError
from .descriptor import open_at
from .folder import Folder, unavailable
from .publish import TEMPORARY, publish

MARKER = ".fd-routing-store"
HIDDEN = ".fd-routing"
"""What a store of the layout ``pdtensor`` has in its folder, which has no marker of its own."""
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
        _make(path)
        folder = Folder.at(path)
        try:
            _claim(folder, path)
        except BaseException:
            folder.close()
            raise
    except OSError as err:
        if err.errno in _FAULTS_OF_CONFIG:
            raise _config_error(f"{path} cannot be a store's folder: {os.strerror(err.errno)}", _hint(err)) from err
        raise unavailable(err, "opening the store", path) from err
    return folder


def _make(path: str) -> None:
    """Creates a folder and those above it; unlike ``os.makedirs``, however deep."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        try:
            os.mkdir(folder)
        except OSError:
            if not os.path.isdir(folder):  # else another process was faster
                raise


def _claim(folder: Folder, path: str) -> None:
    """Marks a folder as ours unless it is; raises ConfigError if it must not become ours."""
    if _has_marker(folder, path):
        return
    foreign = sorted(set(os.listdir(folder.fd)) - _HARMLESS)
    if not foreign:
        _mark(folder)
    # The marker comes before anything else of ours, so one look after the listing settles a race of openers.
    elif not _has_marker(folder, path):
        if HIDDEN in foreign:
            raise _config_error(
                f"{path} is a store of the layout pdtensor, not a routing store's folder of the layout safetensors",
                'add "layout": "pdtensor" to the options of local',
            )
        shown = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")
        raise _config_error(
            f"{path} holds files that are not a routing store's: {shown}",
            "choose an empty or new folder as store_dir; a store shares its folder with nothing else",
        )


def _hint(err: OSError) -> str:
    if err.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "this user must be allowed to create it, or to read one that exists"
    return "store_dir must name a folder, or one that can be created"


def _config_error(problem: str, hint: str) -> ConfigError:
    return ConfigError(problem, hint=hint, problems=(problem,))


def _has_marker(folder: Folder, path: str) -> bool:
    try:
        file = open_at(folder.fd, MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    with file:
        raw = os.read(file.fd, _LIMIT) if stat.S_ISREG(os.fstat(file.fd).st_mode) else b""
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
