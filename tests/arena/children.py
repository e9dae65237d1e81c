"""Processes that the arena's tests start: ``python children.py ROLE ARGUMENTS``. They end with their input."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time

from fastdeploy_routing_plugins.arena import file as files
from fastdeploy_routing_plugins.arena.arena import Arena
from fastdeploy_routing_plugins.arena.pins import Pins
from fastdeploy_routing_plugins.arena.view import ArenaView
from fastdeploy_routing_plugins.errors import ArenaError


def say(*words: object) -> None:
    print(*words, flush=True)


def wait() -> None:
    """Waits for a line, or for the end of the input."""
    sys.stdin.readline()


def own(folder: str, blocks: str) -> None:
    """Owns an arena with some published blocks."""
    arena = Arena.create(folder, 1 << 20, b"a text")
    for number in range(int(blocks)):
        block = arena.allocate(b"%d" % number, 0)
        assert block is not None
        arena.publish(block)
    say(arena.file.path)
    wait()


def own_with_worker(folder: str) -> None:
    """Owns an arena whose descriptor another process inherits."""
    arena = Arena.create(folder, 1 << 20, b"a text")
    worker = subprocess.Popen(["sleep", "600"], pass_fds=[arena.file.fd], stdout=subprocess.DEVNULL)
    say(worker.pid, arena.file.path)
    wait()


def own_and_fork(folder: str) -> None:
    """Owns an arena and has a forked child that let go of it, as the writer's children do."""
    arena = Arena.create(folder, 1 << 20, b"a text")
    block = arena.allocate(b"", 4096)
    assert block is not None
    view = arena.array(block, (4096,), "u1")
    pid = os.fork()
    if pid == 0:
        arena.forget()
        time.sleep(600 + float(view[0]))  # goes on looking at the arena's memory
        os._exit(0)
    say(pid, arena.file.path)
    wait()


def half(folder: str, size: str, locked: str) -> None:
    """Began to make an arena."""
    path = os.path.join(folder, f"fd-routing-{os.geteuid()}-{os.urandom(8).hex()}.arena")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    if int(locked):
        fcntl.flock(fd, fcntl.LOCK_EX)
    os.ftruncate(fd, int(size))
    say(path)
    wait()


def take() -> None:
    """Takes the arenas whose paths it reads; keeps each until it reads the next line."""
    say("ready")
    for line in sys.stdin:
        file = files.take(line.rstrip("\n"))
        say("none" if file is None else "got")
        wait()
        if file is not None:
            file.close()


def find_and_take() -> None:
    """Does in the folders whose names it reads what a starting worker does; keeps all until it reads the next line."""
    say("ready")
    for line in sys.stdin:
        took = [files.take(found.path) for found in files.find(line.rstrip("\n")) if not found.used]
        kept = [file for file in took if file is not None]
        say(len(kept))
        wait()
        for file in kept:
            file.close()


def create_many(folder: str, count: str) -> None:
    """Makes arenas, and says how many of them are there and its own."""
    say("ready")
    wait()
    made = [files.create(folder, 1 << 18, b"") for _ in range(int(count))]
    whole = [file for file in made if os.path.samestat(os.stat(file.path), os.fstat(file.fd))]
    say(len(whole))
    wait()


def find_many(folder: str) -> None:
    """Looks for arenas again and again; says how many of those it saw were not in use."""
    say("ready")
    stop = threading.Event()
    threading.Thread(target=lambda: (wait(), wait(), stop.set()), daemon=True).start()
    unused = 0
    while not stop.is_set():
        unused += sum(not found.used for found in files.find(folder))
    say(unused)


def pin(path: str, page: str, generation: str) -> None:
    """Pins a block, and gives the pin back when told so."""
    pins = Pins(path)
    slot = pins.pin(int(page), int(generation))
    say(slot)
    wait()
    pins.unpin(slot)
    say("unpinned")
    wait()


def pin_and_fork(path: str, page: str, generation: str) -> None:
    """Pins a block and forks; the child says what pinning again did, closes the pins, and stays."""
    pins = Pins(path)
    slot = pins.pin(int(page), int(generation))
    pid = os.fork()
    if pid == 0:
        try:
            answer = pins.pin(int(page), int(generation))
        except ArenaError as err:
            answer = err.code
        pins.unpin(slot)
        pins.close()
        say(os.getpid(), answer)
        time.sleep(600)
        os._exit(0)
    wait()


def read(path: str) -> None:
    """Reads what is published, by its own mapping, and marks it done."""
    view = ArenaView(files.peek(path))
    for block in view.published():
        say(block.sequence, bytes(view.payload(block)).decode())
        view.mark(block, 2)
    say("end")
    wait()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
