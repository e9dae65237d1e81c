"""File descriptors and threads for ZeroMQ, which ends the whole process where it gets none."""

from __future__ import annotations

import errno
import os
import resource
import threading
from typing import Final

from ....errors import StoreUnavailableError
from ....threads import begin

_NEEDED: Final = 16  # a context with one I/O thread and a socket with a connection take ten (libzmq 4.3)
_THREADS: Final = 4  # a context takes two with its first socket; what begins beside it gets some, too


def need_descriptors() -> None:
    """Checks that a context and a socket can be made.

    Raises:
        StoreUnavailableError: there are too few file descriptors or threads left.
    """
    _need_threads()
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


def _need_threads() -> None:
    over = threading.Event()
    begun: list[threading.Thread] = []
    try:
        for _ in range(_THREADS):
            thread = threading.Thread(target=over.wait, daemon=True)
            begin(thread)
            begun.append(thread)
    finally:
        over.set()
        for thread in begun:
            thread.join()
