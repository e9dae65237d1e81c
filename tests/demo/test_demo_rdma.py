"""The demo over ``rdma``: what the trainer reads lives in the memory of the rollout's store worker."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastdeploy_routing_plugins import open_store, resolve
from fastdeploy_routing_plugins.cli.demoing import emptier, prepared
from fastdeploy_routing_plugins.demo.run import run_demo

from ..cli.helpers import invoke, run_json, started
from ..cli.test_try_demo import arenas_of, descendants
from ..writer.helpers import until

if TYPE_CHECKING:
    from fastdeploy_routing_plugins.demo.run import DemoReport

SMALL = {"requests": 4, "new_tokens": 12}


@pytest.fixture(autouse=True)
def _own_rendezvous(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Embedded services meet in a folder of this test."""
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))


@pytest.fixture
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder below which all of the demo's shared memory lies."""
    folder = tmp_path / "shm"
    folder.mkdir()
    for module in ("demo.run", "cli.demoing"):
        monkeypatch.setattr(f"fastdeploy_routing_plugins.{module}.SHM", str(folder))
    return folder


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> dict[str, subprocess.Popen[bytes]]:
    """The demo's processes by name."""
    found: dict[str, subprocess.Popen[bytes]] = {}

    class Recorded(subprocess.Popen[bytes]):
        def __init__(self, args: list[str], **kwargs: Any) -> None:
            super().__init__(args, **kwargs)
            found[args[-1].rpartition(".")[2]] = self

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    return found


def demo(transport: str | None = None, **how: Any) -> DemoReport:
    """Runs the demo as the command does."""
    resolved = resolve({"routing_store_type": "rdma"}, environ={}).with_namespace("demo")
    with prepared(resolved, transport, keep=False) as store, open_store(store) as opened:
        options = {**store.options, "namespace": store.namespace}
        config = {"routing_store_type": "rdma", "routing_store_config": options}
        return run_demo(config, **{**SMALL, "release": True, "at_end": emptier(opened), **how})


def workers_below(folder: Path) -> list[int]:
    """The store workers whose shared memory lies below a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"{folder}/".encode() in (text := path.read_bytes()) and b"writer.worker" in text:
                found.append(int(path.parent.name))
    return found


def test_the_demo_succeeds_over_the_transport_that_is_named_and_leaves_nothing(shm: Path) -> None:
    report = demo("tcp")

    assert (report.failures, report.intact, report.transport) == ((), 4, "shm -> rdma, over tcp")
    assert (workers_below(shm), list(shm.iterdir())) == ([], [])


def test_what_was_rolled_out_is_there_until_a_slow_trainer_has_read_it(
    shm: Path, processes: dict[str, subprocess.Popen[bytes]]
) -> None:
    def go_on() -> None:
        until(lambda: processes["rollout"].poll() is not None)
        processes["trainer"].send_signal(signal.SIGCONT)

    def hold(phase: str, *_: object) -> None:
        if phase == "rollout" and not waiting:
            processes["trainer"].send_signal(signal.SIGSTOP)
            waiting.append(threading.Thread(target=go_on))
            waiting[0].start()

    waiting: list[threading.Thread] = []
    report = demo(progress=hold)
    waiting[0].join()

    assert (report.failures, report.intact) == ((), 4)
    assert (workers_below(shm), list(shm.iterdir())) == ([], [])


@pytest.mark.parametrize("victim", ["rollout", "trainer"])
def test_a_killed_process_leaves_no_worker_and_no_shared_memory(
    shm: Path, processes: dict[str, subprocess.Popen[bytes]], victim: str
) -> None:
    def kill(phase: str, *_: object) -> None:
        if phase == victim:
            seen.extend(workers_below(shm))
            processes[victim].kill()

    seen: list[int] = []
    report = demo(requests=24, progress=kill)

    assert f"the {victim} process was killed by signal 9" in " ".join(report.failures)
    assert (len({*seen}), workers_below(shm), list(shm.iterdir())) == (1, [], [])


def test_a_stopped_demo_leaves_no_process_and_no_shared_memory() -> None:
    environ = {"XDG_RUNTIME_DIR": os.environ["XDG_RUNTIME_DIR"]}
    with started("demo", "--store", "rdma", "--requests", "500", "--tokens", "8", **environ) as process:
        until(lambda: shelves_of(descendants(process.pid)))
        children = descendants(process.pid)
        memory = [*arenas_of(children), *shelves_of(children)]
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=60)

    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in children))
    left = [path for path in memory if os.path.exists(os.path.dirname(path))]
    assert (process.returncode, "".join(output), len(memory), left) == (143, "", 2, [])


def shelves_of(pids: list[int]) -> list[str]:
    """The shelves that processes have mapped."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            mapped = Path(f"/proc/{pid}/maps").read_text().split()
            found |= {word for word in mapped if word.endswith(".shelf")}
    return sorted(found)


# --- the command --------------------------------------------------------------------------------------------------


def test_the_command_says_what_the_routing_came_over() -> None:
    report = run_json("demo", "--store", "rdma", "--requests", "2", "--tokens", "12", "--transport", "auto")

    assert (report["ok"], report["transport"]) == (True, "shm -> rdma, over shm")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--store", "rdma", "--keep"),
        ("--transport", "tcp"),
        ("--store", "rdma", "--config", '{"transport": "shm"}', "--transport", "tcp"),
        ("--store", "rdma", "--transport", "pigeon"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(arguments: tuple[str, ...]) -> None:
    ended = invoke("demo", *arguments)

    assert (ended.exit_code, ended.stderr.startswith("error: ")) == (2, True)
