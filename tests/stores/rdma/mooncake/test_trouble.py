"""What becomes of reads when producers die, freeze, come back, or are not who they were."""

from __future__ import annotations

import os
import signal
import time
import uuid
from pathlib import Path

import msgspec
import pytest

from .agent import MIB, ON_DEVICE, content, digest, header_of
from .conftest import Start
from .impostor import METADATA, PROBE
from .remote import Remote

SECONDS = float(os.environ.get("FD_ROUTING_TEST_SOAK_SECONDS", "2"))


class Cast:
    """Starts producers and readers.

    Attributes:
        start: Starts a process that is neither.
    """

    def __init__(self, start: Start, folder: str) -> None:
        self.start = start
        self._folder = folder

    def producer(self, **environ: str) -> Remote:
        producer = self.start(**environ)
        producer("open")
        producer("serve", self._folder)
        return producer

    def reader(self) -> Remote:
        reader = self.start()
        reader("open", 64 * MIB)
        return reader


@pytest.fixture
def cast(start: Start, folder: str) -> Cast:
    return Cast(start, folder)


def put(producer: Remote, name: str = "it", seed: int = 1, nbytes: int = 8 * MIB) -> tuple[object, object]:
    place = producer("put", name, seed, nbytes)
    return producer("info"), (name, place)


def whole(name: str = "it", seed: int = 1, nbytes: int = 8 * MIB) -> list[tuple[object, ...]]:
    return [(header_of(name, seed), (nbytes, digest(content(seed, nbytes))))]


@pytest.mark.parametrize("sizes", [[4096, 65_536], [262_144, 1_048_576]], ids=["small", "large"])
def test_a_read_that_meets_a_reuse_is_whole_or_moved(cast: Cast, tmp_path: Path, sizes: list[int]) -> None:
    producer, reader, board = cast.producer(), cast.reader(), str(tmp_path / "board")
    producer.tell("churn", board, SECONDS + 1, sizes)
    while not Path(board).exists() or Path(board).stat().st_size == 0:
        time.sleep(0.01)
    counts = reader("race", board, SECONDS)
    producer.answer()
    assert set(counts) == {"whole", "moved"}
    assert min(counts.values()) > 0


def test_a_producer_killed_in_mid_read_is_unavailable_within_the_deadline(cast: Cast) -> None:
    producer, reader = cast.producer(), cast.reader()
    info, it = put(producer)
    reader("read", info, it)
    reader.tell("read_until_error", info, it, timeout=10.0)
    time.sleep(0.3)
    producer.signal(signal.SIGKILL)
    code, seconds, _ = reader.answer()
    assert (code, seconds < 15) == ("store_unavailable", True)


def test_a_dead_producer_never_met_is_unavailable_at_once(cast: Cast) -> None:
    producer, reader = cast.producer(), cast.reader()
    info, it = put(producer)
    producer.kill()
    told, seconds = reader("timed", info, it, timeout=20.0)
    assert (told, seconds < 10) == ("store_unavailable", True)


@pytest.mark.skipif(ON_DEVICE, reason="a network card reads a frozen process's memory all the same")
def test_a_frozen_producer_is_unavailable_at_the_deadline_and_its_memory_quarantined(cast: Cast) -> None:
    producer, reader = cast.producer(), cast.reader()
    info, it = put(producer)
    reader("read", info, it)
    producer.signal(signal.SIGSTOP)
    told, seconds = reader("timed", info, it, timeout=0.5)
    held, quarantined = reader("memory")
    assert (told, 0.5 <= seconds < 1.5, held > 8 * MIB, quarantined) == ("store_unavailable", True, True, 1)


@pytest.mark.skipif(ON_DEVICE, reason="a network card reads a frozen process's memory all the same")
def test_quarantined_memory_comes_back_and_reading_goes_on_when_a_producer_thaws(cast: Cast) -> None:
    producer, reader = cast.producer(), cast.reader()
    info, it = put(producer)
    reader.tell("read_until_error", info, it, timeout=0.5)
    time.sleep(0.5)
    producer.signal(signal.SIGSTOP)
    assert reader.answer()[0] == "store_unavailable"
    producer.signal(signal.SIGCONT)
    assert reader("settle")
    assert reader("read", info, it) == whole()


def test_a_producer_without_a_sign_of_life_is_not_contacted(cast: Cast) -> None:
    producer, reader = cast.producer(), cast.reader()
    info, it = put(producer)
    producer.signal(signal.SIGSTOP)
    reader("set_fresh", False)
    told, seconds = reader("timed", info, it, timeout=20.0)
    assert (told, seconds < 5) == ("store_unavailable", True)


def test_a_producer_frozen_before_its_first_contact_holds_up_nobody_else(cast: Cast) -> None:
    frozen, producer, reader = cast.producer(), cast.producer(), cast.reader()
    stuck = put(frozen)
    frozen.signal(signal.SIGSTOP)
    info, it = put(producer)
    reader("begin", "timed", *stuck, timeout=4.0)
    told, seconds = reader("timed", info, it, timeout=20.0)
    assert (told, seconds < 4, reader("result")[0]) == (whole(), True, "store_unavailable")


@pytest.mark.parametrize("silent_at", [PROBE, METADATA], ids=["at the probe", "after the probe"])
def test_a_peer_that_goes_silent_in_its_first_contact_holds_up_nobody_for_long(cast: Cast, silent_at: int) -> None:
    impostor, producer, reader = cast.start(), cast.producer(), cast.reader()
    info, it = put(producer)
    reader("read", info, it)
    silent = msgspec.structs.replace(info, owner=uuid.uuid4().hex, rdma=impostor("impostor", silent_at))
    reader("begin", "timed", silent, it, timeout=6.0)
    time.sleep(0.3)
    told, seconds = reader("timed", info, it, timeout=20.0)
    assert (told, seconds < 6, reader("result")[0]) == (whole(), True, "store_unavailable")


def test_a_name_that_belongs_to_another_owner_now_gets_a_new_engine(cast: Cast) -> None:
    producer, reader = cast.producer(), cast.reader()
    info, it = put(producer)
    reader("read", info, it)
    again = msgspec.structs.replace(info, owner=uuid.uuid4().hex)
    assert reader("read", again, it) == whole()
    assert reader("engines") == 2


@pytest.mark.skipif(ON_DEVICE, reason="only in a network of its own are ports free again at once")
def test_a_producer_that_starts_again_under_the_same_name_is_read_from(cast: Cast) -> None:
    ports = {"MC_MIN_RPC_PORT": "16100", "MC_MAX_RPC_PORT": "16102"}
    producer, reader = cast.producer(**ports), cast.reader()
    first, it = put(producer, seed=1)
    reader("read", first, it)
    producer.kill()
    for seed in range(2, 40):
        producer = cast.producer(**ports)
        info, it = put(producer, seed=seed)
        if info.rdma == first.rdma:
            break
        producer.kill()
    assert info.rdma == first.rdma
    assert reader("read", info, it) == whole(seed=seed)


def test_another_process_under_a_known_name_is_not_taken_for_the_producer(cast: Cast) -> None:
    producer, other, reader = cast.producer(), cast.producer(), cast.reader()
    info, it = put(producer)
    put(other, seed=2)
    mistaken = msgspec.structs.replace(info, rdma=other("info").rdma)
    told, seconds = reader("timed", mistaken, it, timeout=20.0)
    assert (told, seconds < 10) == ("store_unavailable", True)


def test_a_forked_child_reads_with_an_engine_of_its_own(cast: Cast) -> None:
    producer, reader = cast.producer(), cast.reader()
    info, it = put(producer)
    reader("read", info, it)
    assert reader("forked", "read", info, it) == (repr(whole()), 0)
    assert reader("read", info, it) == whole()


def test_what_was_kept_before_a_fork_stays_as_it_is_in_the_child(cast: Cast) -> None:
    producer, reader = cast.producer(), cast.reader()
    info, it = put(producer)
    reader("read", info, it, keep=True)
    assert reader("forked", "kept") == (repr([whole()]), 0)


def test_a_forked_child_of_a_producer_ends(cast: Cast) -> None:
    producer, reader = cast.producer(), cast.reader()
    info, it = put(producer)
    assert producer("forked", "environ")[1] == 0
    assert reader("read", info, it) == whole()


def test_a_process_that_closes_nothing_ends(cast: Cast) -> None:
    producer, reader = cast.producer(), cast.reader()
    info, it = put(producer)
    reader("read", info, it, keep=True)
    reader.tell("exit")
    assert reader.wait() == 0


def test_reading_after_closing_is_refused(cast: Cast) -> None:
    producer, reader = cast.producer(), cast.reader()
    info, it = put(producer)
    reader("read", info, it)
    reader("close")
    assert reader("timed", info, it)[0] == "store_closed"


def test_closing_ends_reads_under_way(cast: Cast) -> None:
    producer, reader = cast.producer(), cast.reader()
    info, it = put(producer)
    reader("begin", "read_until_error", info, it)
    time.sleep(0.3)
    reader("close")
    assert reader("result")[0] == "store_closed"
