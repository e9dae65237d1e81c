"""``fd-routing get``: routing as files."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fastdeploy_routing_plugins import RoutingSchema, WeightSpan, open_store
from fastdeploy_routing_plugins.digests import digest_payload
from fastdeploy_routing_plugins.envelope import PartHeader, decode_header
from fastdeploy_routing_plugins.keys import encode_component

from .helpers import COMMAND, environment, invoke, invoke_json, routing

if TYPE_CHECKING:
    from fastdeploy_routing_plugins import SyncStore

ENDINGS = [".npy", ".safetensors"]


def load(path: Path) -> np.ndarray[Any, Any]:
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    safetensors = pytest.importorskip("safetensors.numpy")
    return safetensors.load_file(path)["routing"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_file_holds_the_routing_exactly(filled: SyncStore, here: list[str], tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x{ending}"
    invoke("get", "x:1", "-o", str(path), *here)

    got = load(path)

    assert (got.dtype, np.array_equal(got, routing(20, 1))) == (np.uint8, True)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(("num_experts", "dtype"), [(300, np.uint16), (70_000, np.uint32)])
def test_wide_ids_stay_exact(
    folder: Path, store: SyncStore, here: list[str], tmp_path: Path, ending: str, num_experts: int, dtype: type
) -> None:
    wide = np.arange(2 * 5 * 3).reshape(2, 5, 3) * ((num_experts - 1) // 29)
    store.put("wide", wide, schema=RoutingSchema(num_experts, 3, [0, 5]))
    path = tmp_path / f"x{ending}"
    invoke("get", "wide", "-o", str(path), *here)

    got = load(path)

    assert (got.dtype, np.array_equal(got, wide)) == (dtype, True)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_rollout_without_tokens_is_a_file_too(
    store: SyncStore, here: list[str], tmp_path: Path, ending: str
) -> None:
    store.put("none", routing(0))
    path = tmp_path / f"x{ending}"

    result = invoke("get", "none", "-o", str(path), *here)

    assert (result.exit_code, load(path).shape) == (0, (6, 0, 4))


@pytest.mark.parametrize(
    ("options", "index"),
    [
        (["--layers", "2:5"], np.s_[2:5]),
        (["--layers", "3"], np.s_[3:4]),
        (["--tokens", "5:"], np.s_[:, 5:]),
        (["--tokens", ":7", "--layers", "1:"], np.s_[1:, :7]),
    ],
)
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_range_is_that_range(
    filled: SyncStore, here: list[str], tmp_path: Path, ending: str, options: list[str], index: Any
) -> None:
    path = tmp_path / f"x{ending}"
    invoke("get", "x:1", "-o", str(path), *options, *here)

    assert np.array_equal(load(path), routing(20, 1)[index])


@pytest.mark.parametrize(
    ("given", "expected"), [("1:3", slice(0, 2)), ("3", slice(2, 3)), ("2:", slice(1, None)), (":99", slice(None))]
)
def test_layers_may_be_told_by_the_models_numbers(
    filled: SyncStore, here: list[str], tmp_path: Path, given: str, expected: slice
) -> None:
    path = tmp_path / "x.npy"
    report = invoke_json("get", "x:1", "-o", str(path), "--layer-ids", given, *here)

    stored = filled.get("x:1")
    assert report["layer_ids"] == list(stored.layer_ids[expected])
    assert np.array_equal(np.load(path), stored.routing[expected])


def test_layers_by_number_of_a_rollout_that_is_still_written(
    store: SyncStore, here: list[str], tmp_path: Path
) -> None:
    store.put("half", routing(10), tokens=(0, 10), total_tokens=30)
    path = tmp_path / "x.npy"

    assert invoke("get", "half", "-o", str(path), "--layer-ids", "1:3", *here).exit_code == 1
    assert invoke("get", "half", "-o", str(path), "--layer-ids", "1:3", "--tokens", "0:10", *here).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--layer-ids", "50:60"], "recorded are 1-"), (["--layer-ids", "1", "--layers", "0"], "exclude each other")],
)
def test_layers_that_are_none_are_refused(
    filled: SyncStore, here: list[str], tmp_path: Path, arguments: list[str], said: str
) -> None:
    result = invoke("get", "x:1", "-o", str(tmp_path / "x.npy"), *arguments, *here)
    assert (result.exit_code, said in result.stderr) == (2, True)


SENSELESS = ["", "a", "1:2:3", "-1:2", "1.5", "٣:٤", "5:2"]


@pytest.mark.parametrize(
    ("option", "text"),
    [*product(["--layers", "--layer-ids", "--tokens"], SENSELESS), ("--layers", "0:999"), ("--tokens", "0:999")],
)
def test_a_range_that_makes_no_sense_is_wrong_usage(
    filled: SyncStore, here: list[str], tmp_path: Path, option: str, text: str
) -> None:
    result = invoke("get", "x:1", "-o", str(tmp_path / "x.npy"), option, text, *here)

    assert (result.exit_code, os.listdir(tmp_path / "store" / "default") == [], (tmp_path / "x.npy").exists()) == (
        2,
        False,
        False,
    )


def test_a_choice_is_that_choice(store: SyncStore, here: list[str], tmp_path: Path) -> None:
    for choice in range(2):
        store.put("n", routing(5, choice), choice=choice)
    invoke("get", "n", "--choice", "1", "-o", str(tmp_path / "x.npy"), *here)

    assert np.array_equal(load(tmp_path / "x.npy"), routing(5, 1))


def test_a_safetensors_file_says_what_it_holds(store: SyncStore, here: list[str], tmp_path: Path) -> None:
    store.put("w", routing(10), attempt=7, weight_versions=[WeightSpan(0, 4, 1), WeightSpan(4, 10, "b")])
    invoke("get", "w", "-o", str(tmp_path / "x.safetensors"), "--layers", "1:3", "--tokens", "2:9", *here)

    header = header_of(tmp_path / "x.safetensors")

    assert (header.rollout_id, header.attempt, header.layers, header.tokens, header.total_tokens, header.spans()) == (
        "w",
        7,
        (1, 3),
        (2, 9),
        10,
        (WeightSpan(2, 4, 1), WeightSpan(4, 9, "b")),
    )


def test_a_safetensors_file_has_digests_of_what_it_holds(filled: SyncStore, here: list[str], tmp_path: Path) -> None:
    invoke("get", "x:1", "-o", str(tmp_path / "x.safetensors"), "--layers", "1:3", *here)

    header = header_of(tmp_path / "x.safetensors")
    payload = memoryview(np.ascontiguousarray(load(tmp_path / "x.safetensors"))).cast("B")

    assert header.digests == digest_payload(payload, header.part(), header.schema().row_bytes)


def header_of(path: Path) -> PartHeader:
    safetensors = pytest.importorskip("safetensors")
    with safetensors.safe_open(path, "numpy") as file:
        header = decode_header(file.metadata()["fd_routing"].encode())
    assert isinstance(header, PartHeader)
    return header


def test_a_whole_file_has_the_bytes_of_the_store(filled: SyncStore, here: list[str], tmp_path: Path) -> None:
    invoke("get", "x:1", "-o", str(tmp_path / "x.safetensors"), *here)
    (stored,) = (tmp_path / "store" / "default" / encode_component("x:1")).iterdir()

    # All but the time at which it was written, and the digest over the line that holds it.
    assert len((tmp_path / "x.safetensors").read_bytes()) == len(stored.read_bytes())


def test_a_file_is_not_overwritten(filled: SyncStore, here: list[str], tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_text("mine")

    result = invoke("get", "x:1", "-o", str(tmp_path / "x.npy"), *here)

    assert (result.exit_code, (tmp_path / "x.npy").read_text()) == (2, "mine")


def test_a_file_that_appears_meanwhile_is_not_overwritten(store: SyncStore, here: list[str], tmp_path: Path) -> None:
    path = tmp_path / "x.npy"

    def later() -> None:
        time.sleep(0.3)
        path.write_text("mine")
        store.put("late", routing(3))

    thread = threading.Thread(target=later)
    thread.start()
    result = invoke("get", "late", "-o", str(path), "--timeout", "20", *here)
    thread.join()

    assert (result.exit_code, path.read_text()) == (2, "mine")


def test_force_overwrites(filled: SyncStore, here: list[str], tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_text("mine")
    invoke("get", "x:1", "-o", str(tmp_path / "x.npy"), "--force", *here)

    assert np.array_equal(load(tmp_path / "x.npy"), routing(20, 1))


def test_force_replaces_a_link_and_not_what_it_points_to(filled: SyncStore, here: list[str], tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / "x.npy").symlink_to(tmp_path / "target")
    invoke("get", "x:1", "-o", str(tmp_path / "x.npy"), "--force", *here)

    assert (tmp_path / "target").read_text() == "mine"


def test_no_temporary_file_is_left(filled: SyncStore, here: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    invoke("get", "x:1", "-o", str(out / "x.npy"), *here)

    assert os.listdir(out) == ["x.npy"]


def test_a_full_disk_leaves_no_file(store: SyncStore, here: list[str], tmp_path: Path) -> None:
    store.put("big", routing(20_000))
    out = tmp_path / "out"
    out.mkdir()
    # ulimit -f stands in for a disk that fills up in the middle of the file.
    command = f"trap '' XFSZ; ulimit -f 100; exec {COMMAND} get big -o {out}/x.npy {' '.join(here)}"
    env = {name: value for name, value in environment().items() if not name.startswith("COV")}  # it writes files too
    ended = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, timeout=60)

    assert (ended.returncode, ended.stderr, os.listdir(out)) == (
        1,
        f"error: cannot write '{out}/x.npy': File too large\n",
        [],
    )


@pytest.mark.parametrize("name", ["x.pt", "x", "missing/x.npy", "folder.npy"])
def test_a_place_that_cannot_be_is_wrong_usage(filled: SyncStore, here: list[str], tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.npy").mkdir()

    assert invoke("get", "x:1", "-o", str(tmp_path / name), *here).exit_code == 2


@pytest.mark.parametrize(
    ("rollout_id", "code"),
    [("gone", "not_found"), ("open", "pending"), ("half", "incomplete"), ("given up", "aborted")],
)
def test_absence_is_named(store: SyncStore, here: list[str], tmp_path: Path, rollout_id: str, code: str) -> None:
    store.put("open", routing(5), tokens=(0, 5))
    store.put("half", routing(5), tokens=(0, 5), total_tokens=9)
    store.abort("given up", "out of memory")

    assert invoke_json("get", rollout_id, "-o", str(tmp_path / "x.npy"), *here)["error"]["code"] == code


def test_absence_ends_with_1_and_no_file(store: SyncStore, here: list[str], tmp_path: Path) -> None:
    result = invoke("get", "gone", "-o", str(tmp_path / "x.npy"), *here)

    assert (result.exit_code, (tmp_path / "x.npy").exists()) == (1, False)


def test_get_waits_for_what_comes(folder: Path, store: SyncStore, here: list[str], tmp_path: Path) -> None:
    timer = threading.Timer(0.3, lambda: store.put("late", routing(3)))
    timer.start()

    result = invoke("get", "late", "-o", str(tmp_path / "x.npy"), "--timeout", "20", *here)
    timer.join()

    assert result.exit_code == 0


@pytest.fixture
def damaged(folder: Path, filled: SyncStore) -> None:
    """Flips a bit in the payload of ``x:1``."""
    (path,) = (folder / "default" / encode_component("x:1")).iterdir()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)


@pytest.mark.usefixtures("damaged")
def test_damage_is_noticed(here: list[str], tmp_path: Path) -> None:
    result = invoke("get", "x:1", "-o", str(tmp_path / "x.npy"), *here)

    assert (result.exit_code, (tmp_path / "x.npy").exists()) == (1, False)


@pytest.mark.usefixtures("damaged")
def test_damage_is_said_of_its_rollout(here: list[str], tmp_path: Path) -> None:
    assert "'x:1'" in invoke_json("get", "x:1", "-o", str(tmp_path / "x.npy"), *here)["error"]["message"]


@pytest.mark.usefixtures("damaged")
def test_damage_can_be_looked_at(here: list[str], tmp_path: Path) -> None:
    assert invoke("get", "x:1", "-o", str(tmp_path / "x.npy"), "--no-verify", *here).exit_code == 0


def test_the_report_says_what_was_saved(filled: SyncStore, here: list[str], tmp_path: Path) -> None:
    report = invoke_json("get", "x:1", "-o", str(tmp_path / "x.npy"), "--layers", "2:4", *here)

    assert (report["shape"], report["dtype"], report["layer_ids"], report["tokens"], report["verified"]) == (
        [2, 20, 4],
        "uint8",
        [3, 4],
        [0, 20],
        True,
    )


def test_the_file_outlives_the_rollout(folder: Path, filled: SyncStore, here: list[str], tmp_path: Path) -> None:
    invoke("get", "x:1", "-o", str(tmp_path / "x.npy"), *here)
    filled.delete("x:1")

    assert np.array_equal(load(tmp_path / "x.npy"), routing(20, 1))


def test_an_exported_file_can_be_put_again(folder: Path, filled: SyncStore, here: list[str], tmp_path: Path) -> None:
    invoke("get", "x:1", "-o", str(tmp_path / "x.npy"), *here)
    config = {"routing_store_type": "local", "routing_store_config": {"store_dir": str(tmp_path / "second")}}
    with open_store(config, schema=filled.schema) as second:
        second.put("x:1", np.load(tmp_path / "x.npy", mmap_mode="r"))

        assert np.array_equal(second.get("x:1").routing, routing(20, 1))


@pytest.mark.parametrize("command", [["get", "n", "-o", "x.npy"], ["stat", "n"], ["stat", "n", "--quick"]])
def test_who_forgets_the_choice_is_told_which_there_are(
    store: SyncStore, here: list[str], tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for choice in (2, 5):
        store.put("n", routing(1), choice=choice)
    store.put("n:1", routing(1))

    found = invoke(*command, *here)

    assert (found.exit_code, "choice 2, 5: --choice" in found.stderr) == (1, True)
