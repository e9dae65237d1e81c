"""File descriptors for ZeroMQ, which ends the whole process where it gets none for its threads."""

from __future__ import annotations

import errno
import os
import resource
from typing import Final

from ....errors import StoreUnavailableError

_NEEDED: Final = 16  # a context with one I/O thread and a socket with a connection take ten (libzmq 4.3)


def need_descriptors() -> None:
    """Checks that a context and a socket can be made.

    Raises:
        StoreUnavailableError: there are too few file descriptors left.
    """
    taken: list[int] = []
    try:
        for _ in range(_NEEDED):
            taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as err:
        if err.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        raise StoreUnavailableError(
            f"this process has hardly any file descriptors left ({err.strerror})",
            hint=f"it may have {limit}: raise `ulimit -n`, or close what is not needed any more",
        ) from err
    finally:
        for each in taken:
            os.close(each)
