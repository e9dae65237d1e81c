"""Starting threads where the system may have none left, as in a container with a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import StoreUnavailableError

if TYPE_CHECKING:
    import threading

HINT = "a container's limit of processes (docker run --pids-limit), `ulimit -u`, or memory"


def begin(thread: threading.Thread) -> None:
    """Starts a thread.

    Raises:
        StoreUnavailableError: the system has none left.
    """
    try:
        thread.start()
    except RuntimeError as err:
        raise StoreUnavailableError(f"this process gets no further thread: {err}", hint=HINT) from err
