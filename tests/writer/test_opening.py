"""Opening a writer works, or says at once and typed why it does not, and leaves nothing behind."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fastdeploy_routing_plugins import RoutingWriter, WriterLimits, open_writer, resolve
from fastdeploy_routing_plugins.errors import (
    ArenaError,
    ArenaRoomError,
    ConfigError,
    StoreUnavailableError,
    UnknownStoreError,
    WorkerError,
)

from .helpers import MIB, PATIENCE, SCHEMA, Place, routing, until

LOGGER = "fastdeploy_routing_plugins.writer"


def test_an_unknown_store_is_named_before_anything_starts(place: Place) -> None:
    with pytest.raises(UnknownStoreError, match="locl"):
        open_writer({"routing_store_type": "locl"}, schema=SCHEMA, limits=place.limits())


def test_a_misspelt_option_of_the_store_fails(place: Place) -> None:
    with pytest.raises(ConfigError, match="store_dri"):
        place.writer(store_dri="/nowhere")


def test_a_store_that_does_not_open_passes_its_error_on(place: Place) -> None:
    place.flag.touch()
    with pytest.raises(StoreUnavailableError, match="the service refuses connections") as caught:
        place.writer("shut")
    assert caught.value.hint == "start the service"


def test_a_store_that_needs_too_long_to_open_is_given_up(place: Place) -> None:
    place.flag.touch()
    with pytest.raises(WorkerError, match=r"did not open the store within 0\.5 s"):
        place.writer("stuck", limits={"start_timeout": 0.5})


def test_a_worker_that_dies_while_it_opens_the_store_is_quoted(place: Place) -> None:
    place.flag.touch()
    with pytest.raises(WorkerError, match="exit status 3; its last words: cannot live like this"):
        place.writer("stillborn")


def test_a_worker_that_cannot_be_started_is_an_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(place.root / "no-python"))
    with pytest.raises(WorkerError, match=r"cannot be started: .*No such file"):
        place.writer()


def test_a_worker_that_is_another_program_is_an_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(WorkerError, match="did not start: exit status 0"):
        place.writer()


def test_after_a_failure_the_next_opening_works(place: Place) -> None:
    place.flag.touch()
    with pytest.raises(StoreUnavailableError):
        place.writer("shut")
    place.flag.unlink()
    with place.writer("shut") as writer:
        assert writer.submit("x", routing()).result(PATIENCE).code == ""


def test_a_configuration_that_was_resolved_before_is_taken(place: Place) -> None:
    with open_writer(resolve(place.config()), schema=SCHEMA, limits=place.limits()) as writer:
        writer.submit("x", routing())
    assert place.ids() == ["x"]


def test_the_configuration_may_come_from_the_environment(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FD_ROUTING_STORE_CONFIG", json.dumps(place.config()))
    with open_writer(schema=SCHEMA, limits=place.limits()) as writer:
        writer.submit("x", routing())
    assert place.ids() == ["x"]


@pytest.mark.parametrize("closed", [(0,), (2,), (0, 1, 2)], ids=str)
def test_an_engine_without_standard_streams_can_open_a_writer(place: Place, closed: tuple[int, ...]) -> None:
    code = f"import os\nfor fd in {closed}: os.close(fd)\n"
    code += "with place.writer() as writer: writer.submit('x', routing())\nos._exit(0)\n"
    place.run(code)
    assert place.ids() == ["x"]


def test_nothing_in_the_engines_folder_gets_into_the_worker(place: Place) -> None:
    (place.root / "numpy.py").write_text("raise RuntimeError('not this one')\n")
    code = "import os\nos.chdir(place.root)\nwith place.writer() as writer: writer.submit('x', routing())\n"
    done = place.run(code + "print('over')\n")
    assert (done.stdout, done.stderr, place.ids()) == ("over\n", "", ["x"])


# --- room -----------------------------------------------------------------------------------------------------------


def test_without_enough_room_the_cure_is_named(place: Place) -> None:
    with pytest.raises(ArenaRoomError, match=r"has .* the arena needs 1,073,741,824 MiB") as caught:
        place.writer(limits={"arena_bytes": 1 << 50})
    assert "set arena_bytes lower" in caught.value.hint


def test_a_folder_that_is_not_there_is_named(place: Place) -> None:
    with pytest.raises(ArenaRoomError, match=r"/nowhere cannot be used: No such file"):
        place.writer(limits={"arena_dir": "/nowhere"})


def test_a_folder_that_is_none_is_an_error(place: Place) -> None:
    place.log.touch()
    with pytest.raises(ArenaError, match=r"no arena can be made in .*: Not a directory"):
        place.writer(limits={"arena_dir": str(place.log)})


def test_an_arena_of_a_few_bytes_is_refused(place: Place) -> None:
    with pytest.raises(ArenaRoomError, match="arena_bytes=1000 is too small"):
        place.writer(limits={"arena_bytes": 1000})


# --- the log --------------------------------------------------------------------------------------------------------


@dataclass
class Opening:
    """What opening a writer with a secret in its store's configuration showed."""

    records: list[logging.LogRecord] = field(default_factory=list)
    pid: int = 0
    command: bytes = b""

    def lines(self) -> list[tuple[str, str]]:
        return [(record.levelname, record.getMessage()) for record in self.records]


@pytest.fixture(scope="module")
def opening(shared_place: Place) -> Opening:
    """A writer was opened and closed again."""
    found = Opening()
    handler = logging.Handler()
    handler.emit = found.records.append  # type: ignore[method-assign]
    logger = logging.getLogger(LOGGER)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with shared_place.writer("plain", password="open sesame") as writer:
            found.pid = writer.stats().worker_pid
            found.command = Path(f"/proc/{found.pid}/cmdline").read_bytes()
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
    return found


def test_a_writer_logs_one_line_when_it_opens(opening: Opening) -> None:
    assert [level for level, _ in opening.lines()] == ["INFO"]


def test_that_line_says_which_store_it_is(opening: Opening) -> None:
    line = opening.lines()[0][1]
    assert line.startswith("routing writer: store 'plain' from fd-routing-writer-tests 1.0 (store API 1.0): ")


def test_that_line_shows_the_effective_configuration(opening: Opening, shared_place: Place) -> None:
    line = opening.lines()[0][1]
    assert all(part in line for part in (str(shared_place.store_dir), '"delay":0.0', '"namespace":"default"'))


def test_that_line_shows_the_arena_and_the_worker(opening: Opening, shared_place: Place) -> None:
    line = opening.lines()[0][1]
    assert line.endswith(f"; arena of 8 MiB in {shared_place.arena_dir}, worker pid {opening.pid}")


def test_that_line_shows_no_secret(opening: Opening) -> None:
    line = opening.lines()[0][1]
    assert ("password" in line, "open sesame" in line) == (True, False)


def test_no_command_line_shows_a_secret(opening: Opening) -> None:
    assert (b"fastdeploy_routing_plugins.writer.worker" in opening.command, b"sesame" in opening.command) == (
        True,
        False,
    )


def test_a_namespace_that_holds_rollouts_is_warned_about(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with place.read() as store:
        for number in range(3):
            store.put(f"old:{number}", routing(), schema=SCHEMA)
    with place.writer():
        until(lambda: "namespace 'default' of store 'local' already holds 3 rollouts" in caplog.text)
    assert "FD_ROUTING_NAMESPACE" in caplog.text


def test_a_namespace_of_ones_own_is_not_warned_about(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with place.read() as store:
        store.put("old", routing(), schema=SCHEMA)
    with place.writer(namespace="run-2") as writer:
        writer.submit("new", routing())
        writer.flush()
    assert "already holds" not in caplog.text


# --- limits ---------------------------------------------------------------------------------------------------------


def test_limits_from_the_environment_are_merged(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FD_ROUTING_WRITER_CONFIG", '{"lanes": 2, "retry_for": 5}')
    with open_writer(place.config(), schema=SCHEMA, limits=place.limits()) as writer:
        assert (writer.limits.lanes, writer.limits.retry_for, writer.limits.arena_bytes) == (2, 5.0, 8 * MIB)


def test_limits_from_the_environment_are_enough(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FD_ROUTING_WRITER_CONFIG", json.dumps(place.limits()))
    with RoutingWriter(resolve(place.config()), SCHEMA) as writer:
        assert writer.limits.arena_dir == str(place.arena_dir)


def test_limits_may_be_text_or_a_file(place: Place) -> None:
    file = place.root / "limits.json"
    file.write_text(json.dumps(place.limits(lanes=3)))
    expected = WriterLimits(**place.limits(lanes=3))
    assert [WriterLimits.load(f"@{file}"), WriterLimits.load(file.read_text())] == [expected, expected]


def test_limits_that_are_finished_are_left_alone(monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
    monkeypatch.setenv("FD_ROUTING_WRITER_CONFIG", '{"lanes": 2}')
    with place.writer() as writer:
        assert writer.limits.lanes == WriterLimits().lanes


@pytest.mark.parametrize("source", ["argument", "environment"])
def test_a_misspelt_limit_fails_with_the_nearest_name(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"arena_byts": 1}
    if source == "environment":
        monkeypatch.setenv("FD_ROUTING_WRITER_CONFIG", json.dumps(wrong))
    limits = wrong if source == "argument" else None
    with pytest.raises(ConfigError, match=r"arena_byts.*arena_bytes"):
        open_writer({"routing_store_type": "noop"}, schema=SCHEMA, limits=limits)


@pytest.mark.parametrize("text", ["lanes=2", "[2]", '{"lanes": 2', "@/nowhere.json"])
def test_limits_that_are_no_json_fail_with_the_variables_name(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FD_ROUTING_WRITER_CONFIG", text)
    with pytest.raises(ConfigError, match=r"FD_ROUTING_WRITER_CONFIG|/nowhere\.json"):
        WriterLimits.load()


def test_limits_that_contradict_each_other_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FD_ROUTING_WRITER_CONFIG", '{"lanes": 2}')
    with pytest.raises(ConfigError, match="lanes"):
        WriterLimits.load({"lanes": 3})


@pytest.mark.parametrize(
    "wrong",
    [
        {"lanes": 0},
        {"lanes": 65},
        {"lanes": "four"},
        {"lanes": True},
        {"retry_for": -1},
        {"on_full_wait": -0.1},
        {"exit_wait": -1},
        {"call_timeout": 0},
        {"start_timeout": 0},
        {"spill_bytes": 0},
        {"arena_bytes": "8 MiB"},
        {"validate": "yes"},
    ],
    ids=str,
)
def test_a_limit_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        WriterLimits.load(wrong)


def test_every_wrong_limit_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        WriterLimits.load({"lanes": "four", "arena_byts": 1})
    assert len(caught.value.problems) == 2
