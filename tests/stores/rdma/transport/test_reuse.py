"""A producer that reuses its memory all the time under readers, and readers that die: right bytes or none, no leak."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from fastdeploy_routing_plugins.arena.pool import Pool
from fastdeploy_routing_plugins.arena.reading import ReadArena
from fastdeploy_routing_plugins.backend import Blob
from fastdeploy_routing_plugins.errors import AbsentError, ArenaError, NotFoundError, RoutingError, SupersededError
from fastdeploy_routing_plugins.stores.rdma.place import OwnerInfo, Place, encode
from fastdeploy_routing_plugins.stores.rdma.transport.base import Source, Wanted
from fastdeploy_routing_plugins.stores.rdma.transport.shm import ShmSource
from fastdeploy_routing_plugins.stores.rdma.transport.tcp import TcpSource

from ...helpers import Children
from .process import Process, soon, until
from .producing import Board, is_whole, name_of, want

SECONDS = float(os.environ.get("FD_ROUTING_TEST_SOAK_SECONDS", "0.4"))
KILLS = int(os.environ.get("FD_ROUTING_TEST_KILLS", "12"))
SLOTS = 4
PATIENCE = 30.0  # s more, where other tests leave so little of the processor that all was gone each time


def opened(kind: str, info: OwnerInfo) -> Source:
    return ShmSource(info, Pool()) if kind == "shm" else TcpSource(info, "", Pool())


def hunt(source: Source, board: Board, seconds: float, seed: int, *, view: bool, room: bool = False) -> Counter[str]:
    """Reads from places that are true, or were a moment ago; returns how often it got what.

    With ``room``, there is a place for what comes.
    """
    chosen = random.Random(seed)
    seen: Counter[str] = Counter()
    held: list[tuple[Blob, str]] = []
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end or (not seen["whole"] and now < end + PATIENCE):
        slots = [chosen.randrange(SLOTS) for _ in range(chosen.choice([1, 1, 3]))]
        places = [(name_of(slot), place) for slot in slots if (place := board.read(slot))]
        time.sleep(chosen.choice([0, 0, 0.0005]))
        if room:
            found = _into_rooms(source, places)
        else:
            found = source.read([want(*each) for each in places], soon(), view=view)
        for each, (name, _) in zip(found, places, strict=True):
            if isinstance(each, Blob):
                seen["whole" if is_whole(each, name) else "WRONG"] += 1
                held.append((each, name))
            else:
                seen["gone" if isinstance(each, (AbsentError, SupersededError)) else type(each).__name__] += 1
        while len(held) > chosen.randrange(4):
            if not is_whole(*held.pop(0)):
                seen["CHANGED"] += 1
    return seen


def _into_rooms(source: Source, places: list[tuple[str, Place]]) -> list[Blob | RoutingError]:
    found: list[Blob | RoutingError] = [NotFoundError("left out")] * len(places)
    wanted = [Wanted(*each, None, memoryview(bytearray(each[1].payload_bytes))) for each in places]

    def take(index: int, blob: Blob) -> None:
        assert blob.payload[0] is wanted[index].into
        found[index] = blob

    source.each(wanted, soon(), take, view=True)
    return found


@pytest.fixture(scope="module")
def churner(shared_folder: str) -> Iterator[tuple[Process, str]]:
    """A producer, and where it can put a board."""
    folder = tempfile.mkdtemp(dir=shared_folder)
    with Process(folder) as producer:
        yield producer, os.path.join(folder, "board")
    os.unlink(os.path.join(folder, "board"))
    assert os.listdir(folder) == []


@pytest.mark.parametrize("lent", [False, True])
@pytest.mark.parametrize("way", ["copy", "copy without a pin", "view", "shm, to a place", "tcp", "tcp, to a place"])
def test_no_reader_sees_another_objects_bytes(
    churner: tuple[Process, str], way: str, lent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "copy without a pin":

        def pin(*_: object) -> None:
            raise ArenaError("all pins are in use")

        monkeypatch.setattr(ReadArena, "pin", pin)
    producer, path = churner
    board = Board(path, SLOTS)
    producer.ask("churn", path, SLOTS, lent)
    source = opened("tcp" if way.startswith("tcp") else "shm", producer.info)
    seen = hunt(source, board, SECONDS, 5, view=way == "view", room="place" in way)
    count = producer.ask("calm")
    source.close()
    used = until(lambda: producer.ask("leases") == 0) and producer.ask("used")
    board.close()
    assert (set(seen) <= {"whole", "gone"}, seen["whole"] > 0, count > SLOTS, used) == (True, True, True, 0), seen


def test_a_view_keeps_the_churn_off(churner: tuple[Process, str]) -> None:
    producer, path = churner
    board = Board(path, SLOTS)
    producer.ask("churn", path, SLOTS, False)
    source = ShmSource(producer.info, Pool())
    found = None
    while not isinstance(found, Blob):
        place = board.read(0)
        assert place is not None
        found = source.read([want(name_of(0), place)], soon(), view=True)[0]
    time.sleep(0.2)
    whole = is_whole(found, name_of(0))
    source.close()
    del found
    count = producer.ask("calm")
    board.close()
    assert (whole, count > 50, producer.ask("used")) == (True, True, 0)


def read_for_ever(kind: str, info: str, board: str) -> None:
    """What a reader does that is going to be killed."""
    from fastdeploy_routing_plugins.stores.rdma.place import decode

    hunt(opened(kind, decode(bytes.fromhex(info), OwnerInfo)), Board(board, SLOTS), 600, os.getpid(), view=True)


def test_readers_that_are_killed_leave_no_block_behind(churner: tuple[Process, str]) -> None:
    producer, path = churner
    chosen = random.Random(4)
    readers = Children(__name__.removeprefix("tests."))
    Board(path, SLOTS).close()
    producer.ask("churn", path, SLOTS, True)
    info = encode(producer.info).hex()
    running: list[int] = []
    for number in range(KILLS):
        running.append(readers.start("read_for_ever", "shm" if number % 4 else "tcp", info, path))
        time.sleep(chosen.uniform(0, 0.05))
        if len(running) > 2:
            kill(running.pop(chosen.randrange(len(running))), readers)
    time.sleep(0.1)
    for pid in running:
        kill(pid, readers)
    producer.ask("calm")
    used = until(lambda: producer.ask("leases") == 0) and producer.ask("used")
    until(lambda: producer.ask("connections") == 0)
    readers.close()
    assert used == 0


def kill(pid: int, readers: Children) -> None:
    os.kill(pid, signal.SIGKILL)
    assert readers.wait(pid) == -signal.SIGKILL
