"""Readers in threads, forked and spawned processes, and workers of Paddle's DataLoader."""

from __future__ import annotations

import copy
import pickle
import random
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

from fastdeploy_routing_plugins import ParallelLayout, RoutingReader
from fastdeploy_routing_plugins import errors as e

from .places import NAMES, SCHEMA, Place, place, routing, run

IDS = [f"w:{number}" for number in range(12)]

HEAD = """
import os, sys, threading, time
import numpy as np
from fastdeploy_routing_plugins import RoutingSchema, open_reader, open_store
from tests.reader.places import SCHEMA, place, routing

IDS = [f"w:{number}" for number in range(12)]
routing()  # NumPy loads its random numbers when they are first used, which a fork must not interrupt


def right(reader, how="get"):
    if how == "batch":
        batch = reader.get_batch(IDS)
        return all(np.array_equal(batch.routing[n], routing(5, n)) for n in range(12))
    return all(np.array_equal(reader.get(key).routing, routing(5, n)) for n, key in enumerate(IDS))


def child(function):
    "Runs a function in a forked child; returns its exit code, 0 if it said True."
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if function() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def fill(place: Place) -> None:
    with place.store() as store:
        for number, key in enumerate(IDS):
            store.put(key, routing(5, number))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a store ``local`` that holds ``IDS``."""
    fill(place("local", tmp_path))
    return tmp_path


# --- threads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_threads_share_a_reader(name: str, tmp_path: Path) -> None:
    there = place(name, tmp_path)
    fill(there)
    wrong: list[object] = []

    def work(reader: RoutingReader, seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(30):
                some = chance.sample(range(12), 3)
                match chance.choice(["get", "batch", "prefetch", "release", "completed"]):
                    case "get":
                        found = {n: reader.get(IDS[n]).routing for n in some}
                    case "batch":
                        found = dict(zip(some, reader.get_batch([IDS[n] for n in some]).routing, strict=True))
                    case "completed":
                        pairs = list(reader.as_completed([IDS[n] for n in some]))
                        found = {IDS.index(str(key)): record.routing for key, record in pairs}  # type: ignore[union-attr]
                    case "prefetch":
                        found = {}
                        reader.prefetch([IDS[n] for n in some])
                    case _:
                        found = {}
                        reader.release([IDS[n] for n in some])
                wrong.extend(n for n, array in found.items() if not np.array_equal(array, routing(5, n)))
        except Exception as err:  # noqa: BLE001 - shown by the test
            wrong.append(err)

    with there.reader(prefetch_records=4) as reader:
        threads = [threading.Thread(target=work, args=(reader, seed)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


@pytest.mark.parametrize("name", NAMES)
def test_closing_under_waiting_threads_ends_them(name: str, tmp_path: Path) -> None:
    reader = place(name, tmp_path).reader()
    ended: list[type[BaseException]] = []
    begun = threading.Barrier(5)

    def wait(batch: bool) -> None:
        begun.wait()
        try:
            reader.get_batch(["never"], 600) if batch else reader.get("never", 600)
        except e.RoutingError as err:
            ended.append(type(err))

    threads = [threading.Thread(target=wait, args=(number % 2 == 0,)) for number in range(4)]
    for thread in threads:
        thread.start()
    begun.wait()
    reader.close()
    for thread in threads:
        thread.join(60)
    assert ended == [e.StoreClosedError] * 4


# --- copies ---------------------------------------------------------------------------------------------------------


def test_a_pickled_reader_is_opened_with_the_same(folder: Path) -> None:
    layout = ParallelLayout(2, cp=2).rank(1)
    with place("local", folder).reader(layout, prefetch_records=3) as reader:
        again = pickle.loads(pickle.dumps(reader))
    with again:
        assert (again.schema, again.layout, again._bounds) == (SCHEMA, layout, reader._bounds)
        np.testing.assert_array_equal(again.get(IDS[0], layers=(0, 8)).routing, routing(5, 0))


def test_a_copy_is_closed_by_itself(folder: Path) -> None:
    with place("local", folder).reader() as reader:
        with copy.copy(reader) as other:
            other.get(IDS[0])
        assert reader.get(IDS[0]).num_tokens == 5


def test_a_copy_opens_nothing_before_it_is_used(folder: Path) -> None:
    with place("local", folder).reader() as reader:
        assert pickle.loads(pickle.dumps(reader))._opened is None


# --- processes ------------------------------------------------------------------------------------------------------

FORKS = {
    "before it was used": "lambda: None",
    "after a get": "lambda: reader.get(IDS[0])",
    "after a batch": "lambda: reader.get_batch(IDS)",
    "while it prefetches": "lambda: reader.prefetch([*IDS, 'never'])",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_forked_child_reads_by_itself_and_leaves_the_parent_alone(name: str, tmp_path: Path) -> None:
    fill(place(name, tmp_path))
    code = f"""
from pathlib import Path
there = place({name!r}, Path({str(tmp_path)!r}))
if there.shelf is not None:
    with there.store() as store:
        for n, key in enumerate(IDS):
            store.put(key, routing(5, n))

def both():
    with reader:
        return right(reader) and right(reader, "batch")

said = {{}}
for when, before in {{{", ".join(f"{when!r}: {code}" for when, code in FORKS.items())}}}.items():
    with there.reader() as reader:
        before()
        said[when] = [child(both), child(both), right(reader), right(reader, "batch")]
print(json.dumps(said))
"""
    assert run(tmp_path, HEAD + code) == {when: [0, 0, True, True] for when in FORKS}


def test_a_fork_while_threads_read_does_not_stop_the_child(folder: Path) -> None:
    code = """
reader = open_reader(CONFIG, schema=SCHEMA)
stop = threading.Event()

def work():
    while not stop.is_set():
        right(reader), right(reader, "batch"), reader.prefetch(IDS), reader.release(IDS)

threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
codes = [child(lambda: right(reader) and right(reader, "batch")) for _ in range(15)]
stop.set()
for thread in threads:
    thread.join()
print(json.dumps([sorted(set(codes)), right(reader)]))
reader.close()
"""
    assert run(folder, HEAD + code) == [[0], True]


def test_no_fork_interrupts_a_library_that_locks(tmp_path: Path) -> None:
    fill(place("sqlite", tmp_path))
    code = f"""
from pathlib import Path
there = place("sqlite", Path({str(tmp_path)!r}))
codes = set()
for _ in range(30):
    with there.reader() as reader:
        reader.prefetch([*IDS, "never"])
        codes |= {{child(lambda: right(reader, "batch")) for _ in range(4)}}
print(json.dumps(sorted(codes)))
"""
    assert run(tmp_path, HEAD + code) == [0]


def test_a_child_of_a_child_reads(folder: Path) -> None:
    code = """
reader = open_reader(CONFIG, schema=SCHEMA)
right(reader, "batch")
print(json.dumps(child(lambda: right(reader, "batch") and child(lambda: right(reader, "batch")) == 0)))
"""
    assert run(folder, HEAD + code) == 0


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_multiprocessing_read(folder: Path, method: str) -> None:
    code = """
import multiprocessing

def read(reader, number):
    with reader:
        return np.array_equal(reader.get_batch([IDS[number]]).routing[0], routing(5, number)), os.getpid()

def start():
    reader = open_reader(CONFIG, schema=SCHEMA)
    reader.get_batch(IDS)
    with multiprocessing.get_context(METHOD).Pool(2) as pool:
        found = pool.starmap(read, [(reader, number) for number in range(12)], chunksize=1)
    reader.get_batch(IDS)
    reader.close()
    print(json.dumps([all(same for same, _ in found), os.getpid() in {pid for _, pid in found}]))

if __name__ == "__main__":
    start()
"""
    assert run(folder, HEAD + code.replace("METHOD", repr(method))) == [True, False]


@pytest.mark.parametrize("shared", [True, False])
def test_workers_of_paddles_dataloader_read(folder: Path, shared: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Paddle's own, at import
        pytest.importorskip("paddle")
    code = f"""
import paddle
from paddle.io import DataLoader, Dataset

class Rollouts(Dataset):
    def __init__(self, reader):
        self.reader = reader

    def __getitem__(self, index):
        return self.reader.get(IDS[index], 60).routing.astype("int64"), os.getpid()

    def __len__(self):
        return len(IDS)

reader = open_reader(CONFIG, schema=SCHEMA)
reader.get_batch(IDS)  # the loop's thread runs when workers are forked
loader = DataLoader(Rollouts(reader), batch_size=3, num_workers=2, use_shared_memory={shared})
seen, pids = [], set()
for _ in range(2):  # epochs, each with workers of its own
    for batch, workers in loader:
        seen += list(batch.numpy())
        pids |= set(workers.numpy().reshape(-1).tolist())
same = all(np.array_equal(array, routing(5, number % 12)) for number, array in enumerate(seen))
print(json.dumps([len(seen), same, len(pids), os.getpid() in pids, right(reader, "batch")]))
reader.close()
"""
    assert run(folder, HEAD + code) == [24, True, 4, False, True]


def test_a_reader_that_nobody_closed_does_not_keep_the_process(folder: Path) -> None:
    code = """
reader = open_reader(CONFIG, schema=SCHEMA)
reader.prefetch(["never"])
print(json.dumps(right(reader, "batch")))
"""
    assert run(folder, HEAD + code) is True


def test_a_reader_that_is_dropped_leaves_no_thread(folder: Path) -> None:
    code = """
import gc
reader = open_reader(CONFIG, schema=SCHEMA)
reader.get_batch(IDS)
del reader
gc.collect()
deadline = time.monotonic() + 60
while any(t.name == "fd-routing-loop" for t in threading.enumerate()) and time.monotonic() < deadline:
    time.sleep(0.01)
print(json.dumps([t.name for t in threading.enumerate() if t.name == "fd-routing-loop"]))
"""
    assert run(folder, HEAD + code) == []


def test_importing_the_package_imports_no_arrays(tmp_path: Path) -> None:
    code = """
import sys
import fastdeploy_routing_plugins
from fastdeploy_routing_plugins.reader import ranges
print(json.dumps([name for name in ("numpy", "paddle", "torch") if name in sys.modules]))
"""
    assert run(tmp_path, code) == []
