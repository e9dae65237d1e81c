"""``fd-routing clean``, with real engines, real workers and real shared memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fastdeploy_routing_plugins.arena.file import peek
from fastdeploy_routing_plugins.arena.layout import PAGE, Live

from ..writer import stores
from ..writer.helpers import Place, alive, routing, same, until, workers
from .helpers import run, started

MANY = 12
ENGINE = """
import signal
writer = place.writer(how.pop("store"), limits=how.pop("limits"), **how)
if stopped:
    os.kill(writer.stats().worker_pid, signal.SIGSTOP)
for number in range(12):
    writer.submit(f"{prefix}:{number}:0:0", routing(tokens, seed=number))
exec(more)
print(writer.stats().worker_pid, flush=True)
sys.stdin.readline()
writer.flush(30.0).check()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the test stores' distribution."""
    return stores.install(tmp_path_factory.mktemp("site") / "stores")


@dataclass
class Engine:
    """An engine that handed twelve rollouts over and goes on when it gets a line, and its worker."""

    process: subprocess.Popen[str]
    worker: int

    def kill(self) -> None:
        """Kills the engine; its worker goes on."""
        self.process.kill()
        self.process.wait()

    def kill_both(self) -> None:
        """Kills the engine and at once its worker; the other way round there would be a new worker."""
        self.kill()
        with suppress(ProcessLookupError):
            os.kill(self.worker, signal.SIGKILL)
        until(lambda: not alive(self.worker))


class Scene(Place):
    """A place, and the engines that were started in it."""

    def __init__(self, root: Path, site: Path) -> None:
        super().__init__(root, site)
        object.__setattr__(self, "engines", [])
        self.make()

    def start(
        self,
        store: str,
        *,
        prefix: str = "run",
        tokens: int = 100,
        limits: dict[str, Any] | None = None,
        stopped: bool = False,
        more: str = "",
        **options: Any,
    ) -> Engine:
        """Starts an engine and returns it when it has handed everything over; its worker may be stopped before."""
        how = {"store": store, "limits": limits or {}, **options}
        code = f"how, prefix, tokens, stopped, more = {(how, prefix, tokens, stopped, more)!r}\n{ENGINE}"
        process = self.engine(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.engines.append(process)
        return Engine(process, int(process.stdout.readline()))

    def leave(self, store: str = "local", **how: Any) -> None:
        """Leaves the arena of an engine that was killed, with its worker, before anything was stored."""
        self.start(store, stopped=True, **how).kill_both()

    def clean(self, *arguments: str, code: int = 0, **options: Any) -> dict[str, Any]:
        """Runs the command, which must end with a status; returns its document."""
        ended = self.run_clean(*arguments, "--json", **options)
        assert ended.returncode == code, ended.stdout + ended.stderr
        return json.loads(ended.stdout)

    def run_clean(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs the command on this place's arenas."""
        options.setdefault("env", {"PYTHONPATH": str(self.site)})
        return run("clean", "--arena-dir", str(self.arena_dir), *arguments, **options)

    def arena(self) -> str:
        """Returns the path of the one arena that is there."""
        (path,) = self.arena_dir.glob("*.arena")
        return str(path)

    def holds(self, prefix: str = "run", tokens: int = 100) -> bool:
        """Whether the store holds exactly what an engine handed over."""
        with self.read() as store:
            return all(same(store, f"{prefix}:{n}:0:0", routing(tokens, seed=n)) for n in range(MANY))

    def end(self) -> None:
        """Ends whatever runs here."""
        for process in self.engines:
            process.kill()
            process.communicate()
        for pid in workers(self.arena_dir):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not workers(self.arena_dir))


@pytest.fixture
def scene(tmp_path: Path, site: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path, site)
    yield scene
    scene.end()


# --- dead engines -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory, site: Path) -> Iterator[tuple[Scene, dict[str, Any]]]:
    """Engine and worker were killed at once over a slow store, and the command has run."""
    scene = Scene(tmp_path_factory.mktemp("cleaned"), site)
    scene.start("slow", delay=0.2).kill_both()
    yield scene, scene.clean()
    scene.end()


def test_what_a_dead_engine_left_is_stored(cleaned: tuple[Scene, dict[str, Any]]) -> None:
    assert cleaned[0].holds()


def test_shared_memory_of_a_dead_engine_is_removed(cleaned: tuple[Scene, dict[str, Any]]) -> None:
    assert os.listdir(cleaned[0].arena_dir) == []


def test_the_document_says_what_became_of_the_arena(cleaned: tuple[Scene, dict[str, Any]]) -> None:
    (arena,) = cleaned[1]["arenas"]

    assert (cleaned[1]["ok"], arena["state"], arena["outcome"], arena["store"]) == (True, "dead", "stored", "slow")


def test_everything_that_was_pending_is_counted_as_stored(cleaned: tuple[Scene, dict[str, Any]]) -> None:
    (arena,) = cleaned[1]["arenas"]

    assert 0 < arena["stored"] == arena["pending"] <= MANY


def test_people_read_what_became_of_it(scene: Scene) -> None:
    scene.leave()

    assert "stored 12 operations, removed 1 arena (8.0 MiB)" in scene.run_clean().stdout


def test_several_dead_engines_are_cleaned_up_at_once(scene: Scene) -> None:
    scene.leave(prefix="one")
    scene.leave(prefix="two")
    scene.clean()

    assert (scene.holds("one"), scene.holds("two")) == (True, True)


def test_a_dry_run_shows_what_would_be_stored(scene: Scene) -> None:
    scene.leave()

    (arena,) = scene.clean("--dry-run")["arenas"]

    assert arena["operations"] == [f"put of 'run:{n}:0:0', layers 0:6, tokens 0:100" for n in range(MANY)]


def test_a_dry_run_changes_nothing(scene: Scene) -> None:
    scene.leave()
    before = os.listdir(scene.arena_dir)
    scene.run_clean("--dry-run")

    assert (os.listdir(scene.arena_dir), scene.ids()) == (before, [])


@pytest.fixture(scope="module")
def partly(tmp_path_factory: pytest.TempPathFactory, site: Path) -> Iterator[tuple[Scene, dict[str, Any]]]:
    """One of thirteen parts that a dead engine left has an id out of range, and the command has run."""
    scene = Scene(tmp_path_factory.mktemp("partly"), site)
    scene.leave(more="writer.submit('run:3:1:0', routing(5) + np.uint8(16))")
    yield scene, scene.clean(code=1)
    scene.end()


def test_a_part_that_cannot_be_stored_is_reported_with_its_id(partly: tuple[Scene, dict[str, Any]]) -> None:
    assert [one["what"] for one in partly[1]["arenas"][0]["failed"]] == ["put of 'run:3:1:0', layers 0:6, tokens 0:5"]


def test_a_part_that_cannot_be_stored_is_reported_with_its_cause(partly: tuple[Scene, dict[str, Any]]) -> None:
    assert partly[1]["arenas"][0]["failed"][0]["why"].startswith("invalid_record: ")


def test_the_parts_beside_one_that_cannot_be_stored_are_stored(partly: tuple[Scene, dict[str, Any]]) -> None:
    assert partly[0].holds()


def test_an_arena_with_a_part_that_cannot_be_stored_is_removed(partly: tuple[Scene, dict[str, Any]]) -> None:
    assert os.listdir(partly[0].arena_dir) == []


def test_an_interrupted_clean_up_loses_nothing(scene: Scene) -> None:
    scene.leave("slow", delay=0.3)
    with started("clean", "--arena-dir", str(scene.arena_dir), PYTHONPATH=str(scene.site)) as process:
        until(lambda: len(scene.ids()) > 1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    left = len(scene.ids())
    scene.clean()

    assert (process.returncode, left < MANY, scene.holds()) == (130, True, True)


# --- living engines -----------------------------------------------------------------------------------------------


def test_the_arena_of_a_living_engine_is_left_alone(scene: Scene) -> None:
    scene.flag.touch()
    engine = scene.start("unavailable")
    (arena,) = scene.clean("--kill", "--discard", "--yes", "--wait", "0")["arenas"]

    found = (arena["state"], arena["outcome"], arena["engine_pid"], arena["worker_pid"])
    assert found == ("live", "left", engine.process.pid, engine.worker)


def test_a_living_engine_does_not_notice(scene: Scene) -> None:
    scene.flag.touch()
    engine = scene.start("unavailable")
    scene.run_clean("--kill", "--discard", "--yes", "--wait", "0")
    scene.flag.unlink()
    engine.process.communicate("go on\n")

    assert (engine.process.returncode, scene.holds()) == (0, True)


# --- workers that go on without their engine ----------------------------------------------------------------------


def test_a_worker_that_finishes_alone_is_waited_for(scene: Scene) -> None:
    engine = scene.start("local", stopped=True)
    engine.kill()
    arguments = ("clean", "--arena-dir", str(scene.arena_dir), "--wait", "60", "--json")
    with started(*arguments, PYTHONPATH=str(scene.site)) as command:
        assert command.stderr is not None
        assert "waiting up to 60 s" in command.stderr.readline()
        os.kill(engine.worker, signal.SIGCONT)
        (arena,) = json.loads(command.communicate(timeout=60)[0])["arenas"]

    assert (arena["state"], arena["outcome"], scene.holds()) == ("draining", "finished", True)


def test_an_engine_whose_parent_has_not_noticed_its_end_is_dead(scene: Scene) -> None:
    engine = scene.start("local", stopped=True)
    engine.process.send_signal(signal.SIGKILL)
    until(lambda: not alive(engine.process.pid))
    (arena,) = scene.clean("--dry-run")["arenas"]

    assert (arena["state"], arena["worker_pid"]) == ("draining", engine.worker)


def test_a_worker_that_does_not_finish_in_time_is_named(scene: Scene) -> None:
    engine = scene.start("local", stopped=True)
    engine.kill()

    assert f"(pid {engine.worker}) still stores" in scene.run_clean("--wait", "0.3").stderr


def test_a_worker_that_does_not_finish_in_time_makes_the_command_fail(scene: Scene) -> None:
    scene.start("local", stopped=True).kill()
    (arena,) = scene.clean("--wait", "0.3", code=1)["arenas"]

    assert (arena["state"], arena["outcome"], os.path.exists(arena["path"])) == ("draining", "kept", True)


def test_a_stopped_worker_is_killed_if_told_to_and_its_parts_stored(scene: Scene) -> None:
    engine = scene.start("local", stopped=True)
    engine.kill()
    scene.clean("--wait", "0.3", "--kill")

    assert (alive(engine.worker), scene.holds()) == (False, True)


def test_a_process_that_only_has_the_id_of_a_worker_is_not_killed(scene: Scene) -> None:
    engine = scene.start("local", stopped=True)
    engine.kill()
    peek(scene.arena()).words[Live.WORKER_START] += 1
    scene.clean("--wait", "0", "--kill", code=1)

    assert alive(engine.worker)


# --- stores that do not work --------------------------------------------------------------------------------------


@pytest.fixture
def down(scene: Scene) -> Scene:
    """What a dead engine left for a store that is unavailable now."""
    scene.leave("unavailable", limits={"retry_for": 0.5})
    scene.flag.touch()
    return scene


def test_while_the_store_is_unavailable_the_arena_stays(down: Scene) -> None:
    (arena,) = down.clean(code=1)["arenas"]

    assert (arena["outcome"], arena["error"]["code"], arena["path"]) == ("kept", "store_unavailable", down.arena())


def test_an_arena_that_stayed_is_stored_later(down: Scene) -> None:
    down.run_clean()
    down.flag.unlink()
    down.clean()

    assert down.holds()


def test_people_read_why_an_arena_stays_and_what_to_do(down: Scene) -> None:
    said = down.run_clean().stderr

    assert ("the service is down" in said, "run this again when the store answers" in said) == (True, True)


def test_a_store_that_hangs_while_it_opens_does_not_hang_the_command(scene: Scene) -> None:
    scene.leave("stuck", limits={"call_timeout": 1.0})
    scene.flag.touch()
    (arena,) = scene.clean(code=1)["arenas"]

    assert "did not return within 1 s" in arena["error"]["message"]


@pytest.mark.parametrize("store", ["hanging", "hanging_async"])
def test_a_store_that_hangs_in_a_put_does_not_hang_the_command(scene: Scene, store: str) -> None:
    scene.leave(store, prefix="hang", limits={"call_timeout": 1.0})
    (arena,) = scene.clean(code=1)["arenas"]

    assert (arena["outcome"], "hang:0:0:0" in arena["error"]["message"]) == ("kept", True)


def test_a_store_that_is_not_installed_here_keeps_its_arena(scene: Scene) -> None:
    scene.leave("plain")
    (arena,) = scene.clean(code=1, env={})["arenas"]

    assert (arena["error"]["code"], arena["path"]) == ("unknown_store", scene.arena())


def test_an_arena_without_anything_to_store_needs_no_store(scene: Scene) -> None:
    engine = scene.start("plain")
    until(lambda: len(scene.ids()) == MANY)
    os.kill(engine.worker, signal.SIGSTOP)
    engine.kill_both()
    scene.clean(env={})

    assert os.listdir(scene.arena_dir) == []


# --- damaged arenas -----------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(scene: Scene) -> Scene:
    """What a dead engine left, damaged."""
    scene.leave()
    with open(scene.arena(), "r+b") as file:
        file.write(b"no arena at all")
    return scene


def test_a_damaged_arena_is_named_with_what_to_do(damaged: Scene) -> None:
    error = damaged.clean(code=1)["arenas"][0]["error"]

    assert (damaged.arena() in error["message"], "--discard removes it" in error["hint"]) == (True, True)


@pytest.mark.parametrize("offset", [0, 8, 2 * PAGE])
def test_an_arena_that_is_damaged_anywhere_in_front_stays(scene: Scene, offset: int) -> None:
    scene.leave()
    with open(scene.arena(), "r+b") as file:
        file.seek(offset)
        file.write(b"no arena")
    (arena,) = scene.clean(code=1)["arenas"]

    assert (arena["state"], arena["outcome"], arena["path"]) == ("damaged", "kept", scene.arena())


def test_a_damaged_arena_goes_if_told_to(damaged: Scene) -> None:
    damaged.clean("--discard", "--yes")

    assert os.listdir(damaged.arena_dir) == []


# --- discarding ---------------------------------------------------------------------------------------------------


def test_discarded_parts_are_not_stored(scene: Scene) -> None:
    scene.leave()
    scene.clean("--discard", "--yes")

    assert (os.listdir(scene.arena_dir), scene.ids()) == ([], [])


def test_discarding_is_asked_for(scene: Scene) -> None:
    scene.leave()
    ended = scene.run_clean("--discard", input="n\n")

    assert "Remove 1 arena (8.0 MiB) with 12 operations never stored? [y/N]" in ended.stderr


@pytest.mark.parametrize(("answer", "code", "left"), [("n\n", 1, True), ("y\n", 0, False), ("", 2, True)])
def test_discarding_does_what_it_is_told(scene: Scene, answer: str, code: int, left: bool) -> None:
    scene.leave()
    ended = scene.run_clean("--discard", input=answer)

    assert (ended.returncode, len([*scene.arena_dir.iterdir()]) > 0) == (code, left)


# --- spilled payloads ---------------------------------------------------------------------------------------------


@pytest.fixture
def spilling(scene: Scene) -> Scene:
    """What a dead engine left in an arena that was too small, and in a spill folder."""
    spill = {"spill_dir": str(scene.root / "spill"), "arena_bytes": 1 << 20, "on_full_wait": 0.0}
    scene.leave(tokens=8000, limits=spill)
    assert len(os.listdir(scene.root / "spill")) > MANY / 2
    return scene


def test_spilled_payloads_are_stored(spilling: Scene) -> None:
    spilling.clean()

    assert spilling.holds(tokens=8000)


@pytest.mark.parametrize("how", [(), ("--discard", "--yes")])
def test_spilled_payloads_go_with_their_arena(spilling: Scene, how: tuple[str, ...]) -> None:
    spilling.clean(*how)

    assert os.listdir(spilling.root / "spill") == []


def test_payloads_of_an_arena_that_stays_stay(spilling: Scene) -> None:
    before = os.listdir(spilling.root / "spill")
    spilling.clean("--dry-run", "--spill-dir", str(spilling.root / "spill"))

    assert os.listdir(spilling.root / "spill") == before


@pytest.fixture
def orphans(scene: Scene) -> Path:
    """A folder with two payloads of an arena that is gone, a foreign user's and somebody's notes."""
    folder = scene.root / "spill"
    folder.mkdir()
    for name in (f"{os.geteuid()}-{7:016x}-1.spill", f"{os.geteuid()}-{7:016x}-2.spill", f"99999-{7:016x}-1.spill"):
        (folder / f"fd-routing-{name}").write_bytes(bytes(100))
    (folder / "notes.spill").touch()
    return folder


def test_payloads_without_an_arena_are_removed_where_told_to(scene: Scene, orphans: Path) -> None:
    scene.clean("--spill-dir", str(orphans))

    assert sorted(os.listdir(orphans)) == [f"fd-routing-99999-{7:016x}-1.spill", "notes.spill"]


def test_payloads_without_an_arena_are_counted(scene: Scene, orphans: Path) -> None:
    (spilled,) = scene.clean("--spill-dir", str(orphans))["spilled"]

    assert spilled == {"folder": str(orphans), "orphaned": 2, "bytes": 200, "removed": 2}


def test_payloads_without_an_arena_survive_a_dry_run(scene: Scene, orphans: Path) -> None:
    scene.run_clean("--spill-dir", str(orphans), "--dry-run")

    assert len(os.listdir(orphans)) == 4


def test_payloads_of_an_arena_in_an_unnamed_folder_stay_while_it_is_used(scene: Scene, site: Path) -> None:
    spill = scene.root / "spill"
    scene.start(
        "local",
        stopped=True,
        tokens=8000,
        limits={"spill_dir": str(spill), "arena_bytes": 1 << 20, "on_full_wait": 0.0},
    )
    before = os.listdir(spill)
    (scene.root / "elsewhere").mkdir()
    run("clean", "--arena-dir", str(scene.root / "elsewhere"), "--spill-dir", str(spill))

    assert os.listdir(spill) == before


# --- nothing to do ------------------------------------------------------------------------------------------------


def test_where_nothing_is_nothing_is_done(scene: Scene) -> None:
    ended = scene.run_clean()

    assert (ended.returncode, ended.stdout) == (0, f"no arenas in {scene.arena_dir}\n")


def test_a_folder_that_does_not_exist_is_wrong_usage(scene: Scene) -> None:
    assert run("clean", "--arena-dir", str(scene.root / "nowhere")).returncode == 2


def test_without_a_folder_the_configured_one_is_cleaned(scene: Scene) -> None:
    scene.leave()
    ended = run("clean", env={"FD_ROUTING_WRITER_CONFIG": json.dumps({"arena_dir": str(scene.arena_dir)})})

    assert (ended.returncode, scene.holds()) == (0, True)


def test_foreign_files_are_left_alone(scene: Scene) -> None:
    names = ["notes.arena", f"fd-routing-99999-{7:016x}.arena", f"fd-routing-{os.geteuid()}-7.arena"]
    for name in names:
        (scene.arena_dir / name).touch()
    scene.clean("--discard", "--yes")

    assert sorted(os.listdir(scene.arena_dir)) == sorted(names)
