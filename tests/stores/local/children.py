"""What the child processes of these tests do."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import itertools
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import pytest

from fastdeploy_routing_plugins.errors import AlreadyExistsError, ConfigError, NotFoundError, StoreUnavailableError
from fastdeploy_routing_plugins.stores.local import publish, watch

from ..helpers import Item, descriptors, opened, part, prefix_of, put

UNPRIVILEGED = 65534


def numbered(index: int, run: str = "w") -> Item:
    """The item that a writer puts as its ``index``-th: sizes from nothing to 3 MiB, several to a rollout."""
    tokens = (0, 1, 700, 90_000, 5, 250_000)[index % 6]
    return part(f"{run}:{index // 2}", layers=3, tokens=tokens, top_k=4, start=1000 * (index % 2), seed=str(index))


def write_forever(store_dir: str, run: str) -> None:
    """Opens the store and puts one item after the other until killed."""
    with opened(store_dir) as backend:
        for index in itertools.count():
            put(backend, numbered(index, run))


def write_some(store_dir: str, run: str, count: str) -> None:
    """Puts ``count`` items."""
    with opened(store_dir) as backend:
        for index in range(int(count)):
            put(backend, numbered(index, run))


def contend(store_dir: str, way: str, me: str, rounds: str, gate: str, results: str) -> None:
    """Puts the same names as others do, with other bytes; writes down which puts won."""
    use(way)
    won, stored = [], set()
    with opened(store_dir) as backend:
        with open(gate) as waiting:
            fcntl.flock(waiting, fcntl.LOCK_SH)  # until all have come
        for index in range(int(rounds)):
            item = part(f"c:{index}", tokens=300, seed=me)
            try:
                put(backend, item)
                won.append(index)
            except AlreadyExistsError as err:
                stored.add(err.header)
    assert None not in stored
    Path(results, me).write_text(" ".join(map(str, won)))


def put_and_delete(store_dir: str, me: str, rounds: str) -> None:
    """Puts and deletes one object of a rollout that others treat likewise, so that its folder comes and goes."""
    with opened(store_dir) as backend:
        item = part("folder", start=int(me) * 10)
        for _ in range(int(rounds)):
            put(backend, item)
            assert backend._get(item.name).payload[0] == item.payload
            assert backend._delete([item.name]) == 1


def claim_forever(store_dir: str) -> None:
    """Takes a claim on a name and keeps it."""
    with opened(store_dir) as backend:
        root = backend._opened()
        with root.make(publish.TEMPORARY) as folder, publish._claim(folder, "ns/r/f"):
            Path(store_dir, "..", "claimed").touch()
            while True:
                pass


def fill(store_dir: str) -> None:
    """Puts more than the process may write to one file, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    with opened(store_dir) as backend:
        big = part("big", tokens=200_000)
        with pytest.raises(StoreUnavailableError) as caught:
            put(backend, big)
        assert caught.value.errno == errno.EFBIG
        assert str(big.array.nbytes) in caught.value.message
        assert store_dir in caught.value.message
        assert "ulimit" in caught.value.hint
        assert backend._list("") == []
        assert os.listdir(Path(store_dir, ".tmp")) == []
        small = part("small")
        put(backend, small)
        assert backend._get(small.name).payload[0] == small.payload


def write_unprivileged(store_dir: str) -> None:
    """Puts into a folder that belongs to somebody else."""
    drop_privileges()
    with opened(store_dir) as backend:
        with pytest.raises(StoreUnavailableError, match="mode") as caught:
            put(backend, part("mine"))
        assert caught.value.errno == errno.EACCES


def read_unprivileged(store_dir: str) -> None:
    """Reads, lists and waits in a folder that belongs to somebody else."""
    drop_privileges()
    item = part("theirs")
    with opened(store_dir) as backend:
        assert backend._list("ns/theirs/") == [item.name]
        assert backend._get(item.name).payload[0] == item.payload


def open_unprivileged(store_dir: str) -> None:
    """Opens a store in a place where this user must not create it."""
    drop_privileges()
    with pytest.raises(ConfigError, match="allowed"), opened(store_dir):
        pass


def fork_and_put(store_dir: str) -> None:
    """Forks while the store is open; the child puts, the parent gets."""
    item = part()
    with opened(store_dir) as backend:
        pid = os.fork()
        if pid == 0:
            put(backend, item)
            os._exit(0)
        os.waitpid(pid, 0)
        assert backend._get(item.name).payload[0] == item.payload


def fork_and_wait(store_dir: str) -> None:
    """Parent and child wait at the same time after a fork; the parent is woken by every put as if alone."""
    late = []
    with opened(store_dir) as backend:
        backend._wait(prefix_of("x:before"), [], time.monotonic() + 0.01)
        pid = os.fork()
        if pid == 0:
            while True:
                backend._wait(prefix_of("y:child"), [], time.monotonic() + 60)
        time.sleep(0.1)
        for index in range(20):
            writer = os.fork()
            if writer == 0:
                time.sleep(0.03)
                put(backend, part(f"x:{index}"))
                os._exit(0)
            start = time.monotonic()
            assert backend._wait(prefix_of(f"x:{index}"), [], start + 5)
            late.append(time.monotonic() - start)
            os.waitpid(writer, 0)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert max(late) < 0.25, late


def fork_within_a_wait(store_dir: str) -> None:
    """Forks in a signal handler while waiting; the child's wait goes on without taking the parent's notices."""
    children = []

    def handle(_: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code is not watch._Watch.wait.__code__:
            frame = frame.f_back
        if frame is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            children.append(os.fork())

    signal.signal(signal.SIGALRM, handle)
    with opened(store_dir) as backend:
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.01)  # until it waits
        names = backend._wait(prefix_of("x:1"), [], time.monotonic() + 1.2)
        if children == [0]:
            put(backend, part("x:2"))
            os._exit(0 if names == [] and not backend._watchers._idle else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
        names = backend._wait(prefix_of("x:2"), [], time.monotonic() + 0.1)
    assert names == [part("x:2").name]


def interrupt_calls(store_dir: str, count: str) -> None:
    """Interrupts ``count`` calls at random moments; what they left open and lying about is bounded."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    chance = random.Random(5)
    signal.signal(signal.SIGALRM, interrupt)
    sys.unraisablehook = lambda *_: None  # an interrupt within a finaliser cannot be raised
    interrupted = 0
    items = [part(f"x:{index}", tokens=tokens) for index, tokens in enumerate((5, 40_000))]
    with opened(store_dir) as backend:
        put(backend, items[0])
        backend._wait(prefix_of("x:0"), [], 0)
        before = len(descriptors())
        turns = iter(range(int(count)))
        while True:
            try:
                for turn in turns:
                    item = items[turn % 2]
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 4e-4))
                    with contextlib.suppress(AlreadyExistsError, NotFoundError):  # the call before was cut short
                        backend._delete([item.name])
                        put(backend, item)
                        backend._get(item.name)
                        backend._list("ns/")
                        backend._wait(prefix_of("x:2"), [], time.monotonic() + 0.001)
                signal.setitimer(signal.ITIMER_REAL, 0)
                break
            except KeyboardInterrupt:
                interrupted += 1
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        gc.collect()
        left = len(descriptors()) - before
        locked = [path.name for path in Path(store_dir, ".tmp").iterdir() if _is_locked(path)]
    with opened(store_dir):
        litter = os.listdir(Path(store_dir, ".tmp"))
    assert interrupted > int(count) // 2, interrupted
    assert (left <= 12, locked, litter) == (True, [], []), (left, locked, litter)


def _is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def hold_many(store_dir: str, name: str) -> None:
    """Holds more mappings than the process may have open files."""
    with opened(store_dir) as backend:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        held = [backend._get(name).payload[0] for _ in range(500)]
        assert len({bytes(view[:64]) for view in held}) == 1


def drop_privileges() -> None:
    """Becomes a user whom modes stop."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(UNPRIVILEGED)
        os.setuid(UNPRIVILEGED)


def use(way: str) -> None:
    """Makes this process create files as on a file system without hard links, or without more."""

    def no_links(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    if way != "link":
        os.link = no_links  # type: ignore[assignment]
    if way == "claim":
        publish._rename_noreplace = lambda *_: False
