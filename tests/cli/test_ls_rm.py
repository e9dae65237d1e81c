"""``fd-routing ls`` and ``fd-routing rm``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .helpers import invoke, invoke_json, routing, run

if TYPE_CHECKING:
    from fastdeploy_routing_plugins import SyncStore

# Ids as HTTP clients may send them, and how people must see them.
HOSTILE = {
    "[red]x[/red]": "[red]x[/red]",
    "\x1b[31mred": "\\x1b[31mred",
    "a\nb": "a\\nb",
    "bell\x07\x7f": "bell\\x07\\x7f",
    "csi\x9b31m": "csi\\x9b31m",
    "e\u202egnp": "e\\u202egnp",
    "zero\u200bwidth": "zero\\u200bwidth",
    "back\\x1b": "back\\\\x1b",
    ":smile:": ":smile:",
    "../../etc/passwd": "../../etc/passwd",
    "日本語 😀": "日本語 😀",
    " ": " ",
}


def ids(store: SyncStore) -> list[str]:
    return [status.key.rollout_id for status in store.list()]


def test_ls_lists_all_rollouts_in_order(filled: SyncStore, here: list[str]) -> None:
    assert [one["id"] for one in invoke_json("ls", *here)["rollouts"]] == ["a:0:0:0", "x:1", "x:10", "x:1:0"]


def test_ls_keeps_to_the_prefix(filled: SyncStore, here: list[str]) -> None:
    assert [one["id"] for one in invoke_json("ls", "x:1", *here)["rollouts"]] == ["x:1", "x:1:0"]


def test_ls_shows_people_state_and_size(filled: SyncStore, here: list[str]) -> None:
    filled.put("half", routing(10), tokens=(0, 10), total_tokens=30)

    lines = invoke("ls", *here).stdout.splitlines()

    assert lines[2].split() == ["half", "incomplete", "0", "1", "6", "30", "240", "B"]


def test_ls_keeps_to_the_states_asked_for(filled: SyncStore, here: list[str]) -> None:
    filled.put("half", routing(10), tokens=(0, 10), total_tokens=30)
    filled.abort("over", "why")

    def found(*states: str) -> list[str]:
        asked = [word for state in states for word in ("--state", state)]
        return [one["id"] for one in invoke_json("ls", *asked, *here)["rollouts"]]

    assert (found("incomplete"), found("aborted", "incomplete"), found("conflict")) == (["half"], ["half", "over"], [])
    assert len(found("complete")) == 4


def test_ls_says_that_the_others_are_in_other_states(filled: SyncStore, here: list[str]) -> None:
    result = invoke("ls", "--state", "aborted", "--state", "pending", *here)
    assert result.stderr == "none is aborted or pending; 4 rollouts in other states\n"
    assert invoke("ls", "--state", "nonsense", *here).exit_code == 2


def test_ls_tells_choices_apart(store: SyncStore, here: list[str]) -> None:
    store.put("n", routing(1), choice=0)
    store.put("n", routing(1), choice=2)

    assert [line.split("  ")[0] for line in invoke("ls", *here).stdout.splitlines()[1:]] == ["n", "n #2"]


@pytest.mark.parametrize("command", [["ls"], ["rm", "--all", "--yes"], ["verify", "--all"]])
def test_other_namespaces_are_named_where_nothing_is(filled: SyncStore, here: list[str], command: list[str]) -> None:
    assert (
        "its folder has the namespace 'default': --namespace" in invoke(*command, "--namespace", "typo", *here).stderr
    )


@pytest.mark.parametrize("prefix", ["a:0:", "a:0:0:0:", "x:"])
def test_a_prefix_that_ends_elsewhere_is_told_of(filled: SyncStore, here: list[str], prefix: str) -> None:
    said = "a prefix ends before a colon of the ids, or where they end; there is "

    for command in (["ls", prefix], ["rm", "--prefix", prefix]):
        assert (said in invoke(*command, *here).stderr) == (prefix != "a:0:0:0:")


def test_rm_tells_of_other_choices(store: SyncStore, here: list[str]) -> None:
    store.put("n", routing(1), choice=2)

    result = invoke("rm", "n", "--yes", *here)
    assert (result.exit_code, "of this id there is choice 2: --choice" in result.stderr) == (1, True)


def test_ls_of_an_empty_store_is_fine(store: SyncStore, here: list[str]) -> None:
    assert invoke("ls", *here).exit_code == 0


def test_ls_of_nothing_says_where_nothing_is(filled: SyncStore, here: list[str]) -> None:
    said = invoke("ls", *here, "--namespace", "other").stderr

    assert said.startswith(f"no rollouts in namespace 'other' of store 'local' (store_dir={here[1]!r})\n")


def test_ls_of_nothing_says_what_is_unusual(filled: SyncStore, here: list[str]) -> None:
    said = invoke("ls", *here, "--config", '{"fsync": true}', "--namespace", "other").stderr

    assert f"(store_dir={here[1]!r}, fsync=True)\n" in said


@pytest.mark.parametrize(("rollout_id", "shown"), HOSTILE.items())
def test_hostile_ids_are_shown_literally(store: SyncStore, here: list[str], rollout_id: str, shown: str) -> None:
    store.put(rollout_id, routing(1))

    row = invoke("ls", *here).stdout.splitlines()[1]

    assert row.startswith(f"{shown}  ")


def test_hostile_ids_are_exact_in_json(store: SyncStore, here: list[str]) -> None:
    for rollout_id in HOSTILE:
        store.put(rollout_id, routing(1))

    assert {one["id"] for one in invoke_json("ls", *here)["rollouts"]} == set(HOSTILE)


def test_a_long_id_is_shortened_for_people(store: SyncStore, here: list[str]) -> None:
    store.put("y" * 4096, routing(1))

    assert len(invoke("ls", *here).stdout.splitlines()[1]) < 120


def test_there_is_no_colour_when_nobody_watches(filled: SyncStore, here: list[str]) -> None:
    ended = run("ls", *here, env={"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1", "TERM": "xterm-256color"})

    assert "\x1b" not in ended.stdout + ended.stderr


def test_rm_deletes_what_is_named(filled: SyncStore, here: list[str]) -> None:
    invoke("rm", "x:1", "a:0:0:0", "--yes", *here)

    assert ids(filled) == ["x:10", "x:1:0"]


def test_rm_by_prefix_spares_the_neighbours(filled: SyncStore, here: list[str]) -> None:
    invoke("rm", "--prefix", "x:1", "--yes", *here)

    assert ids(filled) == ["a:0:0:0", "x:10"]


def test_rm_of_all_empties_the_namespace(filled: SyncStore, here: list[str]) -> None:
    result = invoke("rm", "--all", "-y", *here)

    assert (ids(filled), result.stdout) == ([], "deleted 4 rollouts\n")


def test_rm_of_all_spares_other_namespaces(filled: SyncStore, here: list[str]) -> None:
    invoke("rm", "--all", "-y", *here, "--namespace", "other")

    assert len(ids(filled)) == 4


def test_rm_of_one_choice_spares_the_others(store: SyncStore, here: list[str]) -> None:
    for choice in range(3):
        store.put("n", routing(1), choice=choice)

    invoke("rm", "n", "--choice", "1", "--yes", *here)

    assert [status.key.choice for status in store.list()] == [0, 2]


def test_rm_asks_with_the_count(filled: SyncStore, here: list[str]) -> None:
    result = invoke("rm", "--all", *here, input="n\n")

    assert "Delete 4 rollouts (1.9 KiB) of namespace 'default'" in result.stderr


@pytest.mark.parametrize(("answer", "left", "code"), [("n\n", 4, 1), ("\n", 4, 1), ("y\n", 0, 0), ("YES\n", 0, 0)])
def test_rm_does_what_it_is_told(filled: SyncStore, here: list[str], answer: str, left: int, code: int) -> None:
    result = invoke("rm", "--all", *here, input=answer)

    assert (len(ids(filled)), result.exit_code) == (left, code)


def test_rm_deletes_nothing_when_nobody_answers(filled: SyncStore, here: list[str]) -> None:
    result = invoke("rm", "--all", *here, input="")

    assert (len(ids(filled)), result.exit_code) == (4, 2)


def test_rm_asks_on_stderr_with_json(filled: SyncStore, here: list[str]) -> None:
    result = invoke("rm", "--all", "--json", *here, input="y\n")

    assert (result.stdout[0], result.stderr[:6]) == ("{", "Delete")


def test_a_dry_run_deletes_nothing(filled: SyncStore, here: list[str]) -> None:
    invoke("rm", "--all", "--dry-run", *here)

    assert len(ids(filled)) == 4


def test_a_dry_run_lists_what_would_go(filled: SyncStore, here: list[str]) -> None:
    report = invoke_json("rm", "--prefix", "x:1", "--dry-run", *here)

    assert ([one["id"] for one in report["rollouts"]], report["deleted"]) == (["x:1", "x:1:0"], 0)


def test_rm_of_something_unknown_ends_with_1_and_deletes_the_rest(filled: SyncStore, here: list[str]) -> None:
    result = invoke("rm", "x:1", "gone", "--yes", *here)

    assert (result.exit_code, ids(filled), "not found: 'gone'" in result.stderr) == (
        1,
        ["a:0:0:0", "x:10", "x:1:0"],
        True,
    )


@pytest.mark.parametrize("arguments", [[], ["x:1", "--all"], ["x:1", "--prefix", "x"], ["--all", "--prefix", "x"]])
def test_rm_wants_one_way_of_saying_what(filled: SyncStore, here: list[str], arguments: list[str]) -> None:
    result = invoke("rm", *arguments, "--yes", *here)

    assert (result.exit_code, len(ids(filled))) == (2, 4)


@pytest.mark.parametrize("rollout_id", HOSTILE)
def test_rm_finds_hostile_ids(store: SyncStore, here: list[str], rollout_id: str) -> None:
    store.put(rollout_id, routing(1))
    store.put("bystander", routing(1))

    invoke("rm", "--yes", *here, "--", rollout_id)

    assert ids(store) == ["bystander"]


def test_an_id_that_is_no_text_is_wrong_usage(filled: SyncStore, here: list[str]) -> None:
    assert run("stat", b"caf\xe9", *here).returncode == 2


def test_rm_that_is_interrupted_says_how_far_it_came(
    store: SyncStore, here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(70):
        store.put(f"n:{number}", routing(1))
    delete = type(store).delete

    def once(self: SyncStore, *keys: Any) -> int:
        if len(self.list()) < 70:
            raise KeyboardInterrupt
        return delete(self, *keys)

    monkeypatch.setattr(type(store), "delete", once)
    result = invoke("rm", "--all", "--yes", *here)

    assert (result.exit_code, result.stderr, result.stdout) == (130, "interrupted; deleting: 64 of 70\n", "")
    assert len(store.list()) == 6
