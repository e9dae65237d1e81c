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
from .conftest import Start, need_mooncake
from .impostor import METADATA, PROBE
from .remote import Remote

need_mooncake()

SECONDS = float(os.environ.get("FD_ROUTING_TEST_SOAK_SECONDS", "1"))


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


@pytest.fixture(scope="module")
def pair(module_start: Start, folder: str) -> tuple[Remote, Remote]:
    """A producer and a reader that nothing happens to."""
    cast = Cast(module_start, folder)
    return cast.producer(), cast.reader()


def put(producer: Remote, name: str = "it", seed: int = 1, nbytes: int = 8 * MIB) -> tuple[object, object]:
    place = producer("put", name, seed, nbytes)
    return producer("info"), (name, place)


def whole(name: str = "it", seed: int = 1, nbytes: int = 8 * MIB) -> list[tuple[object, ...]]:
    return [(header_of(name, seed), (nbytes, digest(content(seed, nbytes))))]


@pytest.mark.parametrize("sizes", [[4096, 65_536], [262_144, 1_048_576]], ids=["small", "large"])
def test_a_read_that_meets_a_reuse_is_whole_or_moved(cast: Cast, tmp_path: Path, sizes: list[int]) -> None:
    producer, reader, board = cast.producer(), cast.reader(), str(tmp_path / "board")
    producer.tell("churn", board, SECONDS + 0.5, sizes)
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


@pytest.mark.skipif(ON_DEVICE, reason="a network card reads a frozen process's memory all the same")
def test_receive_memory_that_never_comes_back_is_replaced(cast: Cast) -> None:
    for_ever = {"MC_TCP_STATUS_TIMEOUT_SEC": "600", "MC_TCP_PROGRESS_TIMEOUT_SEC": "600"}
    frozen, producer, reader = cast.producer(), cast.producer(), cast.start(**for_ever)
    reader("open", 32 * MIB)
    info, it = put(frozen, nbytes=7 * MIB)
    reader("read", info, it)
    frozen.signal(signal.SIGSTOP)
    for _ in range(4):
        reader("begin", "timed", info, it, timeout=0.5)
    assert {reader("result")[0] for _ in range(4)} == {"store_unavailable"}
    healthy, other = put(producer, nbytes=7 * MIB)
    told = [reader("timed", healthy, other, timeout=10.0 if last else 0.3)[0] for last in (False, True)]
    assert told == ["store_unavailable", whole(nbytes=7 * MIB)]


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
    reader("begin", "timed", *stuck, timeout=20.0)
    told, seconds = reader("timed", info, it, timeout=20.0)
    assert (told, seconds < 15, reader("result")[0]) == (whole(), True, "store_unavailable")


@pytest.mark.parametrize("silent_at", [PROBE, METADATA], ids=["at the probe", "after the probe"])
def test_a_peer_that_goes_silent_in_its_first_contact_holds_up_nobody_for_long(cast: Cast, silent_at: int) -> None:
    impostor, producer, reader = cast.start(), cast.producer(), cast.reader()
    info, it = put(producer)
    reader("read", info, it)
    silent = msgspec.structs.replace(info, owner=uuid.uuid4().hex, rdma=impostor("impostor", silent_at))
    reader("begin", "timed", silent, it, timeout=3.0)
    time.sleep(0.3)
    told, seconds = reader("timed", info, it, timeout=20.0)
    assert (told, seconds < 15, reader("result")[0]) == (whole(), True, "store_unavailable")


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


@pytest.mark.parametrize("segment", ["", "nonsense", "127.0.0.1:99999999", "127.0.0.1:x", "[::1", "\udcff:1"])
def test_a_name_that_is_none_is_unavailable(pair: tuple[Remote, Remote], segment: str) -> None:
    producer, reader = pair
    info, it = put(producer, f"named {segment!r}", nbytes=5000)
    named = msgspec.structs.replace(info, rdma=("" if ON_DEVICE else "tcp/") + segment)
    expected = "unsupported" if ON_DEVICE and not segment else "store_unavailable"
    assert reader("timed", named, it, timeout=20.0)[0] == expected


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
