"""``layout="pdtensor"``: FastDeploy's own file tree, read by today's trainers and by this package."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdeploy_routing_plugins import RoutingSchema, SyncStore, open_store
from fastdeploy_routing_plugins.errors import CorruptDataError, RoutingError, UnsupportedError

SCHEMA = RoutingSchema(num_experts=64, top_k=4, layer_ids=range(1, 4))
WIDE = RoutingSchema(num_experts=1000, top_k=4, layer_ids=range(1, 4))


@pytest.fixture(scope="module", autouse=True)
def paddle() -> Any:
    """Paddle, imported without its warnings, which would be errors here; without it there is nothing to test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("paddle")


def opened(path: Path, schema: RoutingSchema = SCHEMA) -> SyncStore:
    options = {"store_dir": str(path), "layout": "pdtensor"}
    return open_store({"routing_store_type": "local", "routing_store_config": options}, schema=schema)


def routing(tokens: int = 10, seed: int = 0, experts: int = 64) -> Any:
    first = np.random.default_rng(seed).integers(experts, size=(3, tokens, 1))
    return (first + np.arange(4)) % experts


def tree(path: Path) -> set[str]:
    """What a trainer sees: files that are not hidden."""
    found = (file.relative_to(path) for file in path.rglob("*") if file.is_file())
    return {str(file) for file in found if not any(part.startswith(".") for part in file.parts)}


def test_a_fused_put_is_one_file_that_paddle_loads(tmp_path: Path, paddle: Any) -> None:
    with opened(tmp_path) as store:
        store.put("data:0:0:0", routing())
    assert tree(tmp_path) == {"data:0:0:0/data:0:0:0.pdtensor"}
    loaded = paddle.load(str(tmp_path / "data:0:0:0/data:0:0:0.pdtensor"))
    assert np.array_equal(loaded.numpy(), routing())


def test_a_put_by_layer_is_a_file_a_layer_of_two_axes(tmp_path: Path, paddle: Any) -> None:
    with opened(tmp_path) as store:
        for layer in range(3):
            store.put("r", routing()[layer], layers=(layer, layer + 1))
    assert tree(tmp_path) == {f"r/layer_{layer}.pdtensor" for layer in range(3)}
    assert np.array_equal(paddle.load(str(tmp_path / "r/layer_2.pdtensor")).numpy(), routing()[2])


def test_ids_that_need_two_bytes_are_int32_which_paddle_has(tmp_path: Path, paddle: Any) -> None:
    with opened(tmp_path, WIDE) as store:
        store.put("r", routing(experts=1000))
    loaded = paddle.load(str(tmp_path / "r/r.pdtensor"))
    assert (loaded.dtype, np.array_equal(loaded.numpy(), routing(experts=1000))) == (paddle.int32, True)


@pytest.mark.parametrize("schema", [SCHEMA, WIDE])
def test_this_package_reads_it_as_any_other_store(tmp_path: Path, schema: RoutingSchema) -> None:
    expected = routing(5000, experts=schema.num_experts)
    with opened(tmp_path, schema) as store:
        store.put("r", expected)
        part = store.get("r", layers=(1, 2), tokens=(100, 4500)).routing
        assert (part.dtype, np.array_equal(part, expected[1:2, 100:4500])) == (schema.dtype, True)


def test_reading_needs_no_paddle_and_runs_no_pickle(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put("r", routing())
    code = f"""
import pickle, sys
sys.modules["paddle"] = pickle.load = pickle.loads = pickle.Unpickler = None
from fastdeploy_routing_plugins.stores.local.pdtensor import PdtensorBackend
from fastdeploy_routing_plugins.stores.local.config import LocalConfig
backend = PdtensorBackend(LocalConfig({str(tmp_path)!r}, layout="pdtensor"))
backend._open()
(name,) = backend._list("default/r/")
assert bytes(backend._get(name).payload[0]) == {routing().astype(np.uint8).tobytes()!r}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_hostile_pickle_in_its_place_is_not_run(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    with opened(tmp_path) as store:
        store.put("r", routing())
        for file in tmp_path.rglob("*.pdtensor"):
            file.write_bytes(pickle.dumps(Hostile()))
        with pytest.raises(CorruptDataError):
            store.get("r")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("rollout_id", ["../x", "/tmp/x", "a/b", "..", ".hidden", ".fd-routing", "x" * 300, "nul\0"])
def test_ids_that_are_no_file_names_are_refused(tmp_path: Path, rollout_id: str) -> None:
    inner = tmp_path / "inner"
    with opened(inner) as store, pytest.raises(UnsupportedError, match="no place for"):
        store.put(rollout_id, routing())
    assert (tree(inner), set(tmp_path.iterdir())) == (set(), {inner})


@pytest.mark.parametrize("how", [{"choice": 1}, {"tokens": (0, 10), "total_tokens": 20}, {"layers": (0, 3)}])
def test_what_the_tree_has_no_place_for_is_refused_and_the_rest_is_not(tmp_path: Path, how: Any) -> None:
    allowed = how == {"layers": (0, 3)}
    with opened(tmp_path) as store:
        if allowed:
            store.put("r", routing(), **how)
        else:
            with pytest.raises(UnsupportedError, match="no place for"):
                store.put("r", routing(), **how)
    assert bool(tree(tmp_path)) == allowed


def test_a_higher_attempt_takes_the_files_place(tmp_path: Path, paddle: Any) -> None:
    with opened(tmp_path) as store:
        store.put("r", routing(seed=1), attempt=1)
        store.put("r", routing(12, seed=2), attempt=2)
    assert np.array_equal(paddle.load(str(tmp_path / "r/r.pdtensor")).numpy(), routing(12, seed=2))


def test_a_repeated_put_restores_a_file_that_its_first_writer_did_not_show(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put("r", routing())
        (tmp_path / "r/r.pdtensor").unlink()
        store.put("r", routing())
    assert tree(tmp_path) == {"r/r.pdtensor"}


def test_a_delete_removes_the_file_and_its_folder(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put("r", routing())
        store.put("s", routing())
        store.delete("r")
    assert (tree(tmp_path), (tmp_path / "r").exists()) == ({"s/s.pdtensor"}, False)


def test_foreign_files_may_lie_beside_it_and_stay(tmp_path: Path) -> None:
    (tmp_path / "old:0:0:0").mkdir()
    (tmp_path / "old:0:0:0/old:0:0:0.pdtensor").write_bytes(b"of another time")
    with opened(tmp_path) as store:
        store.put("r", routing())
        store.clear(everything=True)
    assert tree(tmp_path) == {"old:0:0:0/old:0:0:0.pdtensor"}


def test_readers_see_the_file_whole_or_not_at_all(tmp_path: Path, paddle: Any) -> None:
    path, wrong, over = tmp_path / "r/r.pdtensor", [], threading.Event()

    def watch() -> None:
        while not over.is_set():
            try:
                raw = path.read_bytes()
            except FileNotFoundError:
                continue
            if len(pickle.loads(raw)[0]) not in range(2000, 2020):
                wrong.append(len(raw))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with opened(tmp_path) as store:
            for attempt in range(20):
                store.put("r", routing(2000 + attempt), attempt=attempt)
    finally:
        over.set()
        watcher.join()
    assert wrong == []


def test_opening_the_tree_without_the_option_says_what_is_wrong(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put("r", routing())
    config = {"routing_store_type": "local", "routing_store_config": {"store_dir": str(tmp_path)}}
    with pytest.raises(RoutingError, match="is a store of the layout pdtensor") as caught, open_store(config):
        pass
    assert caught.value.hint == 'add "layout": "pdtensor" to the options of local'
