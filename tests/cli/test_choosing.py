"""Which store a command line means."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fastdeploy_routing_plugins import open_store
from fastdeploy_routing_plugins.cli.choosing import StoreChoice
from fastdeploy_routing_plugins.errors import ConfigError, InvalidKeyError

from .helpers import invoke, invoke_json, routing

if TYPE_CHECKING:
    from pathlib import Path

    from fastdeploy_routing_plugins import SyncStore

VARIABLE = "FD_ROUTING_STORE_CONFIG"
LOCAL = {"routing_store_type": "local", "routing_store_config": {"store_dir": "/x"}}
FLAT = {"enable_routing_replay": True, "routing_store_type": "local", "local_store_dir": "/x", "use_fused_put": False}


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (VARIABLE, "FD_ROUTING_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)


def store_dir(choice: StoreChoice) -> str:
    return str(choice.resolve().options["store_dir"])


@pytest.mark.parametrize(
    "choice",
    [
        StoreChoice(directory="/x"),
        StoreChoice(store="local", directory="/x"),
        StoreChoice(store="local", config='{"store_dir": "/x"}'),
        StoreChoice(config=json.dumps(LOCAL)),
        StoreChoice(store="local", config=json.dumps(LOCAL)),
        StoreChoice(config=json.dumps(FLAT)),
        StoreChoice(store="local", config='{"local_store_dir": "/x"}'),
        StoreChoice(store="local", config=json.dumps({"routing_store_config": {"store_dir": "/x"}})),
        StoreChoice(store="local@fastdeploy-routing-plugins", directory="/x"),
    ],
)
def test_every_way_of_naming_a_folder_means_it(choice: StoreChoice) -> None:
    assert store_dir(choice) == "/x"


def test_configuration_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "engine.json").write_text(json.dumps(FLAT))

    assert store_dir(StoreChoice(config=f"@{tmp_path / 'engine.json'}")) == "/x"


def test_other_options_stand_beside_dir() -> None:
    assert StoreChoice(config='{"fsync": true}', directory="/x").resolve().options == {
        "store_dir": "/x",
        "fsync": True,
        "layout": "safetensors",
    }


@pytest.mark.parametrize(
    "choice",
    [
        StoreChoice(config='{"store_dir": "/x"}'),
        StoreChoice(config="{"),
        StoreChoice(config="[]"),
        StoreChoice(config="@/does/not/exist"),
        StoreChoice(config='{"routing_store_type": "noop", "routing_store_type": "local"}'),
        StoreChoice(store="noop", config=json.dumps(LOCAL)),
        StoreChoice(store="noop", directory="/x"),
        StoreChoice(config=json.dumps(LOCAL), directory="/x"),
        StoreChoice(),
    ],
)
def test_contradictions_and_nonsense_are_refused(choice: StoreChoice) -> None:
    with pytest.raises(ConfigError):
        choice.resolve()


def test_without_options_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps(LOCAL))

    assert store_dir(StoreChoice()) == "/x"


def test_store_alone_keeps_the_environment_for_that_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps(LOCAL))

    assert store_dir(StoreChoice(store="local")) == "/x"


def test_store_alone_drops_the_environment_for_another_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps(LOCAL))

    assert StoreChoice(store="noop").resolve().name == "noop"


@pytest.mark.parametrize(
    "said",
    [
        LOCAL,
        {"store_dir": "/x"},
        {"routing_store_type": "local", "local_store_dir": "/x"},
        {"routing_store_type": "noop"},
    ],
)
def test_a_folder_takes_the_place_of_the_environments(
    said: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "y").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, json.dumps(said))

    found = invoke("ls", "--dir", "y/")
    note = "note: --dir y/ instead of /x from FD_ROUTING_STORE_CONFIG" in found.stderr
    assert (found.exit_code, note) == (0, said != {"routing_store_type": "noop"})


def test_a_folder_leaves_the_environments_other_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps({**LOCAL, "routing_store_config": {"store_dir": "/x", "fsync": True}}))

    assert StoreChoice(directory="/y").resolve().options == {"store_dir": "/y", "fsync": True, "layout": "safetensors"}


CONTRADICTING = [
    StoreChoice(store="local", config='{"store_dir": "/y"}'),
    StoreChoice(config=json.dumps({"routing_store_type": "noop"})),
]


@pytest.mark.parametrize("choice", CONTRADICTING)
def test_options_that_contradict_the_environment_are_refused(
    choice: StoreChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps(LOCAL))

    with pytest.raises(ConfigError, match=VARIABLE):
        choice.resolve()


@pytest.mark.parametrize("choice", [*CONTRADICTING, StoreChoice(directory="/y")])
def test_where_the_command_line_stands_alone_the_environment_does_not_count(
    choice: StoreChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "{")

    assert replace(choice, alone=True).resolve().options.get("store_dir", "/y") == "/y"


@pytest.mark.parametrize("said", ['{"fsync": true}', json.dumps({**LOCAL, "routing_store_config": {"fsync": True}})])
@pytest.mark.parametrize("choice", [StoreChoice(directory="/x"), StoreChoice(config=json.dumps(LOCAL))])
def test_options_are_merged_with_the_environment(
    choice: StoreChoice, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, said)

    assert choice.resolve().options == {"store_dir": "/x", "fsync": True, "layout": "safetensors"}


def test_a_configuration_means_what_it_means_to_open_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = json.dumps({"routing_store_type": "local", "routing_store_config": {"store_dir": str(folder)}})
    monkeypatch.setenv(VARIABLE, '{"routing_store_config": {"namespace": "run-7"}}')
    with open_store(config) as store:
        assert invoke_json("ls", "--config", config)["namespace"] == store.namespace == "run-7"


def with_namespace(namespace: str) -> dict[str, Any]:
    return {"routing_store_type": "local", "routing_store_config": {"store_dir": "/x", "namespace": namespace}}


@pytest.mark.parametrize(
    ("choice", "namespace"),
    [
        (StoreChoice(directory="/x"), "from-env"),
        (StoreChoice(directory="/x", namespace="mine"), "mine"),
        (StoreChoice(config=json.dumps(with_namespace("theirs")), namespace="mine"), "mine"),
    ],
)
def test_the_namespace_option_wins(choice: StoreChoice, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FD_ROUTING_NAMESPACE", "from-env")

    assert choice.resolve().namespace == namespace


@pytest.mark.parametrize(
    ("variable", "value", "source"),
    [
        ("FD_ROUTING_NAMESPACE", "a", "FD_ROUTING_NAMESPACE"),
        (VARIABLE, '{"namespace": "a"}', VARIABLE),
        (
            VARIABLE,
            '{"routing_store_config": {"namespace": "a"}}',
            f"routing_store_config of {VARIABLE}",
        ),
    ],
)
def test_a_namespace_that_is_overruled_is_mentioned(
    filled: SyncStore, here: list[str], monkeypatch: pytest.MonkeyPatch, variable: str, value: str, source: str
) -> None:
    monkeypatch.setenv(variable, value)

    said = invoke("ls", *here, "--namespace", "default").stderr

    assert said == f"note: --namespace default instead of a from {source}\n"


def test_a_namespace_that_is_said_twice_is_not_worth_a_note(
    filled: SyncStore, here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FD_ROUTING_NAMESPACE", "default")

    assert invoke("ls", *here, "--namespace", "default").stderr == ""


def test_a_command_with_its_own_namespace_mentions_no_other(
    store: SyncStore, here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FD_ROUTING_NAMESPACE", "a")

    assert invoke("try", *here, "--rounds", "1", "--tokens", "1").stderr == ""


@pytest.mark.parametrize("namespace", ["", "\udcff", "n" * 500])
def test_a_namespace_that_cannot_be_is_refused(namespace: str) -> None:
    with pytest.raises(InvalidKeyError):
        StoreChoice(directory="/x", namespace=namespace).resolve()


def test_a_namespace_that_cannot_be_is_wrong_usage(filled: SyncStore, here: list[str]) -> None:
    assert invoke("ls", *here, "--namespace", "").exit_code == 2


def test_namespaces_are_kept_apart(filled: SyncStore, here: list[str]) -> None:
    assert invoke_json("ls", *here, "--namespace", "other") == {"namespace": "other", "rollouts": []}


@pytest.mark.parametrize("how", [["--dir", "typo"], ["--store", "local", "--config", '{"store_dir": "typo"}']])
def test_a_mistyped_folder_is_an_error_and_not_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert (invoke("ls", *how).exit_code, list(tmp_path.iterdir())) == (2, [])


def test_looking_makes_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert (invoke("ls", "--store", "local").exit_code, list(tmp_path.iterdir())) == (2, [])


def test_a_store_that_cannot_be_read_says_so() -> None:
    result = invoke("ls", "--store", "noop")

    assert (result.exit_code, "noop" in result.stderr) == (1, True)


def test_a_folder_that_is_no_store_says_so(tmp_path: Path) -> None:
    (tmp_path / "foreign.txt").write_text("not ours")

    assert invoke_json("ls", "--dir", str(tmp_path))["error"]["code"] != "internal"


def test_a_secret_is_in_no_message(filled: SyncStore, here: list[str]) -> None:
    filled.put("a", routing(1))

    assert "pa55" not in invoke("ls", "--store", "local", "--config", '{"token": "pa55"}', "--debug").output
