"""Waiting for a change in a rollout's folder by inotify, where Linux and its limits allow."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from .descriptor import refuse_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from inotify_simple import INotify

LOOK_AGAIN = 0.5  # s; changes made by other machines on a network file system are not notified
_IDLE = 8  # watchers kept for the next wait


class Watchers:
    """Inotify instances for waiting threads, each used by one thread at a time.

    They are kept for reuse, since closing one holds its thread up for some 10 ms. A forked child shares those of its
    parent, where each would take events that the other waits for: it leaves them alone and makes its own.
    """

    def __init__(self) -> None:
        self._idle: list[INotify] = []
        self._process = os.getpid()
        self._closed = False

    __reduce__ = refuse_copy

    def close(self) -> None:
        """Closes the idle ones; those in use follow when their wait ends."""
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()

    def wait(
        self,
        root: str,
        rollout: str,
        look: Callable[[], list[str]],
        seen: Sequence[str],
        deadline: float,
    ) -> list[str] | None:
        """Returns what ``look`` returns as soon as that differs from ``seen``, or at the deadline.

        Args:
            root: Path of the store's folder.
            rollout: Path of the rollout's folder below it, ``namespace/rollout``; either may not exist yet.
            look: Lists what is stored now.
            seen: What it returned before.
            deadline: In seconds of ``time.monotonic()``.

        Returns:
            None if there is no inotify here, or none left for this user: then the caller polls.
        """
        inotify = self._take()
        if inotify is None:
            return None
        process = os.getpid()
        watch = _Watch(inotify, root, rollout)
        known = list(seen)
        try:
            while os.getpid() == process and watch.arm():  # before the look, so that no change falls between
                names = look()
                left = deadline - time.monotonic()
                if left <= 0 or names != known:
                    return names
                watch.wait(min(left, LOOK_AGAIN))
            return None
        finally:
            if os.getpid() == process:
                watch.disarm()
                self._give_back(inotify)
            else:  # a signal handler forked, and this is the child
                inotify.close()

    def _take(self) -> INotify | None:
        if self._process != os.getpid():
            self._close_idle()
            self._process = os.getpid()
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        try:
            from inotify_simple import INotify  # noqa: PLC0415 - Linux only

            return INotify()
        except (ImportError, AttributeError, OSError):
            return None

    def _give_back(self, inotify: INotify) -> None:
        if len(self._idle) < _IDLE:
            self._idle.append(inotify)
            if self._closed:
                self._close_idle()
        else:
            inotify.close()


class _Watch:
    """One wait's watches: on the rollout's folder if it exists, else on those above it."""

    def __init__(self, inotify: INotify, root: str, rollout: str) -> None:
        from inotify_simple import flags  # noqa: PLC0415 - Linux only

        namespace, _, name = rollout.partition("/")
        path = os.path.join(root, namespace)
        # Each level: its path, and which new entry in it matters (None: every change).
        self._levels = ((root, namespace), (path, name), (os.path.join(path, name), None))
        self._mask = flags.CREATE | flags.MOVED_TO | flags.DELETE | flags.MOVED_FROM
        self._mask |= flags.DELETE_SELF | flags.MOVE_SELF | flags.ONLYDIR
        self._inotify = inotify
        self._watches: dict[int, str | None] = {}

    def arm(self) -> bool:
        """Watches, from the outside in, so that no new folder is missed; False if the limit of watches is reached."""
        if None in self._watches.values():
            return True
        try:
            for path, entry in self._levels:
                self._watches[self._inotify.add_watch(path, self._mask)] = entry
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False
        self._remove([watch for watch, entry in self._watches.items() if entry is not None])
        return True

    def wait(self, timeout: float) -> None:
        """Returns after an event that matters, or ``timeout`` seconds."""
        until = time.monotonic() + timeout
        while True:
            left = until - time.monotonic()
            events = self._inotify.read(timeout=max(0, -int(-left * 1000 // 1)))
            if any(self._matters(event.wd, event.name) for event in events) or left <= 0:
                return

    def _matters(self, watch: int, name: str) -> bool:
        if watch not in self._watches:  # an earlier wait's, unless the queue overflowed
            return watch < 0
        if not name:  # the watched folder itself was removed: its watch has ended
            self._remove([watch])
            return True
        return self._watches[watch] in (None, name)

    def disarm(self) -> None:
        """Removes all watches."""
        self._remove(list(self._watches))

    def _remove(self, watches: list[int]) -> None:
        for watch in watches:
            del self._watches[watch]
            with contextlib.suppress(OSError):
                self._inotify.rm_watch(watch)
