"""From a writer's arena to readers in other processes: kept in place, served, given back; whoever dies in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fastdeploy_routing_plugins import RoutingSchema, RoutingWriter, open_store, open_writer
from fastdeploy_routing_plugins.errors import AbsentError, DeletedError, EvictedError, StoreError

SCHEMA = RoutingSchema(num_experts=16, top_k=4, layer_ids=range(1, 7))
PATIENCE = 30.0
MIB = 1 << 20
ENGINE = """
import json, os, sys, time
import numpy as np
from fastdeploy_routing_plugins import RoutingSchema, open_writer
schema = RoutingSchema(num_experts=16, top_k=4, layer_ids=range(1, 7))
ids = np.tile(np.arange(4, dtype=np.uint8), (6, 50, 1))
writer = open_writer(json.loads(sys.argv[1]), schema=schema, limits=json.loads(sys.argv[2]))
for name in sys.argv[3:]:
    writer.submit(name, ids).result(30)
print(writer.stats().worker_pid, flush=True)
if sys.stdin.readline().strip() == "close":
    writer.close()
"""


def routing(seed: int = 0, tokens: int = 50) -> npt.NDArray[np.uint8]:
    first = np.random.default_rng(seed).integers(16, size=(6, tokens, 1))
    return ((first + 4 * np.arange(4)) % 16).astype(np.uint8)


@dataclass
class Place:
    """A namespace of its own, over a service that this process embeds."""

    folder: Path
    namespace: str
    transport: str

    def config(self, **options: Any) -> dict[str, Any]:
        own = {"namespace": self.namespace, "transport": self.transport, "arena_dir": str(self.folder)}
        return {"routing_store_type": "rdma", "routing_store_config": {**own, "capacity": 8 * MIB, **options}}

    @property
    def limits(self) -> dict[str, Any]:
        return {"arena_bytes": 8 * MIB, "arena_dir": str(self.folder)}

    def writer(self, **options: Any) -> RoutingWriter:
        return open_writer(self.config(producer="engine", **options), schema=SCHEMA, limits=self.limits)

    def engine(self, *names: str, **options: Any) -> subprocess.Popen[str]:
        import json

        command = [sys.executable, "-c", ENGINE, json.dumps(self.config(producer="engine", **options))]
        return subprocess.Popen(
            [*command, json.dumps(self.limits), *names], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )


@pytest.fixture(params=["shm", "tcp"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    folder = Path("/dev/shm") / f"fd-routing-test-{os.getpid()}-{time.monotonic_ns()}"
    folder.mkdir()
    try:
        yield Place(folder, f"writer-{time.monotonic_ns()}", request.param)
    finally:
        until(lambda: not [name for name in os.listdir(folder) if name.endswith((".arena", ".shelf"))], within=90)
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def until(what: Any, *, within: float = PATIENCE) -> Any:
    end = time.monotonic() + within
    while not (found := what()):
        assert time.monotonic() < end, f"not within {within} s"
        time.sleep(0.02)
    return found


def test_what_a_writer_submits_is_read_elsewhere(place: Place) -> None:
    with open_store(place.config(), schema=SCHEMA) as store, place.writer(linger=0) as writer:
        writer.submit("x:1", routing(1)).result(PATIENCE)
        assert np.array_equal(store.get("x:1", timeout=PATIENCE).routing, routing(1))


def test_parts_stay_in_the_arena(place: Place) -> None:
    with place.writer(linger=0) as writer:
        writer.submit("x:1", routing(1)).result(PATIENCE)
        assert writer.stats().retained_bytes == routing(1).nbytes


def test_token_first_parts_are_kept_too(place: Place) -> None:
    with open_store(place.config(), schema=SCHEMA) as store, place.writer(linger=0) as writer:
        reservation = writer.reserve("x:1", 50, layout="token_first")
        reservation.view[...] = routing(1).transpose(1, 0, 2)
        reservation.publish().result(PATIENCE)
        assert np.array_equal(store.get("x:1", timeout=PATIENCE).routing, routing(1))


def test_released_parts_give_their_room_back(place: Place) -> None:
    with open_store(place.config(), schema=SCHEMA) as store, place.writer(linger=0) as writer:
        before = writer.stats().arena_free_bytes
        writer.submit("x:1", routing(1)).result(PATIENCE)
        store.delete("x:1")
        assert until(lambda: writer.stats().arena_free_bytes == before)


def test_deleted_parts_are_known_as_deleted(place: Place) -> None:
    with open_store(place.config(), schema=SCHEMA) as store, place.writer(linger=0) as writer:
        writer.submit("x:1", routing(1)).result(PATIENCE)
        store.delete("x:1")
        with pytest.raises(DeletedError):
            store.get("x:1")


def test_parts_of_a_killed_worker_are_readable_again(place: Place) -> None:
    with open_store(place.config(), schema=SCHEMA) as store, place.writer(linger=0) as writer:
        for number in range(5):
            writer.submit(f"x:{number}", routing(number)).result(PATIENCE)
        turned = writer.reserve("x:9", 50, layout="token_first")
        turned.view[...] = routing(9).transpose(1, 0, 2)
        turned.publish().result(PATIENCE)
        os.kill(writer.stats().worker_pid, signal.SIGKILL)
        writer.submit("y", routing(7)).result(PATIENCE)
        for number in (0, 1, 2, 3, 4, 9):
            assert np.array_equal(read(store, f"x:{number}"), routing(number))


def read(store: Any, key: str) -> npt.NDArray[Any]:
    """Reads, trying again while the store says that a retry may help."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            found: npt.NDArray[Any] = store.get(key, timeout=5).routing
        except StoreError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return found


def test_a_killed_worker_brings_nothing_deleted_back(place: Place) -> None:
    with open_store(place.config(), schema=SCHEMA) as store, place.writer(linger=0) as writer:
        writer.submit("x:1", routing(1)).result(PATIENCE)
        writer.submit("x:2", routing(2)).result(PATIENCE)
        store.delete("x:1")
        os.kill(writer.stats().worker_pid, signal.SIGKILL)
        writer.submit("y", routing(7)).result(PATIENCE)
        assert np.array_equal(read(store, "x:2"), routing(2))
        with pytest.raises(AbsentError):
            store.get("x:1")


def test_a_worker_lingers_for_readers_after_the_engine_closed(place: Place) -> None:
    with open_store(place.config(), schema=SCHEMA) as store:
        with place.engine("x:1") as engine:
            assert engine.stdout is not None
            worker = int(engine.stdout.readline())
            engine.communicate("close\n", timeout=PATIENCE)
        assert store.get("x:1", timeout=5).routing.shape == (6, 50, 4)
        store.delete("x:1")
        assert until(lambda: not os.path.exists(f"/proc/{worker}"))


def test_a_worker_lingers_for_readers_after_the_engine_was_killed(place: Place) -> None:
    with open_store(place.config(), schema=SCHEMA) as store:
        with place.engine("x:1", "x:2") as engine:
            assert engine.stdout is not None
            engine.stdout.readline()
            engine.kill()
        assert store.get("x:2", timeout=5).routing.shape == (6, 50, 4)
        store.delete("x:1", "x:2")


def test_a_lingering_worker_ends_in_time(place: Place) -> None:
    with open_store(place.config(), schema=SCHEMA) as store:
        with place.engine("x:1", linger=0.5) as engine:
            assert engine.stdout is not None
            worker = int(engine.stdout.readline())
            engine.communicate("close\n", timeout=PATIENCE)
        until(lambda: not os.path.exists(f"/proc/{worker}"))
        with pytest.raises(EvictedError):
            store.get("x:1")


def kill_both(engine: subprocess.Popen[str]) -> None:
    """Kills an engine that has said who its worker is, and the worker."""
    with engine:
        assert engine.stdout is not None
        worker = int(engine.stdout.readline())
        engine.kill()
        os.kill(worker, signal.SIGKILL)
    until(lambda: not os.path.exists(f"/proc/{worker}"))


def leave_behind(place: Place) -> None:
    """Hands x:1 over, and kills engine and worker."""
    kill_both(place.engine("x:1", linger=0))


def test_the_next_engine_takes_over_after_engine_and_worker_were_killed(place: Place) -> None:
    with open_store(place.config(), schema=SCHEMA) as store:
        leave_behind(place)
        with place.writer(linger=0) as writer:
            assert np.array_equal(read(store, "x:1")[0, 0], np.arange(4))
            writer.submit("x:2", routing(2)).result(PATIENCE)
            store.delete("x:1")


def test_with_evict_the_oldest_rollouts_go(place: Place) -> None:
    big = {"when_full": "evict", "linger": 0}
    with open_store(place.config(), schema=SCHEMA) as store, place.writer(**big) as writer:
        for number in range(20):
            writer.submit(f"x:{number}", routing(number, tokens=40_000)).result(PATIENCE)
        with pytest.raises(EvictedError):
            store.get("x:0")
        assert np.array_equal(store.get("x:19").routing, routing(19, tokens=40_000))


@pytest.mark.parametrize("capacity", [64 * MIB])
@pytest.mark.parametrize(
    ("count", "least", "most"), [(1500, 1, 50), (24, 40_000, 40_000), (16, 130_000, 130_000), (60, 1, 90_000)]
)
def test_with_evict_an_engine_never_runs_out_of_room(
    place: Place, capacity: int, count: int, least: int, most: int
) -> None:
    sizes = np.random.default_rng(count).integers(least, most + 1, size=count).tolist()
    arrays = [routing(number, size) for number, size in enumerate(sizes)]
    assert count * 3 * 4096 + sum(array.nbytes for array in arrays) > 2 * 8 * MIB
    config = place.config(producer="engine", when_full="evict", linger=0, capacity=capacity)
    limits = {**place.limits, "on_full_wait": PATIENCE}
    with (
        open_store(place.config(), schema=SCHEMA) as store,
        open_writer(config, schema=SCHEMA, limits=limits) as writer,
    ):
        for number, array in enumerate(arrays):
            writer.submit(f"x:{number}", array)
        assert writer.flush().stored == count
        held = [status.key.rollout_id for status in store.list()]
        assert np.array_equal(store.get(f"x:{count - 1}").routing, arrays[-1])
        with pytest.raises(EvictedError):
            store.get("x:0")
        assert sum(arrays[int(name[2:])].nbytes for name in held) > (0 if least == 1 and most == 50 else 1.5 * MIB)


def test_without_it_a_full_producer_refuses(place: Place) -> None:
    with open_store(place.config(capacity=2 * MIB), schema=SCHEMA) as store:
        store.put("x:0", routing(0, tokens=40_000))
        with pytest.raises(StoreError, match="no room"):
            store.put("x:1", routing(1, tokens=60_000))
        assert np.array_equal(store.get("x:0").routing, routing(0, tokens=40_000))


def test_what_was_copied_for_readers_lingers_too(place: Place) -> None:
    with open_store(place.config(), schema=SCHEMA) as store:
        with place.writer() as writer:
            writer.submit("x:1", routing(1).astype(np.int64)).result(PATIENCE)
            began = time.monotonic()
        assert time.monotonic() - began < 4.0
        assert np.array_equal(store.get("x:1").routing, routing(1))
        store.delete("x:1")


def clean(place: Place, *options: str) -> subprocess.CompletedProcess[str]:
    run = "from fastdeploy_routing_plugins.cli.main import main; main()"
    command = [sys.executable, "-c", run, "clean", "--arena-dir", str(place.folder), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_clean_leaves_what_the_next_engine_takes_over(place: Place) -> None:
    with open_store(place.config(), schema=SCHEMA) as store:
        leave_behind(place)
        assert clean(place).returncode == 1
        with place.writer(linger=0):
            assert np.array_equal(read(store, "x:1")[0, 0], np.arange(4))
            store.delete("x:1")


def test_clean_leaves_a_worker_alone_that_serves_readers(place: Place) -> None:
    with open_store(place.config(), schema=SCHEMA) as store:
        with place.engine("x:1") as engine:
            assert engine.stdout is not None
            engine.stdout.readline()
            engine.communicate("close\n", timeout=PATIENCE)
        assert clean(place, "--kill", "--wait", "0").returncode == 0
        assert store.get("x:1", timeout=5).routing.shape == (6, 50, 4)
        store.delete("x:1")
