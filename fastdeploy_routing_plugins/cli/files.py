"""Files that commands write: they appear whole or not at all, and replace nothing unless told to."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from typing import TYPE_CHECKING

from fastdeploy_routing_plugins.cli.failures import Failure, UsageProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import BinaryIO


def check_target(path: Path, force: bool, endings: Sequence[str]) -> None:
    """Checks, before any work is done, that a file can be written there.

    Args:
        path: Where to.
        force: Whether an existing file is replaced.
        endings: How its name may end.

    Raises:
        UsageProblem: the ending is another one, the folder is missing, or the file exists.
    """
    if path.suffix not in endings:
        raise UsageProblem(f"{str(path)!r} must end in {' or '.join(endings)}")
    if not path.parent.is_dir():
        raise UsageProblem(f"there is no folder {str(path.parent)!r}")
    if path.is_dir():
        raise UsageProblem(f"{str(path)!r} is a folder")
    if not force and os.path.lexists(path):
        raise _exists(path)


def write_whole(path: Path, force: bool, write: Callable[[BinaryIO], None]) -> None:
    """Writes a file that appears whole or not at all.

    Args:
        path: Where to.
        force: Whether an existing file is replaced.
        write: Writes the content.

    Raises:
        UsageProblem: the file exists.
        Failure: it cannot be written.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        try:
            with open(temporary, "xb") as file:
                write(file)
            if force:
                os.replace(temporary, path)
            else:
                _rename_new(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as err:
        raise Failure("write", f"cannot write {str(path)!r}: {err.strerror or err}") from err


def _rename_new(temporary: Path, path: Path) -> None:
    """Renames without replacing what appeared meanwhile."""
    try:
        os.link(temporary, path)
    except OSError as err:
        if err.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
            raise
        # A file system without hard links: taking the name first leaves an empty file for a moment.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        os.replace(temporary, path)


def _exists(path: Path) -> UsageProblem:
    return UsageProblem(f"{str(path)!r} exists", "--force overwrites it")
