"""Counters in shared memory, by which clients of the same host see that nothing changed without asking.

The service increments a counter after it applied a change and before it answers anybody, so a client whose counters
are as they were when it was told something knows that it still is so. The file, all words u64 in the host's order::

    0 magic   1 key   2 buckets   3 ground   4 beat   5 producers   6 settled   7 ended
    8.. buckets   then as many crowds

*Key* is random for each start of a service and stands in its welcome. *Ground* counts what concerns every name: a new
service at the same address, and changes of an owner's state. *Beat* is when the service last looked, in nanoseconds of
``CLOCK_MONOTONIC``: without one for ``FRESH`` seconds, the service is gone, and nothing is known. A bucket counts the
changes of the rollouts whose prefix has the bucket's hash; a crowd, how many names there are of these. Once the
service has *settled*, and knows what producers hold, a rollout in an empty crowd has no name. *Producers* is for a
successor: how many it has to expect. A service that was stopped leaves its page to it if there are any, and says when
it *ended*, in the same nanoseconds.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import re
import stat
import sys
import time
from functools import lru_cache
from typing import Final

import xxhash

MAGIC: Final = int.from_bytes(b"FDPAGE2\n", "little")
BUCKETS: Final = 16_384
FRESH: Final = 2.0  # s
_KEY, _BUCKETS, _GROUND, _BEAT, _PRODUCERS, _SETTLED, _ENDED, _FIRST = 1, 2, 3, 4, 5, 6, 7, 8
_CROWDS: Final = _FIRST + BUCKETS
_NBYTES: Final = 8 * (_CROWDS + BUCKETS)
_FOLDER: Final = "/dev/shm"  # noqa: S108 - a tmpfs is needed
_NAME = re.compile(r"fd-routing-(\d+)-[0-9a-f]{16}\.versions", re.ASCII)
_LEFT: Final = 60.0  # s without a beat after which a page that nobody has locked is a leftover
_TRIES, _PAUSE = 20, 0.001  # to lock a page, and s between: others look whether it is in use
_MASK: Final = 2**64 - 1

_log = logging.getLogger("fastdeploy_routing_plugins.stores.rdma")


def page_path(place: str) -> str:
    """Returns the path of the page of the service at a place: ``host:port``, or a rendezvous file's path."""
    return os.path.join(_FOLDER, f"fd-routing-{os.geteuid()}-{xxhash.xxh3_64_hexdigest(place.encode())}.versions")


@lru_cache(maxsize=1024)  # one change asks several times
def bucket_of(rollout_prefix: str) -> int:
    """Returns the bucket of a rollout, by its names' common prefix."""
    return xxhash.xxh3_64_intdigest(rollout_prefix.encode()) % BUCKETS


class Page:
    """The service's side. Use ``make_page``.

    Attributes:
        path: Its file; empty if there is none, and only this process sees it.
        key: See above.
        inherited: Whether a service had it that ended a moment ago, and left producers behind.
        expected: How many producers that one had.
    """

    def __init__(self, path: str, lock: int, memory: mmap.mmap) -> None:
        self.path = path
        self.lock = lock
        self._memory = memory
        self._words = memoryview(memory).cast("Q")
        words = self._words
        was_ours = words[0] == MAGIC and words[_BUCKETS] == BUCKETS
        age = (time.monotonic_ns() - max(words[_BEAT], words[_ENDED])) / 1e9
        self.inherited = was_ours and 0 <= age < _LEFT
        words[_ENDED] = 0
        self.expected = words[_PRODUCERS] if self.inherited else 0
        # Whoever still looks at a predecessor's numbers must see that they are void, before anything is answered.
        before = words[_GROUND] if was_ours else int.from_bytes(os.urandom(6), "little")
        words[_GROUND] = (before + 1) & _MASK
        words[_SETTLED] = 0  # before the crowds: who sees one that is empty for this reason sees this afterwards
        words[_CROWDS:] = memoryview(bytes(8 * BUCKETS)).cast("Q")
        self.key = int.from_bytes(os.urandom(8), "little")
        words[_KEY] = self.key
        words[_BUCKETS] = BUCKETS
        self.beat()
        words[0] = MAGIC

    def beat(self) -> None:
        """Says that the service lives."""
        self._words[_BEAT] = time.monotonic_ns()

    def expect(self, producers: int) -> None:
        """Tells a successor how many producers there are."""
        self._words[_PRODUCERS] = producers

    @property
    def ground(self) -> int:
        """The counter of what concerns every name."""
        return self._words[_GROUND]

    def shake(self) -> None:
        """Counts a change that concerns every name."""
        self._words[_GROUND] = (self._words[_GROUND] + 1) & _MASK

    def version(self, bucket: int) -> int:
        """Returns a bucket's counter."""
        return self._words[_FIRST + bucket]

    def count(self, bucket: int) -> None:
        """Counts a change in a bucket."""
        self._words[_FIRST + bucket] = (self._words[_FIRST + bucket] + 1) & _MASK

    def crowd(self, bucket: int, more: int) -> None:
        """Counts a name that is new in a bucket (1), or is remembered no longer (-1)."""
        self._words[_CROWDS + bucket] += more

    def settle(self) -> None:
        """Says that the service knows what producers hold."""
        self._words[_SETTLED] = 1

    def close(self, producers: int = 0) -> None:
        """Ends it for everybody, and removes the file unless a successor has to expect producers."""
        if self.path:
            self.shake()
            self._words[_BEAT] = 0
            if producers:
                self.expect(producers)
                self._words[_ENDED] = time.monotonic_ns()
            else:
                self._remove()
        self.forget()

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.lstat(self.path), os.fstat(self.lock)):
                os.unlink(self.path)

    def forget(self) -> None:
        """Unmaps it and gives the lock back, and leaves the file as it is: for a forked child."""
        self._words.release()
        self._memory.close()
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


def make_page(place: str) -> Page:
    """Returns the page of the service at a place; without shared memory, one that nobody else sees."""
    path = page_path(place)
    tidy(besides=path)
    for _ in range(_TRIES):
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        except OSError as err:
            return _private(path, str(err))
        try:
            if _is_ours(path, lock):
                return Page(path, lock, _map(lock))
            why = "another service has it"
        except (OSError, ValueError) as err:
            why = str(err)
        os.close(lock)
        time.sleep(_PAUSE)
    return _private(path, why)


def _is_ours(path: str, lock: int) -> bool:
    """Locks a page's file; returns whether that was possible, and it still is the one at its path."""
    found = os.fstat(lock)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise OSError(errno.EPERM, "it belongs to somebody else")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.lstat(path), found)
    except (BlockingIOError, FileNotFoundError):
        return False


def _map(lock: int) -> mmap.mmap:
    os.fchmod(lock, 0o600)
    if os.fstat(lock).st_size != _NBYTES:
        os.ftruncate(lock, 0)
        os.posix_fallocate(lock, 0, _NBYTES)
    # A mapping keeps a descriptor of its own, which forked children inherit: it must not carry the lock.
    unlocked = os.open(f"/proc/self/fd/{lock}", os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(unlocked, _NBYTES)
    finally:
        os.close(unlocked)


def tidy(besides: str = "") -> None:
    """Removes the pages that killed services of this user left a while ago, but for one."""
    try:
        names = os.listdir(_FOLDER)
    except OSError:
        return
    for name in names:
        path = os.path.join(_FOLDER, name)
        match = _NAME.fullmatch(name)
        if match is None or int(match[1]) != os.geteuid() or path == besides:
            continue
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if _silent_for(fd) > _LEFT and _is_ours(path, fd):
                    os.unlink(path)
            finally:
                os.close(fd)


def _silent_for(fd: int) -> float:
    """Returns the seconds since a page's service last looked, or ended; 0 if that cannot be told."""
    raw = os.pread(fd, 8 * _FIRST, 0)
    if not raw:  # there was no room to make it
        return time.time() - os.fstat(fd).st_mtime
    if len(raw) != 8 * _FIRST or int.from_bytes(raw[:8], sys.byteorder) != MAGIC:
        return 0.0
    last = max(int.from_bytes(raw[8 * at : 8 * at + 8], sys.byteorder) for at in (_BEAT, _ENDED))
    return (time.monotonic_ns() - last) / 1e9


def _private(path: str, why: str) -> Page:
    _log.warning("no page of counters at %s (%s); clients of this host will ask each time", path, why)
    return Page("", -1, mmap.mmap(-1, _NBYTES))


class PageView:
    """A client's side. ``None`` of ``look_at`` means that there is none.

    Attributes:
        key: The key that the service said.
    """

    def __init__(self, memory: mmap.mmap, key: int) -> None:
        self.key = key
        self._words = memoryview(memory).cast("Q")

    def holds(self, bucket: int, version: int, ground: int) -> bool:
        """Whether what was told with these counters still is so."""
        return self.same(bucket, version, ground) and self.lives()

    def same(self, bucket: int, version: int, ground: int) -> bool:
        """Whether the counters are these; that means something if the service ``lives``."""
        words = self._words
        return words[_FIRST + bucket] == version and words[_GROUND] == ground

    def lives(self) -> bool:
        """Whether the service looked a moment ago."""
        return -1_000_000 <= time.monotonic_ns() - self._words[_BEAT] < FRESH * 1e9

    def vacant(self, bucket: int) -> bool:
        """Whether there is certainly no name in a bucket."""
        words = self._words
        return (
            words[_CROWDS + bucket] == 0
            and words[_SETTLED] == 1
            and words[_KEY] == self.key
            and -1_000_000 <= time.monotonic_ns() - words[_BEAT] < FRESH * 1e9
        )


def look_at(path: str, key: int) -> PageView | None:
    """Returns the page of a service that said where it is; None if it is another host's or user's."""
    if not path:
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):  # what the service says may be no path
        return None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_size != _NBYTES:
            return None
        memory = mmap.mmap(fd, _NBYTES, prot=mmap.PROT_READ)
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)
    words = memoryview(memory).cast("Q")
    fits = words[0] == MAGIC and words[_KEY] == key and words[_BUCKETS] == BUCKETS
    words.release()
    return PageView(memory, key) if fits else None
