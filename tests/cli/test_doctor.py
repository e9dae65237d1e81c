"""``fd-routing doctor``, with real services, real producers and what is really missing."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from fastdeploy_routing_plugins import WriterLimits, resolve
from fastdeploy_routing_plugins.arena.arena import Arena
from fastdeploy_routing_plugins.doctor.case import Case
from fastdeploy_routing_plugins.doctor.devices import device_lines, memlock_line, mooncake_lines
from fastdeploy_routing_plugins.doctor.examining import examine
from fastdeploy_routing_plugins.doctor.lines import Line
from fastdeploy_routing_plugins.doctor.service import clock_line, producers_line
from fastdeploy_routing_plugins.errors import StoreUnavailableError
from fastdeploy_routing_plugins.stores.rdma.transport.rdma_devices import Device, Port
from fastdeploy_routing_plugins.writer.operations import Setup

from ..writer.helpers import until
from .helpers import SCHEMA, install, invoke, run
from .services import registered_producer, service
from .shelves import leave_shelf, producer
from .test_try_demo import LIAR

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fastdeploy_routing_plugins import SyncStore

LIGHT = json.dumps({"capacity": 2 << 20, "timeout": 2.0})


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable that chooses a store, and rendezvous of embedded services in a folder of this test."""
    for name in [name for name in os.environ if name.startswith("FD_")]:
        monkeypatch.delenv(name)
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))


def lines_of(text: str) -> dict[str, list[dict[str, str]]]:
    """Returns a document's lines by subject."""
    found: dict[str, list[dict[str, str]]] = {}
    for line in json.loads(text)["lines"]:
        found.setdefault(line["subject"], []).append(line)
    return found


def examined(*arguments: str) -> dict[str, list[dict[str, str]]]:
    """Runs the command in this process; returns its lines by subject."""
    return lines_of(invoke("doctor", *arguments, "--json").stdout)


def kinds(found: dict[str, list[dict[str, str]]], *subjects: str) -> list[str]:
    """Returns the kinds of the last lines of some subjects."""
    return [found[subject][-1]["kind"] for subject in subjects]


# --- a host without configuration ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bare() -> Any:
    """How the command ended where nothing is configured."""
    return run("doctor", "--json")


def test_where_nothing_is_configured_nothing_is_bad(bare: Any) -> None:
    document = json.loads(bare.stdout)

    assert (bare.returncode, document["ok"], document["counts"]["bad"]) == (0, True, 0)


def test_python_and_the_package_are_good(bare: Any) -> None:
    assert kinds(lines_of(bare.stdout), "python", "package", "dependencies", "writer") == ["good"] * 4


def test_what_is_not_configured_is_information(bare: Any) -> None:
    found = lines_of(bare.stdout)

    assert kinds(found, "configuration", "fastdeploy", "hook", "service", "store", "probe") == ["info"] * 6


def test_people_get_a_table_with_cures_and_a_count() -> None:
    text = invoke("doctor", "--arena-dir", "/no/where").stdout

    wanted = ["SUBJECT", "no room for an engine's arena", "cure", "arena_dir names an existing tmpfs", "1 bad"]
    assert [words for words in wanted if words not in text] == []


def test_something_bad_ends_in_status_1() -> None:
    assert invoke("doctor", "--arena-dir", "/no/where").exit_code == 1


# --- what is missing ----------------------------------------------------------------------------------------------


def blocked(folder: Path, name: str) -> dict[str, str]:
    """Returns an environment in which a module cannot be imported."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text("raise ImportError('blocked by this test')")
    return {"PYTHONPATH": str(folder)}


@pytest.mark.parametrize("name", ["zmq", "xxhash"])
def test_a_package_that_cannot_be_imported_is_named_with_its_cure(tmp_path: Path, name: str) -> None:
    ended = run("doctor", "--json", env=blocked(tmp_path / "site", name))
    bad = [line for line in lines_of(ended.stdout)["dependencies"] if line["kind"] == "bad"]

    assert ended.returncode == 1
    assert [("blocked by this test" in line["text"], line["cure"][:13]) for line in bad] == [(True, "pip install '")]


def test_what_needs_a_missing_package_is_bad_and_no_traceback(tmp_path: Path) -> None:
    ended = run("doctor", "--json", env=blocked(tmp_path / "site", "xxhash"))

    assert (kinds(lines_of(ended.stdout), "memory"), ended.stderr) == (["bad"], "")


def test_a_configuration_that_is_wrong_is_bad_with_its_cure() -> None:
    (line,) = examined("--store", "local", "--config", '{"stor_dir": "/x"}')["configuration"]

    assert (line["kind"], "store_dir" in line["text"] + line["cure"]) == ("bad", True)


def test_a_store_that_does_not_exist_is_bad() -> None:
    assert kinds(examined("--store", "nowhere"), "configuration", "probe") == ["bad", "info"]


@pytest.mark.parametrize("config", ['{"arena_byte": 1}', "{bad"])
def test_a_writers_option_that_is_wrong_is_bad_once(monkeypatch: pytest.MonkeyPatch, config: str) -> None:
    monkeypatch.setenv("FD_ROUTING_WRITER_CONFIG", config)

    found = examined()
    assert kinds(found, "writer") == ["bad"]
    assert "bad" not in kinds(found, "memory", "leftovers")


# --- FastDeploy ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plugins", "wanted"), [(None, ["warn", "warn"]), ("routing_stores", ["bad", "good"]), ("x", ["warn", "warn"])]
)
def test_a_fastdeploy_of_no_known_family_is_bad_where_it_loads_this_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugins: str | None, wanted: list[str]
) -> None:
    (tmp_path / "fastdeploy").mkdir()
    (tmp_path / "fastdeploy" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    if plugins is not None:
        monkeypatch.setenv("FD_PLUGINS", plugins)

    assert kinds(examined(), "fastdeploy", "hook") == wanted


def test_a_hook_that_blanks_hide_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fastdeploy").mkdir()
    (tmp_path / "fastdeploy" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FD_PLUGINS", "x, routing_stores")

    assert "FastDeploy does not strip blanks" in examined()["hook"][-1]["cure"]


# --- shared memory ------------------------------------------------------------------------------------------------


def test_a_folder_for_shared_memory_that_does_not_exist_is_bad(tmp_path: Path) -> None:
    assert kinds(examined("--arena-dir", str(tmp_path / "none")), "memory") == ["bad"]


def test_too_little_room_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FD_ROUTING_WRITER_CONFIG", json.dumps({"arena_bytes": 1 << 50}))
    (line,) = examined()["memory"]

    assert (line["kind"], "arena_bytes" in line["cure"]) == ("bad", True)


def test_a_folder_on_disk_is_a_warning(tmp_path: Path) -> None:
    found = examined("--arena-dir", str(tmp_path))["memory"][-1]

    assert found["kind"] == ("good" if on_tmpfs(tmp_path) else "warn")


def on_tmpfs(path: Path) -> bool:
    """Whether a folder lies in memory, as the kernel says."""
    with open("/proc/self/mountinfo") as file:
        kinds = {int(line.split()[2].replace(":", ""), 10): line.split(" - ")[1].split()[0] for line in file}
    device = os.stat(path).st_dev
    return kinds.get(int(f"{os.major(device)}{os.minor(device)}")) == "tmpfs"


def test_the_shelf_of_a_dead_producer_is_a_warning(tmp_path: Path) -> None:
    leave_shelf(tmp_path, objects=3)
    (line,) = examined("--arena-dir", str(tmp_path))["leftovers"]

    assert (line["kind"], "3 objects" in line["text"], "fd-routing clean" in line["cure"]) == ("warn", True, True)


def test_the_shelf_of_a_living_producer_is_good(tmp_path: Path) -> None:
    with producer(tmp_path):
        assert kinds(examined("--arena-dir", str(tmp_path)), "leftovers") == ["good"]


def test_the_arena_of_a_dead_engine_is_a_warning(tmp_path: Path) -> None:
    resolved = resolve({"routing_store_type": "noop"}, environ={})
    Arena.create(str(tmp_path), 2 << 20, Setup.of(resolved, SCHEMA, WriterLimits()).encode()).close(remove=False)
    (line,) = examined("--arena-dir", str(tmp_path))["leftovers"]

    assert (line["kind"], "1 arena of dead engines" in line["text"]) == ("warn", True)


def test_the_page_of_a_dead_service_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / f"fd-routing-{os.geteuid()}-{7:016x}.versions").write_bytes(bytes(100))
    (line,) = examined("--arena-dir", str(tmp_path))["leftovers"]

    assert (line["kind"], "1 pages of dead metadata services" in line["text"]) == ("warn", True)


def test_looking_removes_nothing(tmp_path: Path) -> None:
    path = leave_shelf(tmp_path)
    examined("--arena-dir", str(tmp_path))

    assert os.path.exists(path)


# --- RDMA ---------------------------------------------------------------------------------------------------------


def case(**options: Any) -> Case:
    """Returns the case of a store ``rdma``."""
    resolved = resolve({"routing_store_type": "rdma", "routing_store_config": options}, environ={})
    return Case(resolved=resolved)


def required(**options: Any) -> Case:
    """Returns the case of a store that must use RDMA, whose plugin would ask for Mooncake before."""
    made = case(**options)
    assert made.resolved is not None
    object.__setattr__(made.resolved.config, "transport", "rdma")
    return made


def device(state: str = "ACTIVE", *, name: str = "mlx5_0", usable: bool = True) -> Device:
    return Device(name, (Port(1, state, "InfiniBand", "200 Gb/sec (4X HDR)"),), usable)


@pytest.mark.parametrize(
    ("found", "which", "wanted"),
    [
        ([], Case(), ["info"]),
        ([], "auto", ["info"]),
        ([], "tcp", ["info"]),
        ([], "rdma", ["bad"]),
        ([device()], Case(), ["good"]),
        ([device()], "rdma", ["good"]),
        ([device("DOWN")], Case(), ["info", "info"]),
        ([device("DOWN")], "tcp", ["info", "info"]),
        ([device("DOWN")], "auto", ["info", "warn"]),
        ([device("DOWN")], "rdma", ["info", "bad"]),
        ([device(usable=False)], "auto", ["info", "warn"]),
        ([device(name="rxe0"), device("DOWN")], "auto", ["good", "info"]),
    ],
)
def test_devices_are_as_bad_as_they_are_needed(found: list[Device], which: Any, wanted: list[str]) -> None:
    chosen = which if isinstance(which, Case) else required() if which == "rdma" else case(transport=which)

    assert [line.kind for line in device_lines(found, chosen)] == wanted


def test_software_devices_are_named_as_such() -> None:
    (line,) = device_lines([device(name="rxe0")], Case())

    assert "rxe0, Soft-RoCE, in software: port 1 ACTIVE" in line.text


def test_a_device_that_the_configuration_names_and_that_is_not_there_is_bad() -> None:
    lines = [*device_lines([device()], required(device="mlx5_7"))]

    assert lines[-1].kind == "bad"
    assert (lines[-1].text, lines[-1].cure) == (
        "there is no RDMA device mlx5_7 (option device)",
        "this host has: mlx5_0",
    )


def test_a_device_that_is_down_is_told_with_its_state() -> None:
    lines = [*device_lines([device("DOWN")], required())]

    assert lines[-1].text == "no port of an RDMA device is active (mlx5_0: DOWN)"
    assert "ibv_devinfo" in lines[-1].cure


@pytest.mark.parametrize(
    ("limit", "capable", "hardware", "which", "wanted"),
    [
        (None, False, True, "rdma", "good"),
        (8 << 20, True, True, "rdma", "good"),
        (8 << 20, False, True, "rdma", "bad"),
        (8 << 20, False, True, "auto", "warn"),
        (8 << 20, False, True, "tcp", "info"),
        (8 << 20, False, False, "auto", "info"),
    ],
)
def test_the_limit_of_locked_memory_matters_where_rdma_is_used(
    limit: int | None, capable: bool, hardware: bool, which: str, wanted: str
) -> None:
    chosen = required() if which == "rdma" else case(transport=which)

    assert memlock_line(limit, capable, hardware, chosen).kind == wanted


@pytest.mark.parametrize(
    ("builds", "why", "which", "wanted"),
    [
        ([], "not installed", "auto", "info"),
        ([], "not installed", "rdma", "bad"),
        (["mooncake-transfer-engine 0.3.13"], "libcuda", "rdma", "bad"),
        (["mooncake-transfer-engine 0.3.13"], "libcuda", "tcp", "warn"),
        (["mooncake-transfer-engine 0.3.13"], "", "rdma", "good"),
        (["mooncake-transfer-engine 0.3.13", "mooncake-transfer-engine-non-cuda 0.3.13"], "", "rdma", "warn"),
    ],
)
def test_mooncake_is_as_bad_as_it_is_needed(builds: list[str], why: str, which: str, wanted: str) -> None:
    chosen = required() if which == "rdma" else case(transport=which)
    lines = mooncake_lines({"verbs": "", "mooncake": why}, builds, False, chosen)

    assert next(line.kind for line in lines if line.subject == "mooncake") == wanted


def mooncake(folder: Path, code: str) -> dict[str, str]:
    """Fabricates an installed Mooncake whose import runs some code; returns the environment that shows it."""
    (folder / "mooncake").mkdir(parents=True)
    (folder / "mooncake" / "__init__.py").touch()
    (folder / "mooncake" / "engine.py").write_text(code)
    info = folder / "mooncake_transfer_engine-0.3.13.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mooncake-transfer-engine\nVersion: 0.3.13\n")
    return {"PYTHONPATH": str(folder)}


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise ImportError('libcudart.so.12: cannot open shared object file')", "CUDA is not here"),
        ("import os; os.kill(os.getpid(), 11)", "ends the process"),
        ("import time; time.sleep(600)", "did not end within"),
        ("class TransferEngine: pass", "too old"),
    ],
)
def test_a_mooncake_that_cannot_be_imported_says_why(tmp_path: Path, code: str, said: str) -> None:
    ended = run("doctor", "--json", "--timeout", "2", env=mooncake(tmp_path / "site", code))
    lines = lines_of(ended.stdout)["mooncake"]  # a real build may be installed beside it, which is told, too

    assert [line["kind"] for line in lines if said in line["text"]] == ["warn"], lines


# --- the metadata service -----------------------------------------------------------------------------------------


def options(address: str, **more: Any) -> list[str]:
    """Returns the command line's options for a store at a service."""
    return ["--store", "rdma", "--config", json.dumps({"server": address, "capacity": 2 << 20, **more})]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a service that runs."""
    with service() as (_, found):
        yield found


@pytest.fixture(scope="module")
def served(address: str) -> dict[str, list[dict[str, str]]]:
    """What the command found with a service that runs, once that knows what producers hold."""
    end = time.monotonic() + 60
    while True:
        found = lines_of(run("doctor", *options(address, transport="tcp"), "--json").stdout)
        if time.monotonic() > end or not any("just started" in line["text"] for line in found["service"]):
            return found


def test_a_service_that_answers_is_good_and_says_its_epoch(served: dict[str, list[dict[str, str]]]) -> None:
    assert [line["kind"] for line in served["service"]] == ["good"] * 3
    assert "epoch" in served["service"][-1]["text"]


def test_the_services_clock_is_compared_with_this_one(served: dict[str, list[dict[str, str]]]) -> None:
    assert kinds(served, "clock") == ["good"]


def test_a_round_trip_over_a_service_is_good(served: dict[str, list[dict[str, str]]]) -> None:
    assert kinds(served, "store", "probe") == ["good", "good"]


def test_the_probe_says_which_transport_was_used(served: dict[str, list[dict[str, str]]]) -> None:
    assert " over tcp, " in served["probe"][0]["text"]


def test_the_probe_leaves_no_producer_at_the_service(served: dict[str, list[dict[str, str]]]) -> None:
    assert (served["producers"][0]["kind"], served["producers"][0]["text"]) == ("info", "none")


def test_producers_are_counted_with_what_they_hold(address: str, tmp_path: Path) -> None:
    with registered_producer(address, tmp_path):
        (line,) = examined(*options(address))["producers"]

    assert (line["kind"], line["text"]) == ("good", "1 alive, with 1 object")


def test_a_producer_that_gives_no_sign_is_a_warning(tmp_path: Path) -> None:
    with service() as (_, found), registered_producer(found, tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        try:
            line = until(lambda: next((each for each in seen(found) if each["kind"] != "good"), None))
        finally:
            process.send_signal(signal.SIGCONT)

    assert (line["kind"], f"rank-3 (pid {process.pid} on" in line["text"]) == ("warn", True)


def seen(address: str) -> list[dict[str, str]]:
    """Returns what the command says of a service's producers."""
    return examined(*options(address))["producers"]


@pytest.fixture(scope="module")
def gone() -> tuple[str, dict[str, list[dict[str, str]]]]:
    """The address of a service that was killed, and what the command finds there."""
    with service() as (process, found):
        process.kill()
        process.wait()
    return found, lines_of(run("doctor", *options(found), "--json").stdout)


def test_a_service_that_was_killed_is_bad_with_the_command_that_starts_it(gone: tuple[str, Any]) -> None:
    line = gone[1]["service"][-1]

    assert (line["kind"], line["cure"]) == ("bad", f"start one with: fd-routing serve {gone[0]}")


def test_without_its_service_the_store_is_not_tried(gone: tuple[str, Any]) -> None:
    assert kinds(gone[1], "store", "probe") == ["info", "info"]


def test_a_service_that_stands_still_is_bad_and_holds_nobody_up() -> None:
    with service() as (process, found):
        process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        ended = run("doctor", *options(found), "--timeout", "2", "--json")
        took = time.monotonic() - began

    assert (kinds(lines_of(ended.stdout), "service"), took < 30) == (["bad"], True)


def test_a_service_that_has_another_secret_is_bad() -> None:
    with service("ours") as (_, found):
        assert kinds(examined(*options(found, secret="theirs")), "service") == ["bad"]


def test_a_host_that_is_not_known_is_bad() -> None:
    found = examined(*options("zmq://no-such-host.invalid:5765,no-such-host.invalid:5766"))

    assert kinds(found, "service") == ["bad"]


def test_without_an_address_the_first_that_needs_a_service_runs_it() -> None:
    found = examined("--store", "rdma", "--config", LIGHT)

    assert kinds(found, "service", "clock", "store", "probe") == ["info", "good", "good", "good"]
    assert " over shm, " in found["probe"][0]["text"]


@pytest.mark.parametrize(
    ("figures", "shared", "wanted"),
    [
        ({"time": 1000.2}, False, "good"),
        ({"time": 1003.0}, False, "warn"),
        ({"time": 900.0}, False, "warn"),
        ({}, False, "info"),
        ({}, True, "good"),
    ],
)
def test_clocks_that_differ_are_a_warning(figures: dict[str, float], shared: bool, wanted: str) -> None:
    assert clock_line(figures, 1000.0, shared=shared).kind == wanted


def test_of_many_silent_producers_some_are_named() -> None:
    owner = {"producer": "rank", "pid": 7, "node": "host", "state": "lost", "age": 11.0, "names": 2}
    line = producers_line([owner] * 9)

    assert (line.kind, line.text.count("rank (pid 7 on host)"), line.text.endswith(", ...")) == ("warn", 5, True)


# --- the store ----------------------------------------------------------------------------------------------------


def test_a_store_that_works_is_good(store: SyncStore, here: list[str]) -> None:
    assert kinds(examined(*here), "configuration", "store", "probe") == ["good"] * 3


def test_the_probe_leaves_nothing_in_the_store(filled: SyncStore, here: list[str], folder: Path) -> None:
    examined(*here)

    left = [path.relative_to(folder).parts[0] for path in folder.rglob("*.safetensors")]
    assert ({*left}, len(filled.list())) == ({"default"}, 4)


def test_the_environments_configuration_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured = {"routing_store_type": "local", "routing_store_config": {"store_dir": str(folder)}}
    monkeypatch.setenv("FD_ROUTING_STORE_CONFIG", json.dumps(configured))

    assert kinds(examined(), "configuration", "probe") == ["good", "good"]


def test_a_store_that_does_not_open_is_bad_and_not_tried(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")

    assert kinds(examined("--dir", str(tmp_path / "file")), "store", "probe") == ["bad", "info"]


@pytest.mark.parametrize("lie", ["flip", "keep"])
def test_a_store_that_lies_is_bad(tmp_path: Path, lie: str) -> None:
    env = install(tmp_path / "site", "liar", code=SHARED_LIAR)
    ended = run("doctor", "--store", "liar", "--config", json.dumps({"lie": lie}), "--json", env=env)

    assert (ended.returncode, kinds(lines_of(ended.stdout), "store", "probe")) == (1, ["good", "bad"])


# Another handle of the same process sees what was put.
SHARED_LIAR = LIAR.replace("self.lie, self.kept = lie, {}", "self.lie, self.kept = lie, KEPT").replace(
    "@dataclass(frozen=True)", "KEPT = {}\n\n@dataclass(frozen=True)", 1
)
HANGING = SHARED_LIAR.replace(
    '    def _put(self, name, header, payload):\n        if self.lie == "raise":',
    '    def _open(self):\n        if self.lie == "hang":\n            import time\n            time.sleep(600)\n\n'
    '    def _put(self, name, header, payload):\n        if self.lie == "raise":',
)


def test_a_store_that_hangs_is_bad_and_holds_nobody_up(tmp_path: Path) -> None:
    env = install(tmp_path / "site", "liar", code=HANGING)
    arguments = ["--store", "liar", "--config", '{"lie": "hang"}', "--timeout", "1", "--json"]
    ended = run("doctor", *arguments, env=env)

    assert (ended.returncode, kinds(lines_of(ended.stdout), "store", "probe")) == (1, ["bad", "info"])


def test_a_store_that_keeps_nothing_is_good() -> None:
    assert kinds(examined("--store", "noop"), "store", "probe") == ["good", "good"]


# --- checks -------------------------------------------------------------------------------------------------------


def check_well(case: Case) -> Iterator[Line]:
    yield Line("well", "good", "fine")


def check_half(case: Case) -> Iterator[Line]:
    yield Line("half", "good", "so far")
    raise StoreUnavailableError("it went away", hint="wait for it")


def test_a_check_that_fails_is_a_line_after_those_before_it() -> None:
    lines = examine(Case(), [("half", check_half), ("well", check_well)]).lines

    assert [(line.subject, line.kind) for line in lines] == [("half", "good"), ("half", "bad"), ("well", "good")]


def test_the_hint_of_an_error_is_the_cure() -> None:
    assert examine(Case(), [("half", check_half)]).lines[-1].cure == "wait for it"


def test_a_check_with_a_fault_of_its_own_is_a_line() -> None:
    def check(case: Case) -> Iterator[Line]:
        yield Line("x", "good", str(1 // 0))

    (line,) = examine(Case(), [("x", check)]).lines

    assert (line.kind, "ZeroDivisionError" in line.text) == ("bad", True)


def test_a_check_that_hangs_is_a_line_and_the_next_ones_are_made() -> None:
    over = threading.Event()

    def check(case: Case) -> Iterator[Line]:
        yield Line("x", "good", "so far")
        over.wait(60)

    found = examine(Case(timeout=0.1), [("x", check), ("well", check_well)])
    over.set()

    assert ([line.kind for line in found.lines], found.hung) == (["good", "bad", "good"], True)
