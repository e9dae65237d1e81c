"""``fd-routing diff``: two recorded routings, of a store or of files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fastdeploy_routing_plugins import RoutingSchema
from fastdeploy_routing_plugins.keys import encode_component

from .helpers import SCHEMA, invoke, invoke_json, routing, run

if TYPE_CHECKING:
    from fastdeploy_routing_plugins import SyncStore


def changed(tokens: int = 20) -> np.ndarray:
    """Returns the routing of ``x:1`` with another order in every row, and another expert in one."""
    array = routing(tokens, 1)[..., ::-1].copy()
    array[2, 5, 0] = next(iter(set(range(64)) - set(array[2, 5].tolist())))
    return array


@pytest.fixture
def both(filled: SyncStore) -> SyncStore:
    """The store with ``x:1`` and a ``trainer`` that chose one other expert."""
    filled.put("trainer", changed())
    return filled


@pytest.fixture
def saved(both: SyncStore, here: list[str], tmp_path: Path) -> list[str]:
    """``x:1`` and ``trainer`` as files."""
    paths = [str(tmp_path / f"{name}.safetensors") for name in ("x", "trainer")]
    for name, path in zip(("x:1", "trainer"), paths, strict=True):
        assert invoke("get", name, "-o", path, *here).exit_code == 0
    return paths


def test_the_same_experts_in_another_order_are_the_same(filled: SyncStore, here: list[str]) -> None:
    filled.put("turned", routing(20, 1)[..., ::-1])
    result = invoke("diff", "x:1", "turned", *here)

    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "same")


def test_one_other_expert_is_a_difference(both: SyncStore, here: list[str]) -> None:
    result = invoke("diff", "x:1", "trainer", *here)

    assert (result.exit_code, result.stdout.splitlines()[-1]) == (1, "different")


def test_every_layer_has_its_shares(both: SyncStore, here: list[str]) -> None:
    lines = [line.split() for line in invoke("diff", "x:1", "trainer", *here).stdout.splitlines()]

    # One of 4 x 20 experts, one of 20 tokens; one of 6 layers.
    assert [line for line in lines if line and line[0] in ("2", "3", "all")] == [
        ["2", "100.00%", "100.00%", "0"],
        ["3", "98.75%", "95.00%", "1"],
        ["all", "99.79%", "99.16%", "1"],
    ]


def test_the_document_has_exact_shares(both: SyncStore, here: list[str]) -> None:
    document = invoke_json("diff", "x:1", "trainer", *here)

    assert [
        document["same"],
        document["agreement"],
        document["same_share"],
        document["different_rows"],
        document["rows"],
        document["layers"][2],
    ] == [
        False,
        479 / 480,
        119 / 120,
        1,
        120,
        {"layer_id": 3, "agreement": 79 / 80, "same_share": 19 / 20, "different_rows": 1},
    ]


def test_files_are_compared_as_rollouts_are(both: SyncStore, here: list[str], saved: list[str], folder: Path) -> None:
    by_id = invoke_json("diff", "x:1", "trainer", *here)
    by_file = invoke_json("diff", *saved)
    for document in (by_id, by_file):
        for side in ("a", "b"):
            document[side].pop("file")

    assert by_file == by_id


def test_two_files_need_no_store(saved: list[str], tmp_path: Path) -> None:
    unreachable = '{"routing_store_type": "local", "routing_store_config": {"store_dir": "/proc/none"}}'

    assert run("diff", *saved, env={"FD_ROUTING_STORE_CONFIG": unreachable}).returncode == 1


def test_a_file_and_a_rollout_are_compared(both: SyncStore, here: list[str], saved: list[str]) -> None:
    assert invoke("diff", "trainer", saved[1], *here).exit_code == 0


def test_a_parts_file_of_the_store_is_a_file_too(both: SyncStore, here: list[str], folder: Path) -> None:
    (stored,) = (folder / "default" / encode_component("x:1")).iterdir()

    assert invoke("diff", str(stored), "x:1", *here).exit_code == 0


def test_a_file_of_some_layers_is_compared_by_the_models_numbers(
    both: SyncStore, here: list[str], tmp_path: Path
) -> None:
    path = str(tmp_path / "some.safetensors")
    invoke("get", "trainer", "-o", path, "--layers", "3:5", *here)

    document = invoke_json("diff", path, "trainer", *here)

    assert [
        document["agreement"],
        [layer["layer_id"] for layer in document["layers"]],
        document["b"]["only_here"]["layer_ids"],
    ] == [1.0, [4, 5], [1, 2, 3, 6]]


def test_other_layers_of_one_side_are_named_and_a_difference(store: SyncStore, here: list[str]) -> None:
    store.put("a", routing(20))
    store.put("b", routing(20)[1:], schema=RoutingSchema(64, 4, range(2, 7)))
    result = invoke("diff", "a", "b", *here)

    assert (result.exit_code, re.findall("only in .*", result.stdout)) == (1, ["only in A layers 1"])


def test_layers_asked_for_leave_others_out(store: SyncStore, here: list[str]) -> None:
    store.put("a", routing(20))
    store.put("b", routing(20)[1:], schema=RoutingSchema(64, 4, range(2, 7)))

    assert invoke("diff", "a", "b", "--layer-ids", "2:", *here).exit_code == 0


def test_further_tokens_of_one_side_are_named_and_a_difference(store: SyncStore, here: list[str]) -> None:
    store.put("a", routing(20))
    store.put("b", routing(20)[:, :15])
    result = invoke("diff", "a", "b", *here)

    assert (result.exit_code, re.findall("only in .*", result.stdout)) == (1, ["only in A tokens 15:20"])


@pytest.mark.parametrize(("tokens", "code"), [("0:15", 0), (":15", 0), ("3", 0), ("10:16", 1), ("10:", 1)])
def test_tokens_asked_for_leave_others_out(store: SyncStore, here: list[str], tokens: str, code: int) -> None:
    store.put("a", routing(20))
    store.put("b", routing(20)[:, :15])

    assert invoke("diff", "a", "b", "--tokens", tokens, *here).exit_code == code


def test_tokens_of_a_rollout_that_goes_on_are_compared(store: SyncStore, here: list[str]) -> None:
    store.put("a", routing(20))
    store.put("b", routing(20)[:, :15], tokens=(0, 15), total_tokens=None)

    assert (
        invoke("diff", "a", "b", "--tokens", "0:15", *here).exit_code,
        invoke("diff", "a", "b", *here).exit_code,
    ) == (
        0,
        2,
    )


def test_a_choice_is_that_choice(store: SyncStore, here: list[str]) -> None:
    for choice in range(2):
        store.put("a", routing(5, choice), choice=choice)
        store.put("b", routing(5, 1), choice=choice)

    assert [invoke("diff", "a", "b", "--choice", str(choice), *here).exit_code for choice in range(2)] == [1, 0]


def test_rollouts_without_tokens_are_the_same(store: SyncStore, here: list[str], tmp_path: Path) -> None:
    store.put("a", routing(0))
    invoke("get", "a", "-o", str(tmp_path / "a.safetensors"), *here)

    assert invoke("diff", "a", str(tmp_path / "a.safetensors"), *here).exit_code == 0


def test_an_id_may_look_like_a_file(store: SyncStore, here: list[str]) -> None:
    for name in ("a.safetensors", "b.npy"):
        store.put(name, routing(5))

    assert invoke("diff", "a.safetensors", "b.npy", "--ids", *here).exit_code == 0


# --- what cannot be compared --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("other", "code"), [("experts", "schema_mismatch"), ("top_k", "schema_mismatch")])
def test_another_model_is_trouble(store: SyncStore, here: list[str], other: str, code: str) -> None:
    schema = RoutingSchema(65, 4, range(1, 7)) if other == "experts" else RoutingSchema(64, 3, range(1, 7))
    store.put("a", routing(20))
    store.put("b", routing(20)[..., : schema.top_k], schema=schema)
    result = invoke("diff", "a", "b", *here)

    assert (result.exit_code, invoke_json("diff", "a", "b", *here)["error"]["code"]) == (2, code)


def test_tokens_that_only_one_has_are_trouble(store: SyncStore, here: list[str]) -> None:
    store.put("a", routing(20))
    store.put("b", routing(0))
    result = invoke("diff", "a", "b", *here)

    assert (result.exit_code, result.stderr) == (2, "error: no token in common: A has tokens 0:20, B has 0:0\n")


@pytest.mark.parametrize("option", [["--tokens", "30:40"], ["--layer-ids", "7:"], ["--tokens", "x"]])
def test_ranges_that_nobody_has_are_wrong_usage(both: SyncStore, here: list[str], option: list[str]) -> None:
    assert invoke("diff", "x:1", "trainer", *option, *here).exit_code == 2


def test_an_absent_rollout_is_trouble_and_named(both: SyncStore, here: list[str]) -> None:
    result = invoke("diff", "x:1", "gone", *here)

    assert (result.exit_code, "'gone'" in result.stderr, result.stdout) == (2, True, "")


def test_a_damaged_rollout_is_trouble(both: SyncStore, here: list[str], folder: Path) -> None:
    (stored,) = (folder / "default" / encode_component("trainer")).iterdir()
    data = bytearray(stored.read_bytes())
    data[-1] ^= 1
    stored.unlink()
    stored.write_bytes(data)

    assert invoke("diff", "x:1", "trainer", *here).exit_code == 2


def damaged(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "a byte":
        data[-1] ^= 1
    path.write_bytes({"cut": data[:-1], "empty": b"", "text": b"hello, this is no such file"}.get(how, bytes(data)))


@pytest.mark.parametrize("how", ["a byte", "cut", "empty", "text"])
def test_a_damaged_file_is_trouble_and_named(saved: list[str], how: str) -> None:
    damaged(Path(saved[1]), how)
    result = invoke("diff", *saved)

    assert (result.exit_code, f"'{saved[1]}'" in result.stderr) == (2, True)


def test_every_cut_and_flipped_byte_of_a_file_is_noticed(saved: list[str]) -> None:
    whole = Path(saved[1]).read_bytes()
    codes = set()
    for at in range(0, len(whole), 37):
        flipped = bytearray(whole)
        flipped[at] ^= 0x20
        for data in (whole[:at], bytes(flipped)):
            Path(saved[1]).write_bytes(data)
            codes.add(invoke("diff", *saved).exit_code)

    # A blank that pads the head may become what JSON has no objection to: then nothing was damaged.
    assert codes <= {1, 2}


def test_a_mark_of_the_store_is_no_routing(store: SyncStore, here: list[str], folder: Path) -> None:
    store.put("a", routing(5), tokens=(0, 5), total_tokens=None)
    store.seal("a", 5)
    files = sorted((folder / "default" / encode_component("a")).iterdir(), key=lambda path: path.stat().st_size)
    result = invoke("diff", str(files[0]), "a", *here)

    assert (result.exit_code, "holds no routing" in result.stderr) == (2, True)


def test_an_npy_file_does_not_say_enough(both: SyncStore, here: list[str]) -> None:
    result = invoke("diff", "x:1", "x.npy", *here)

    assert (result.exit_code, "--ids" in result.stderr) == (2, True)


@pytest.mark.parametrize("name", ["gone.safetensors", "folder.safetensors"])
def test_a_file_that_cannot_be_read_is_wrong_usage(saved: list[str], tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.safetensors").mkdir()

    assert invoke("diff", saved[0], str(tmp_path / name)).exit_code == 2


def test_the_schema_of_the_tests_has_layers_from_one_on() -> None:
    assert SCHEMA.layer_ids[0] == 1  # the expectations above name layers by the model's numbers
