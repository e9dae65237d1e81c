"""Our lines are found where an engine's are: FastDeploy gives handlers to its own loggers only."""

from __future__ import annotations

from .place import Place

RUN = """
logging.getLogger().handlers.clear()
engine = Engine(REPLAY)
engine.finish(request_id("broken:0:0:0"), routing(0, 10))
engine.close()
"""


def test_what_the_docs_promise_is_in_fastdeploys_folder_for_logs(place: Place) -> None:
    place.must(RUN, place.replay("broken"), FD_LOG_DIR=str(place.root / "logs"))
    text = (place.root / "logs" / "routing_stores.log").read_text()
    assert ("routing writer: store 'broken'" in text, "put of 'broken:0:0:0'" in text) == (True, True)


def test_errors_are_on_stderr_as_well_but_nothing_else_is(place: Place) -> None:
    said = place.must(RUN, place.replay("broken"), FD_LOG_DIR=str(place.root / "logs"))
    assert ("put of 'broken:0:0:0'" in said, "routing writer: store" in said) == (True, False)


def test_a_folder_that_cannot_be_made_ends_nothing(place: Place) -> None:
    (place.root / "file").touch()
    said = place.must(RUN, place.replay("broken"), FD_LOG_DIR=str(place.root / "file" / "logs"))
    assert ("put of 'broken:0:0:0'" in said, "Traceback" in said) == (True, False)


def test_an_engine_that_logs_by_its_own_rules_is_left_alone(place: Place) -> None:
    place.must("Engine(REPLAY).close()", FD_LOG_DIR=str(place.root / "logs"))
    assert not (place.root / "logs").exists()
