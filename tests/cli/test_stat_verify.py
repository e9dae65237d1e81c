"""``fd-routing stat`` and ``fd-routing verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fastdeploy_routing_plugins import SyncStore
from fastdeploy_routing_plugins.keys import encode_component

from .helpers import invoke, invoke_json, routing

if TYPE_CHECKING:
    from pathlib import Path


def damage(folder: Path, rollout_id: str, at: int = -1) -> None:
    """Flips a bit in a stored file."""
    for path in (folder / "default" / encode_component(rollout_id)).iterdir():
        content = bytearray(path.read_bytes())
        content[at] ^= 1
        path.chmod(0o644)
        path.write_bytes(content)


@pytest.fixture
def odd(store: SyncStore) -> SyncStore:
    """Rollouts that are not simply complete."""
    zero, constant = routing(10), routing(10)
    zero[2] = 0
    constant[4] = [5, 6, 7, 8]
    store.put("constant", constant)
    store.put("half", routing(10), tokens=(5, 15), total_tokens=20)
    store.put("open", routing(10), tokens=(0, 10))
    store.abort("given up", "\x1b[31mout of memory")
    store.put("again", routing(5))
    store.put("again", routing(5)[:, :2], attempt=3, tokens=(0, 2), total_tokens=5)
    return store


def test_stat_tells_shape_and_schema(filled: SyncStore, here: list[str]) -> None:
    stat = invoke_json("stat", "x:1", *here)

    assert (stat["shape"], stat["dtype"], stat["num_experts"], stat["layer_ids"], stat["digests"]) == (
        [6, 20, 4],
        "uint8",
        64,
        [1, 2, 3, 4, 5, 6],
        "ok",
    )


def test_stat_counts_the_experts_of_each_layer(filled: SyncStore, here: list[str]) -> None:
    layers = invoke_json("stat", "x:1", *here)["layers"]

    assert [layer["experts_used"] for layer in layers] == [len(np.unique(layer)) for layer in routing(20, 1)]


def test_stat_names_the_busiest_expert(filled: SyncStore, here: list[str]) -> None:
    layer = invoke_json("stat", "x:1", *here)["layers"][2]

    counts = np.bincount(routing(20, 1)[2].ravel())
    assert (layer["busiest_expert"], layer["busiest_share"]) == (counts.argmax(), counts.max() / 80)


def test_stat_spreads_the_load_over_a_bar(filled: SyncStore, here: list[str]) -> None:
    load = invoke_json("stat", "x:1", *here)["layers"][0]["load"]

    assert (len(load), sum(load)) == (32, 80)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("id", "x:1"),
        ("state", "complete"),
        ("shape", "6 layers, 20 tokens, top-4"),
        ("stored", "1 part, 480 B, uint8"),
        ("experts", "64 in each of the model's layers 1-6"),
    ],
)
def test_stat_is_readable(filled: SyncStore, here: list[str], line: str, text: str) -> None:
    assert f"{line:9} {text}" in invoke("stat", "x:1", *here).stdout.splitlines()


def test_stat_lists_what_is_missing(odd: SyncStore, here: list[str]) -> None:
    lines = invoke("stat", "half", *here).stdout.splitlines()

    assert [line for line in lines if line.startswith("missing")] == [
        "missing   layers 0:6, tokens 0:5",
        "missing   layers 0:6, tokens 15:20",
    ]


@pytest.mark.parametrize(
    ("rollout_id", "state"),
    [("half", "incomplete"), ("open", "pending"), ("given up", "aborted"), ("again", "incomplete")],
)
def test_stat_of_what_is_not_complete_is_no_failure(
    odd: SyncStore, here: list[str], rollout_id: str, state: str
) -> None:
    result = invoke("stat", rollout_id, *here)

    assert (result.exit_code, f"state     {state}" in result.stdout) == (0, True)


def test_stat_tells_why_a_rollout_was_given_up(odd: SyncStore, here: list[str]) -> None:
    assert "state     aborted: \\x1b[31mout of memory\n" in invoke("stat", "given up", *here).stdout


def test_stat_looks_at_the_highest_attempt(odd: SyncStore, here: list[str]) -> None:
    stat = invoke_json("stat", "again", *here)

    assert (stat["attempt"], stat["attempts"]) == (3, [0, 3])


def test_stat_warns_of_a_constant_layer(odd: SyncStore, here: list[str]) -> None:
    assert len(invoke_json("stat", "constant", *here)["warnings"]) == 1


def test_stat_of_something_unknown_ends_with_1(store: SyncStore, here: list[str]) -> None:
    assert invoke("stat", "gone", *here).exit_code == 1


@pytest.mark.parametrize("at", [-1, 100])
def test_stat_of_damage_ends_with_1(folder: Path, filled: SyncStore, here: list[str], at: int) -> None:
    damage(folder, "x:1", at)

    result = invoke("stat", "x:1", *here)

    assert (result.exit_code, "digests   damaged" in result.stdout) == (1, True)


def test_quick_stat_reads_no_payload(folder: Path, filled: SyncStore, here: list[str]) -> None:
    damage(folder, "x:1")

    stat = invoke_json("stat", "x:1", "--quick", *here)

    assert (stat["digests"], stat["layers"], stat["shape"]) == ("not checked", [], [6, 20, 4])


def test_quick_stat_notices_a_damaged_header(folder: Path, filled: SyncStore, here: list[str]) -> None:
    damage(folder, "x:1", 100)

    assert invoke("stat", "x:1", "--quick", *here).exit_code == 1


def test_stat_of_no_tokens_divides_by_nothing(store: SyncStore, here: list[str]) -> None:
    store.put("none", routing(0))

    assert invoke("stat", "none", *here).exit_code == 0


def verdicts(*arguments: str) -> dict[str, bool]:
    report: dict[str, Any] = invoke_json("verify", *arguments)
    return {one["id"]: one["ok"] for one in report["rollouts"]}


def test_verify_of_all_is_fine_when_all_is(filled: SyncStore, here: list[str]) -> None:
    result = invoke("verify", "--all", *here)

    assert (result.exit_code, result.stdout) == (0, "4 rollouts checked (1.9 KiB): 4 ok, 0 bad, 0 with warnings\n")


def test_verify_of_an_empty_store_is_fine_and_told(store: SyncStore, here: list[str]) -> None:
    result = invoke("verify", "--all", *here)

    assert (result.exit_code, "no rollouts in namespace 'default'" in result.stderr) == (0, True)


def test_verify_does_not_take_for_damage_what_is_deleted_meanwhile(
    filled: SyncStore, here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = SyncStore.verify

    def later(store: SyncStore, key: Any, **options: Any) -> Any:
        store.delete("x:1", "x:10")
        return verify(store, key, **options)

    monkeypatch.setattr(SyncStore, "verify", later)
    result = invoke("verify", "--all", *here)

    assert result.stdout == "2 rollouts checked (960 B): 2 ok, 0 bad, 0 with warnings; 2 deleted meanwhile\n"
    assert result.exit_code == 0


@pytest.mark.parametrize("at", [-1, 0, 9, 100, 300])
def test_verify_finds_damage_anywhere(folder: Path, filled: SyncStore, here: list[str], at: int) -> None:
    damage(folder, "x:1", at)

    assert verdicts("--all", *here) == {"a:0:0:0": True, "x:1": False, "x:10": True, "x:1:0": True}


def test_verify_finds_a_file_that_was_cut_off(folder: Path, filled: SyncStore, here: list[str]) -> None:
    (path,) = (folder / "default" / encode_component("x:1")).iterdir()
    content = path.read_bytes()[:-1]
    path.chmod(0o644)
    path.write_bytes(content)

    assert verdicts("x:1", *here) == {"x:1": False}


def test_verify_of_damage_ends_with_1(folder: Path, filled: SyncStore, here: list[str]) -> None:
    damage(folder, "x:1")

    assert invoke("verify", "x:1", *here).exit_code == 1


def test_verify_looks_only_at_what_is_named(folder: Path, filled: SyncStore, here: list[str]) -> None:
    damage(folder, "x:1")

    assert verdicts("x:10", *here) == {"x:10": True}


def test_verify_keeps_to_the_prefix(filled: SyncStore, here: list[str]) -> None:
    assert list(verdicts("--prefix", "x:1", *here)) == ["x:1", "x:1:0"]


def test_verify_of_something_unknown_ends_with_1(filled: SyncStore, here: list[str]) -> None:
    result = invoke("verify", "x:1", "gone", *here)

    assert (result.exit_code, verdicts("x:1", "gone", *here)) == (1, {"gone": False, "x:1": True})


@pytest.mark.parametrize("rollout_id", ["half", "open", "again"])
def test_verify_of_what_is_not_complete_ends_with_1(odd: SyncStore, here: list[str], rollout_id: str) -> None:
    assert invoke("verify", rollout_id, *here).exit_code == 1


def test_verify_warns_of_constant_layers_without_failing(odd: SyncStore, here: list[str]) -> None:
    result = invoke("verify", "constant", *here)

    assert (result.exit_code, "layer 5" in result.stdout) == (0, True)


def test_verify_names_the_rollout_in_every_problem(
    folder: Path, filled: SyncStore, odd: SyncStore, here: list[str]
) -> None:
    damage(folder, "x:1")
    problems = {one["id"]: one["problems"] for one in invoke_json("verify", "--all", *here)["rollouts"]}

    assert {key for key, texts in problems.items() if texts and all(repr(key) in text for text in texts)} == {
        "x:1",
        "half",
        "open",
        "again",
    }


def test_verify_counts_aborted_rollouts_apart(filled: SyncStore, here: list[str]) -> None:
    filled.abort("given up", "out of memory")

    result = invoke("verify", "--all", *here)

    assert (result.exit_code, result.stdout.splitlines()[1:]) == (
        0,
        [
            "given up  aborted  out of memory",
            "5 rollouts checked (1.9 KiB): 4 ok, 1 aborted, 0 bad, 0 with warnings",
        ],
    )


def test_verify_tells_programs_what_was_aborted(filled: SyncStore, here: list[str]) -> None:
    filled.abort("given up", "out of memory")

    report = invoke_json("verify", "--all", *here)

    assert (report["ok"], report["aborted"], [one["id"] for one in report["rollouts"] if one["aborted"]]) == (
        True,
        1,
        ["given up"],
    )


def test_verify_prints_no_routing(folder: Path, store: SyncStore, here: list[str]) -> None:
    secret = np.broadcast_to(np.array([41, 42, 43, 47]), (6, 30, 4)).copy()
    secret[:, ::2] = [44, 45, 46, 48]
    store.put("s", secret)
    damage(folder, "s")

    output = invoke("verify", "s", *here).output + invoke("verify", "s", "--json", *here).output

    assert [number for number in (41, 42, 43, 44, 45, 46, 47) if f"{number}, " in output] == []


def test_verify_wants_to_know_what(filled: SyncStore, here: list[str]) -> None:
    assert invoke("verify", *here).exit_code == 2
