"""``fd-routing try`` and ``fd-routing demo``."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .helpers import install, invoke, invoke_json, run, run_json, started

if TYPE_CHECKING:
    from fastdeploy_routing_plugins import SyncStore

SMALL = ["--requests", "3", "--tokens", "12"]


def namespaces(folder: Path) -> list[str]:
    """Folders of namespaces that hold anything; a folder that goes meanwhile holds nothing."""
    holding = (
        Path(found) for found, _, files in os.walk(folder) if any(name.endswith(".safetensors") for name in files)
    )
    return sorted({found.relative_to(folder).parts[0] for found in holding})


def test_try_reports_every_step(tmp_path: Path) -> None:
    report = invoke_json("try", "--dir", str(tmp_path / "s"), "--tokens", "64", "--rounds", "2")

    assert (report["ok"], list(report["seconds"])) == (True, ["put", "find", "get", "get one layer", "delete"])


def test_try_says_that_it_works(tmp_path: Path) -> None:
    result = invoke("try", "--dir", str(tmp_path / "s"), "--tokens", "64", "--rounds", "2")

    assert result.stdout.splitlines()[-1] == "local works: 2 x 24.0 KiB went in and came back"


def test_try_leaves_nothing(filled: SyncStore, here: list[str], folder: Path) -> None:
    invoke("try", *here)

    assert namespaces(folder) == ["default"]


def test_try_touches_no_other_namespace(filled: SyncStore, here: list[str]) -> None:
    invoke("try", *here)

    assert len(filled.list()) == 4


def test_try_works_for_a_store_that_keeps_nothing() -> None:
    report = invoke_json("try", "--store", "noop", "--rounds", "1", "--tokens", "16")

    assert (report["ok"], report["readable"], list(report["seconds"])) == (True, False, ["put"])


LIAR = """
from dataclasses import dataclass
from fastdeploy_routing_plugins.backend import Blob, BlockingBackend
from fastdeploy_routing_plugins.errors import NotFoundError
from fastdeploy_routing_plugins.hookspecs import hookimpl
from fastdeploy_routing_plugins.spec import Capability, StoreSpec

@dataclass(frozen=True)
class Config:
    lie: str = ""

class Liar(BlockingBackend):
    def __init__(self, lie):
        self.lie, self.kept = lie, {}

    def _put(self, name, header, payload):
        if self.lie == "raise":
            raise RuntimeError("SDK says no")
        if self.lie != "lose":
            self.kept[name] = header, bytes(payload.data)

    def _get(self, name, ranges=None):
        if name not in self.kept:
            raise NotFoundError("none")
        header, data = self.kept[name]
        if self.lie == "flip":
            data = bytes([data[0] ^ 1]) + data[1:]
        return Blob(header, (data,))

    def _list(self, prefix):
        return sorted(name for name in self.kept if name.startswith(prefix))

    def _delete(self, names):
        if self.lie == "keep":
            return 0
        return sum(self.kept.pop(name, None) is not None for name in names)

@hookimpl
def fd_routing_store():
    return StoreSpec(name="liar", api_version=(1, 0), summary="lies", load_config=lambda: Config,
                     create=lambda context: Liar(context.config.lie), capabilities=Capability.READ | Capability.LIST)
"""


def test_try_of_an_honest_foreign_store_succeeds(tmp_path: Path) -> None:
    assert run("try", "--store", "liar", "--rounds", "1", env=install(tmp_path, "liar", code=LIAR)).returncode == 0


@pytest.mark.parametrize("lie", ["lose", "flip", "keep", "raise"])
def test_try_finds_a_store_that_lies(tmp_path: Path, lie: str) -> None:
    env = install(tmp_path, "liar", code=LIAR)

    assert run("try", "--store", "liar", "--config", f'{{"lie": "{lie}"}}', env=env).returncode == 1


@pytest.mark.parametrize("lie", ["lose", "flip", "keep", "raise"])
def test_try_of_a_store_that_lies_is_one_json_document(tmp_path: Path, lie: str) -> None:
    env = install(tmp_path, "liar", code=LIAR)
    report = run_json("try", "--store", "liar", "--config", f'{{"lie": "{lie}"}}', env=env)

    assert report.get("failures") or report.get("error")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_try_cleans_up_when_it_is_stopped(folder: Path, number: signal.Signals, code: int) -> None:
    with started("try", "--dir", str(folder), "--rounds", "10000", "--tokens", "20000") as process:
        deadline = time.monotonic() + 30
        while not namespaces(folder) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(number)
        output = process.communicate(timeout=30)

    assert (process.returncode, is_told(number, output), namespaces(folder)) == (code, True, [])


def is_told(number: signal.Signals, output: tuple[str, str]) -> bool:
    """Whether who ended a command with Ctrl-C is told how far it came, and nobody else anything."""
    expected = r"interrupted; (\w+( local)?: \d+ of \d+(, |\n))+" if number == signal.SIGINT else ""
    return not output[0] and re.fullmatch(expected, output[1]) is not None


def test_try_without_a_store_is_wrong_usage(tmp_path: Path) -> None:
    assert run("try", cwd=tmp_path).returncode == 2


@pytest.fixture(scope="module")
def demo() -> dict[str, object]:
    """The report of one small demo."""
    return run_json("demo", *SMALL)


def test_demo_succeeds(demo: dict[str, object]) -> None:
    assert (demo["ok"], demo["failures"], demo["intact"]) == (True, [], 3)


def test_demo_measures_what_replay_is_for(demo: dict[str, object]) -> None:
    without, replayed = demo["logprob_mismatch_without_replay"], demo["logprob_mismatch_with_replay"]

    assert without > replayed  # type: ignore[operator]


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for temporary files, in which a demo and a sabotaged demo have run."""
    folder = tmp_path_factory.mktemp("tmp")
    run("demo", *SMALL, env={"TMPDIR": str(folder)})
    return folder


def test_demo_leaves_nothing(temporary: Path) -> None:
    assert os.listdir(temporary) == []


def test_demo_prints_a_table_of_results() -> None:
    text = run("demo", *SMALL).stdout

    wanted = [
        "router decisions that disagree without replay",
        "log-prob mismatch without replay",
        "log-prob mismatch with replay",
        "routing per token",
        "hand-over to the writer",
        "store, in the writer's worker",
        "get, waiting included",
        "demo ok",
    ]
    assert [line for line in wanted if line not in text] == []


def test_sabotage_makes_the_demo_fail() -> None:
    ended = run("demo", *SMALL, "--sabotage", "--json")

    assert (ended.returncode, json.loads(ended.stdout)["ok"]) == (1, False)


def test_demo_keeps_its_records_if_told_to(folder: Path) -> None:
    run("demo", *SMALL, "--keep", "--dir", str(folder))

    assert len(list(folder.rglob("*.safetensors"))) == 3


def test_demo_tells_how_to_look_at_kept_records(folder: Path) -> None:
    ended = run("demo", *SMALL, "--keep", "--dir", str(folder))
    (line,) = [line for line in ended.stderr.splitlines() if "fd-routing ls" in line]

    assert len(run(*line.partition("fd-routing ")[2].split(), "--json").stdout.split('"complete"')) == 4


def test_demo_in_a_named_store_removes_only_its_own(filled: SyncStore, here: list[str], folder: Path) -> None:
    run("demo", *SMALL, *here)

    assert (namespaces(folder), len(filled.list())) == (["default"], 4)


def test_demo_does_not_mind_configuration_in_the_environment(folder: Path) -> None:
    config = {"routing_store_type": "local", "routing_store_config": {"store_dir": "/no/where"}}
    env = {"FD_ROUTING_STORE_CONFIG": json.dumps(config), "FD_ROUTING_NAMESPACE": "run-7"}
    env["FD_ROUTING_WRITER_CONFIG"] = json.dumps({"arena_bytes": 1 << 40})

    assert run("demo", *SMALL, "--dir", str(folder), env=env).returncode == 0


def test_demo_through_a_foreign_store_that_loses_everything_fails(tmp_path: Path) -> None:
    env = install(tmp_path, "liar", code=LIAR)

    ended = run("demo", *SMALL, "--timeout", "3", "--store", "liar", "--config", '{"lie": "lose"}', env=env)

    assert (ended.returncode, "demo failed" in ended.stdout) == (1, True)


def test_demo_with_a_store_that_does_not_open_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")

    assert "error" in run_json("demo", "--dir", str(tmp_path / "file"))


def test_sabotage_needs_two_records() -> None:
    assert run("demo", "--requests", "1", "--sabotage").returncode == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_demo_leaves_no_process_and_no_folder(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with started("demo", "--requests", "500", TMPDIR=str(tmp_path)) as process:
        deadline = time.monotonic() + 30
        while not (arenas := arenas_of(descendants(process.pid))) and time.monotonic() < deadline:
            time.sleep(0.02)
        children = descendants(process.pid)

        process.send_signal(number)
        output = process.communicate(timeout=30)

    # A process that was just being started ends by itself, as its peer is gone.
    deadline = time.monotonic() + 20
    while (running := [pid for pid in children if os.path.exists(f"/proc/{pid}")]) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [path for path in arenas if os.path.exists(os.path.dirname(path))]
    assert (process.returncode, is_told(number, output), running, os.listdir(tmp_path)) == (code, True, [], [])
    assert (len(arenas), left) == (1, [])


def descendants(pid: int) -> list[int]:
    """The demo's processes: rollout and trainer, and the rollout's store worker."""
    found = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                for child in map(int, file.read().split()):
                    found += [child, *descendants(child)]
    return found


def arenas_of(pids: list[int]) -> list[str]:
    """The shared memory that store workers among these processes work on."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline") as file:
            found += [word for word in file.read().split("\0") if word.endswith(".arena")]
    return found


def test_a_demo_of_a_store_that_cannot_be_read_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("processes were started")

    monkeypatch.setattr("fastdeploy_routing_plugins.cli.cmd_demo.run_demo", never)
    result = invoke("demo", "--store", "noop")

    assert (result.exit_code, "READ|LIST" in result.stderr) == (2, True)
