"""``fd-routing convert``: routing of other systems, into a store or a file."""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdeploy_routing_plugins import SyncStore
from fastdeploy_routing_plugins.errors import NotFoundError

from .helpers import COMMAND, SCHEMA, environment, invoke, invoke_json, routing, run, run_json
from .test_output import on_a_terminal

MODEL = ["--num-experts", "64", "--top-k", "4", "--layer-ids", "1:7"]
IDS = routing(20).transpose(1, 0, 2)  # token first


def b64(array: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def npy64(array: Any) -> str:
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(array))
    return base64.b64encode(file.getvalue()).decode()


def sglang(ids: Any = IDS, prompt: int = 11, completion: int = 10) -> dict[str, Any]:
    hidden = np.zeros((len(ids), 8, 4), "<i4")
    hidden[:, 1:7] = ids
    meta = {"routed_experts": b64(hidden), "prompt_tokens": prompt, "completion_tokens": completion}
    return {"text": "...", "meta_info": meta}


def vllm(*every: Any) -> dict[str, Any]:
    choices = [
        {"index": index, "routed_experts": npy64(ids.astype("u1")), "token_ids": [1] * 10}
        for index, ids in enumerate(every)
    ]
    return {"choices": choices, "usage": {"prompt_tokens": 11}}


RESPONSE = {
    "choices": [{"index": 0}],
    "routed_experts": b64(IDS.astype("u1")),
    "usage": {"prompt_tokens": 11, "completion_tokens": 10},
}
PAYLOADS: dict[str, tuple[bytes, list[str]]] = {
    "sglang": (json.dumps(sglang()).encode(), ["--hidden-layers", "8"]),
    "vllm": (json.dumps(vllm(IDS)).encode(), []),
    "fastdeploy": (json.dumps(RESPONSE).encode(), []),
    "p2pstore": (np.ascontiguousarray(IDS.transpose(1, 0, 2).astype("u1")).tobytes(), []),
    "pdtensor": (pickle.dumps(routing(20).astype("u1"), 4), []),
}


@pytest.fixture
def payload(tmp_path: Path) -> Any:
    def write(content: Any, name: str = "payload") -> str:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return str(path)

    return write


def tree(folder: Path, **rollouts: Any) -> Path:
    """Writes what ``paddle.save`` would: one file for three axes, one a layer for a dict of layers."""
    for rollout_id, content in rollouts.items():
        (folder / rollout_id).mkdir(parents=True)
        if isinstance(content, dict):
            for layer, array in content.items():
                (folder / rollout_id / f"layer_{layer}.pdtensor").write_bytes(pickle.dumps(array, 4))
        else:
            data = content if isinstance(content, bytes) else pickle.dumps(content, 4)
            (folder / rollout_id / f"{rollout_id}.pdtensor").write_bytes(data)
    return folder


# --- one payload ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", PAYLOADS)
def test_a_payload_goes_into_the_store(store: SyncStore, here: list[str], payload: Any, form: str) -> None:
    data, options = PAYLOADS[form]
    result = invoke("convert", form, payload(data), "--id", "a:0", *MODEL, *options, *here)
    assert (result.exit_code, store.get("a:0").routing.tolist()) == (0, routing(20).tolist())


@pytest.mark.parametrize("form", PAYLOADS)
def test_a_payload_becomes_a_file(tmp_path: Path, payload: Any, form: str) -> None:
    data, options = PAYLOADS[form]
    result = invoke("convert", form, payload(data), "-o", str(tmp_path / "x.npy"), *MODEL, *options)
    assert (result.exit_code, np.load(tmp_path / "x.npy").tolist()) == (0, routing(20).tolist())


def test_the_real_command_reads_stdin(folder: Path) -> None:
    data, options = PAYLOADS["sglang"]
    command = [COMMAND, "convert", "sglang", "-", "--id", "a", *MODEL, *options, "--dir", str(folder)]
    done = subprocess.run(command, input=data, env=environment(), capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, "a: tokens 0:20 of 20, 480 B -> local\n", b"")


def test_the_document_says_what_was_put(folder: Path, payload: Any) -> None:
    data, options = PAYLOADS["sglang"]
    report = run_json("convert", "sglang", payload(data), "--id", "a", *MODEL, *options, "--dir", str(folder))
    assert report == {
        "store": "local",
        "namespace": "default",
        "dry_run": False,
        "rollouts": [
            {
                "id": "a",
                "choice": 0,
                "parts": [{"layers": [0, 6], "tokens": [0, 20]}],
                "total_tokens": 20,
                "complete": True,
                "bytes": 480,
                "there_already": False,
            }
        ],
    }


def test_the_bare_text_is_read_too(store: SyncStore, here: list[str], payload: Any) -> None:
    invoke("convert", "vllm", payload(npy64(IDS.astype("u1")).encode() + b"\n"), "--id", "a", *MODEL, *here)
    assert store.get("a").num_tokens == 20


def test_the_text_as_json_is_read_too(store: SyncStore, here: list[str], payload: Any) -> None:
    invoke("convert", "fastdeploy", payload(b64(IDS.astype("u1"))), "--id", "a", *MODEL, *here)
    assert store.get("a").num_tokens == 20


def test_every_choice_is_put_under_its_number(store: SyncStore, here: list[str], payload: Any) -> None:
    invoke("convert", "vllm", payload(vllm(IDS, IDS[:, ::-1])), "--id", "a", *MODEL, *here)
    assert store.get("a", choice=1).routing.tolist() == routing(20)[::-1].tolist()


def test_one_choice_alone_is_put(store: SyncStore, here: list[str], payload: Any) -> None:
    invoke("convert", "vllm", payload(vllm(IDS, IDS)), "--id", "a", "--choice", "1", *MODEL, *here)
    with pytest.raises(NotFoundError):
        store.get("a", choice=0)


def test_a_file_holds_one_choice(tmp_path: Path, payload: Any) -> None:
    result = invoke("convert", "vllm", payload(vllm(IDS, IDS)), "-o", str(tmp_path / "x.npy"), *MODEL)
    assert (result.exit_code, "--choice says which" in result.stderr) == (2, True)


def test_turns_are_joined(store: SyncStore, here: list[str], payload: Any) -> None:
    turns = [(sglang(IDS[:12], 3, 10), ["--more"]), (sglang(IDS[12:], 11, 10), ["--start", "12"])]
    for turn, options in turns:
        invoke("convert", "sglang", payload(turn), "--id", "a", "--hidden-layers", "8", *options, *MODEL, *here)
    assert store.get("a").routing.tolist() == routing(20).tolist()


def test_what_is_put_again_is_said_to_be_there(here: list[str], payload: Any, store: SyncStore) -> None:
    results = [invoke("convert", "vllm", payload(vllm(IDS)), "--id", "a", *MODEL, *here).stdout for _ in range(2)]
    assert ["was there already" in text for text in results] == [False, True]


def test_other_routing_under_the_same_id_is_a_conflict(here: list[str], payload: Any, store: SyncStore) -> None:
    store.put("a", routing(20, seed=1))
    document = invoke_json("convert", "vllm", payload(vllm(IDS)), "--id", "a", *MODEL, *here)
    assert document["error"]["code"] == "conflict"


def test_an_attempt_can_be_stated(here: list[str], payload: Any, store: SyncStore) -> None:
    invoke("convert", "vllm", payload(vllm(IDS)), "--id", "a", "--attempt", "7", *MODEL, *here)
    assert store.get("a").attempt == 7


def test_a_dry_run_puts_nothing(here: list[str], payload: Any, store: SyncStore) -> None:
    result = invoke("convert", "vllm", payload(vllm(IDS)), "--id", "a", "--dry-run", *MODEL, *here)
    assert (result.exit_code, store.list()) == (0, [])


def test_a_dry_run_checks_ids(payload: Any) -> None:
    result = invoke("convert", "vllm", payload(vllm(IDS + 60)), "--dry-run", *MODEL)
    assert (result.exit_code, "is not in 0..63" in result.stderr) == (2, True)


def test_tokens_that_were_not_captured_are_left_missing(here: list[str], payload: Any, store: SyncStore) -> None:
    ids = IDS.copy()
    ids[:5] = -1
    reply = sglang(ids)
    hidden = np.full((20, 8, 4), -1, "<i4")
    hidden[5:, 1:7] = IDS[5:]
    reply["meta_info"]["routed_experts"] = b64(hidden)
    invoke("convert", "sglang", payload(reply), "--id", "a", "--hidden-layers", "8", *MODEL, *here)
    assert [str(part) for part in store.status("a").missing] == ["layers 0:6, tokens 0:5"]


def test_if_nothing_was_captured_readers_learn_what_they_wait_for(
    here: list[str], payload: Any, store: SyncStore
) -> None:
    text = b64(np.full((20, 6, 4), -1, "<i4"))
    invoke("convert", "sglang", payload(text), "--id", "a", *MODEL, *here)
    assert store.status("a").total_tokens == 20


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["vllm", "PAYLOAD"], "where to?"),
        (["vllm", "PAYLOAD", "--id", "a", "--dtype", "uint8"], "--dtype: not for vllm"),
        (["p2pstore", "PAYLOAD", "--id", "a", "--hidden-layers", "9", "--start", "1"], "--hidden-layers, --start"),
        (["vllm", "nowhere", "--id", "a"], "cannot read 'nowhere': No such file"),
        (["vllm", ".", "--id", "a"], "cannot read '.': Is a directory"),
        (["vllm", "PAYLOAD", "-o", "x.txt"], "must end in .npy or .safetensors"),
        (["vllm", "PAYLOAD", "--id", "a", "--choice", "3"], "no routing of choice 3"),
        (["bogus", "PAYLOAD", "--id", "a"], "'bogus' is not one of"),
    ],
)
def test_wrong_usage_says_what_is_wrong(payload: Any, arguments: list[str], words: str) -> None:
    path = payload(vllm(IDS))
    result = invoke("convert", *[path if each == "PAYLOAD" else each for each in arguments], *MODEL)
    assert (result.exit_code, words in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ([], "--num-experts, --top-k, --layer-ids missing"),
        (["--schema", '{"num_experts": 64}'], "--top-k, --layer-ids missing"),
        (["--schema", '{"num_experts": 64, "topk": 4}'], "unknown keys: topk"),
        (["--schema", "[]"], "must be a JSON object"),
        (["--num-experts", "64", "--top-k", "4", "--layer-ids", "1:7:2"], "'1:7:2' is no layer"),
        (["--num-experts", "64", "--top-k", "4", "--layer-ids", "0:9999999999"], "is no layer"),
        (["--num-experts", "64", "--top-k", "4", "--layer-ids", "3,2"], "strictly increasing"),
        (["--num-experts", "2", "--top-k", "4", "--layer-ids", "1:7"], "top_k must be an integer from 1 to 2"),
    ],
)
def test_a_model_that_is_not_stated_well_is_refused(payload: Any, model: list[str], words: str) -> None:
    result = invoke("convert", "vllm", payload(vllm(IDS)), "--id", "a", *model)
    assert (result.exit_code, words in result.stderr) == (2, True)


@pytest.mark.parametrize(
    "model",
    [
        ["--schema", '{"num_experts": 64, "top_k": 4, "layer_ids": [1, 2, 3, 4, 5, 6]}'],
        ["--schema", "@FILE"],
        ["--schema", '{"num_experts": 1, "top_k": 4}', "--num-experts", "64", "--layer-ids", "1,2:5, 5 ,6"],
    ],
)
def test_a_model_can_be_stated_in_several_ways(
    here: list[str], payload: Any, store: SyncStore, model: list[str]
) -> None:
    file = payload({"num_experts": 64, "top_k": 4, "layer_ids": list(range(1, 7))}, "schema.json")
    model = [each.replace("FILE", file) for each in model]
    invoke("convert", "vllm", payload(vllm(IDS)), "--id", "a", *model, *here)
    assert store.get("a").schema == SCHEMA


@pytest.mark.parametrize("form", PAYLOADS)
def test_what_is_cut_off_is_refused_and_nothing_is_put(
    here: list[str], payload: Any, store: SyncStore, form: str
) -> None:
    data, options = PAYLOADS[form]
    result = invoke("convert", form, payload(data[:-7]), "--id", "a", *MODEL, *options, *here)
    assert (result.exit_code, store.list()) == (2, [])


# --- FastDeploy's tree ------------------------------------------------------------------------------------------


@pytest.fixture
def two_and_a_bomb(tmp_path: Path) -> Path:
    """A tree with a fused rollout, one of three layers, one whose file would create another when unpickled."""

    class Bomb:
        def __reduce__(self) -> Any:
            return Path.write_text, (tmp_path / "exploded", "x")

    array = routing(20).astype("u1")
    folder = tree(
        tmp_path / "tree",
        **{"a:0": array, "b:0": {0: array[0], 1: array[1], 4: array[4]}, "c:0": pickle.dumps(Bomb(), 4)},
    )
    (folder / "notes.txt").write_text("mine")
    return folder


def test_a_tree_goes_into_a_store_under_its_ids(here: list[str], store: SyncStore, two_and_a_bomb: Path) -> None:
    invoke("convert", "pdtensor", str(two_and_a_bomb), *MODEL, *here)
    assert [(status.key.rollout_id, status.state) for status in store.list()] == [
        ("a:0", "complete"),
        ("b:0", "incomplete"),
    ]


def test_a_trees_routing_comes_back_exactly(here: list[str], store: SyncStore, two_and_a_bomb: Path) -> None:
    invoke("convert", "pdtensor", str(two_and_a_bomb), *MODEL, *here)
    assert store.get("b:0", layers=4).routing.tolist() == routing(20)[4:5].tolist()


def test_a_bomb_in_a_tree_fails_alone_and_runs_nothing(folder: Path, tmp_path: Path, two_and_a_bomb: Path) -> None:
    done = run("convert", "pdtensor", str(two_and_a_bomb), *MODEL, "--dir", str(folder))
    assert (done.returncode, "does not belong in one" in done.stdout) == (1, True)
    assert not (tmp_path / "exploded").exists()


def test_the_document_of_a_tree_counts(here: list[str], store: SyncStore, two_and_a_bomb: Path) -> None:
    document = invoke_json("convert", "pdtensor", str(two_and_a_bomb), *MODEL, *here)
    counts = {name: value for name, value in document.items() if name != "rollouts"}
    assert counts == {
        "store": "local",
        "namespace": "default",
        "dry_run": False,
        "imported": 2,
        "there_already": 0,
        "incomplete": 1,
        "failed": 1,
        "bytes": 720,
        "skipped": ["notes.txt"],
    }


def test_people_get_a_summary(folder: Path, two_and_a_bomb: Path) -> None:
    done = run("convert", "pdtensor", str(two_and_a_bomb), *MODEL, "--dir", str(folder))
    assert (done.stdout.splitlines()[-1], done.stderr) == (
        "2 rollouts imported (720 B), 1 of them incomplete, 1 failed",
        "skipped: notes.txt\n",
    )


def test_a_tree_that_is_imported_again_changes_nothing(
    here: list[str], store: SyncStore, two_and_a_bomb: Path
) -> None:
    documents = [invoke_json("convert", "pdtensor", str(two_and_a_bomb), *MODEL, *here) for _ in range(2)]
    assert [document["there_already"] for document in documents] == [0, 2]


def test_a_dry_run_of_a_tree_checks_and_puts_nothing(here: list[str], store: SyncStore, two_and_a_bomb: Path) -> None:
    document = invoke_json("convert", "pdtensor", str(two_and_a_bomb), "--dry-run", *MODEL, *here)
    assert (document["imported"], document["failed"], store.list()) == (0, 1, [])


def test_a_tree_of_another_model_fails_for_each_rollout(here: list[str], store: SyncStore, tmp_path: Path) -> None:
    array = routing(20).astype("u1")
    folder = tree(tmp_path / "tree", a=array, b=array)
    document = invoke_json(
        "convert", "pdtensor", str(folder), "--num-experts", "64", "--top-k", "4", "--layer-ids", "0:9", *here
    )
    assert [each["error"]["code"] for each in document["rollouts"]] == ["invalid_record"] * 2


def test_names_that_are_no_ids_fail_alone(here: list[str], store: SyncStore, tmp_path: Path) -> None:
    folder = tree(tmp_path / "tree", a=routing(20).astype("u1"))
    bad = os.fsencode(folder) + b"/\xff"
    os.mkdir(bad)
    with open(bad + b"/\xff.pdtensor", "wb") as file:
        file.write(pickle.dumps(routing(20).astype("u1"), 4))
    document = invoke_json("convert", "pdtensor", str(folder), *MODEL, *here)
    assert (document["imported"], document["failed"]) == (1, 1)


@pytest.mark.parametrize("content", [routing(20), {layer: routing(20)[layer] for layer in range(6)}])
def test_the_folder_of_one_rollout_is_that_rollout(tmp_path: Path, here: list[str], content: Any) -> None:
    folder = tree(tmp_path / "tree", **{"x:1": content, "x:2": content})
    document = invoke_json("convert", "pdtensor", str(folder / "x:1"), *MODEL, *here)
    assert (document["imported"], document["failed"], document["rollouts"][0]["id"]) == (1, 0, "x:1")


def test_a_path_that_does_not_exist_is_told_first(here: list[str]) -> None:
    result = invoke("convert", "sglang", "nosuch.json", *MODEL, *here)
    assert (result.exit_code, "cannot read 'nosuch.json'" in result.stderr) == (2, True)


def test_a_folder_without_rollouts_is_wrong_usage(tmp_path: Path, here: list[str]) -> None:
    result = invoke("convert", "pdtensor", str(tmp_path), *MODEL, *here)
    assert (result.exit_code, "there is no rollout in" in result.stderr) == (2, True)


@pytest.mark.parametrize("option", [["--id", "a"], ["-o", "x.npy"], ["--choice", "1"], ["--more"]])
def test_a_folder_takes_no_options_of_one_payload(two_and_a_bomb: Path, option: list[str]) -> None:
    result = invoke("convert", "pdtensor", str(two_and_a_bomb), *MODEL, *option)
    assert (result.exit_code, "under the ids that it names" in result.stderr) == (2, True)


def test_a_store_that_is_not_there_ends_the_import(two_and_a_bomb: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = invoke("convert", "pdtensor", str(two_and_a_bomb), *MODEL, "--store", "local", "--config",
                    json.dumps({"store_dir": str(tmp_path / "file")}))  # fmt: skip
    assert (result.exit_code, "error:" in result.stderr) == (2, True)


def test_progress_is_shown_at_a_terminal(tmp_path: Path, here: list[str]) -> None:
    array = routing(20).astype("u1")
    folder = tree(tmp_path / "tree", a=array, b=array)
    assert "importing" in on_a_terminal("convert", "pdtensor", str(folder), *MODEL, *here, also_stdout=False)


def test_a_store_that_would_lose_it_at_once_is_refused(payload: Any) -> None:
    data, options = PAYLOADS["sglang"]
    done = run("convert", "sglang", payload(data), *MODEL, *options, "--store", "rdma", "--id", "x")
    assert (done.returncode, "memory of the process" in " ".join(done.stderr.split())) == (2, True), done.stderr


@pytest.mark.parametrize("form", ["sglang", "fastdeploy", "p2pstore"])
def test_an_empty_file_is_no_rollout(store: SyncStore, here: list[str], payload: Any, form: str) -> None:
    done = invoke("convert", form, payload(b""), "--id", "x", *MODEL, *here)
    assert (done.exit_code != 0, "no routing" in done.stderr, store.list()) == (True, True, [])


def test_what_is_wrong_with_one_choice_keeps_the_others_out(store: SyncStore, here: list[str], payload: Any) -> None:
    wrong = IDS.copy()
    wrong[3, 2, 1] = 64
    done = invoke("convert", "vllm", payload(vllm(IDS, wrong)), "--id", "x", *MODEL, *here)
    assert (done.exit_code, store.list()) == (2, [])
