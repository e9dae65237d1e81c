"""What cannot be stored as stated is refused by ``submit`` itself, typed; what only ids show, by the worker."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fastdeploy_routing_plugins import RoutingKey, RoutingWriter, WeightSpan, WriteFailure
from fastdeploy_routing_plugins.errors import ConflictError, InvalidKeyError, InvalidRecordError, UnsupportedError

from .helpers import PATIENCE, SCHEMA, Place, codes, routing, until


@pytest.fixture(scope="module")
def failures() -> list[WriteFailure]:
    """What ``on_failure`` was called with."""
    return []


@pytest.fixture(scope="module")
def writer(shared_place: Place, failures: list[WriteFailure]) -> Iterator[RoutingWriter]:
    with shared_place.writer(on_failure=failures.append) as writer:
        yield writer


@pytest.fixture(autouse=True)
def fresh(writer: RoutingWriter, failures: list[WriteFailure]) -> None:
    """Takes the report and the failures of the test before."""
    writer.flush()
    failures.clear()


WRONG_RECORDS: dict[str, Any] = {
    "floats": lambda w: w.submit("x", routing().astype("f4")),
    "bools": lambda w: w.submit("x", np.ones((6, 10, 4), bool)),
    "objects": lambda w: w.submit("x", routing().astype(object)),
    "a list": lambda w: w.submit("x", routing().tolist()),
    "nothing": lambda w: w.submit("x", None),
    "a masked array": lambda w: w.submit("x", np.ma.masked_array(routing())),
    "one axis": lambda w: w.submit("x", routing().ravel()),
    "four axes": lambda w: w.submit("x", routing()[np.newaxis]),
    "another top_k": lambda w: w.submit("x", routing()[..., :3]),
    "too few layers": lambda w: w.submit("x", routing()[:5]),
    "dense layers too": lambda w: w.submit("x", np.concatenate([routing(), routing()])),
    "token first unsaid": lambda w: w.submit("x", routing().transpose(1, 0, 2)),
    "an unknown layout": lambda w: w.submit("x", routing(), layout="tokens_first"),
    "one layer of many": lambda w: w.submit("x", routing()[0]),
    "two layers as one": lambda w: w.submit("x", routing()[:2], layers=0),
    "rows that are not the range": lambda w: w.submit("x", routing(9), tokens=(0, 10)),
    "rows that are not the total": lambda w: w.submit("x", routing(9), total_tokens=10),
    "gaps between versions": lambda w: w.submit("x", routing(), weight_versions=[WeightSpan(1, 10, 1)]),
    "versions of another form": lambda w: w.submit("x", routing(), weight_versions=[(0, 10, 1)]),
    "a version that is too long": lambda w: w.submit("x", routing(), weight_versions="v" * 257),
    "versions in a list": lambda w: w.submit("x", routing(), weight_versions=["17"]),
    "no versions at all": lambda w: w.submit("x", routing(), weight_versions=None),
    "more versions than fit": lambda w: w.submit(
        "x", routing(6000), weight_versions=[WeightSpan(n, n + 1, "v" * 256) for n in range(6000)]
    ),
    "a reservation of floats": lambda w: w.reserve("x", 10, dtype="f4"),
    "a reservation of foreign bytes": lambda w: w.reserve("x", 10, dtype=">i4"),
    "a reservation of open layers": lambda w: w.reserve("x", 10, layers=slice(2, None)),
    "a reservation of too many layers": lambda w: w.reserve("x", 10, layers=(0, 2), tokens=(0, 9)),
}
WRONG_KEYS: dict[str, Any] = {
    "an empty id": lambda w: w.submit("", routing()),
    "an id that is no text": lambda w: w.submit(17, routing()),
    "a lone surrogate": lambda w: w.submit("\ud800", routing()),
    "a huge id": lambda w: w.submit("x" * 4097, routing()),
    "a negative choice": lambda w: w.submit("x", routing(), choice=-1),
    "a choice against the key's": lambda w: w.submit(RoutingKey("x", 1), routing(), choice=2),
    "a choice that is a bool": lambda w: w.submit("x", routing(), choice=True),
    "a negative attempt": lambda w: w.submit("x", routing(), attempt=-1),
    "an attempt of 64 bits": lambda w: w.submit("x", routing(), attempt=2**63),
    "an attempt that is a float": lambda w: w.submit("x", routing(), attempt=1.0),
    "a layer beyond the schema": lambda w: w.submit("x", routing()[0], layers=6),
    "a layer from the end": lambda w: w.submit("x", routing()[0], layers=-1),
    "layers with gaps": lambda w: w.submit("x", routing()[::2], layers=slice(0, 6, 2)),
    "reversed tokens": lambda w: w.submit("x", routing(), tokens=(10, 0)),
    "tokens beyond the total": lambda w: w.submit("x", routing(), tokens=(5, 15), total_tokens=10),
    "a total that is no number": lambda w: w.submit("x", routing(), total_tokens="10"),
    "a negative number of rows": lambda w: w.reserve("x", -1),
    "a seal without a number": lambda w: w.seal("x", None),
    "a seal of a negative number": lambda w: w.seal("x", -1),
    "a seal of a bad attempt": lambda w: w.seal("x", 1, attempt=-1),
    "an abort of an empty id": lambda w: w.abort("", "why"),
    "a delete of a bad choice": lambda w: w.delete("x", choice=10**6),
    "no prefix": lambda w: w.delete_prefix(""),
    "a prefix that is no text": lambda w: w.delete_prefix(17),
}


@pytest.mark.parametrize("call", WRONG_RECORDS.values(), ids=WRONG_RECORDS)
def test_a_record_that_does_not_fit_is_refused_at_once(writer: RoutingWriter, call: Any) -> None:
    with pytest.raises(InvalidRecordError):
        call(writer)


@pytest.mark.parametrize("call", WRONG_KEYS.values(), ids=WRONG_KEYS)
def test_a_key_that_cannot_be_is_refused_at_once(writer: RoutingWriter, call: Any) -> None:
    with pytest.raises(InvalidKeyError):
        call(writer)


def test_what_was_refused_leaves_nothing_behind(writer: RoutingWriter) -> None:
    free, submitted = writer.stats().arena_free_bytes, writer.stats().submitted
    for call in (*WRONG_RECORDS.values(), *WRONG_KEYS.values()):
        with pytest.raises((InvalidRecordError, InvalidKeyError)):
            call(writer)
    assert (writer.stats().arena_free_bytes, writer.stats().submitted) == (free, submitted)


# --- what only the worker sees --------------------------------------------------------------------------------------

BAD_IDS = {"16, the number of experts": 16, "-1, a padding": -1, "2**40": 2**40}


def _spoilt(value: int) -> np.ndarray:
    array = routing().astype("i8")
    array[3, 7, 1] = value
    return array


@pytest.mark.parametrize("value", BAD_IDS.values(), ids=BAD_IDS)
def test_an_id_out_of_range_is_no_reason_to_refuse_at_once(writer: RoutingWriter, value: int) -> None:
    with pytest.raises(InvalidRecordError, match=f"id {value} at layer position 3, token 7, slot 1"):
        writer.submit("x:1", _spoilt(value)).result(PATIENCE)


def test_ids_of_the_right_width_are_checked_too(writer: RoutingWriter) -> None:
    with pytest.raises(InvalidRecordError, match="id 255"):
        writer.submit("x:1", np.full((6, 10, 4), 255, np.uint8)).result(PATIENCE)


def test_without_validation_ids_of_the_right_width_pass(place: Place) -> None:
    with place.writer(limits={"validate": False}) as writer:
        writer.submit("x:1", np.full((6, 10, 4), 255, np.uint8)).result(PATIENCE)
        assert writer.flush().ok


def test_without_validation_ids_that_would_be_cut_off_do_not_pass(place: Place) -> None:
    with place.writer(limits={"validate": False}) as writer, pytest.raises(InvalidRecordError, match="id 256"):
        writer.submit("x:1", _spoilt(256)).result(PATIENCE)


def test_an_id_out_of_range_is_not_stored(writer: RoutingWriter, shared_place: Place) -> None:
    writer.submit("never:1", _spoilt(99))
    writer.flush()
    assert "never:1" not in shared_place.ids()


def test_the_host_hears_of_each_failure(writer: RoutingWriter, failures: list[WriteFailure]) -> None:
    writer.submit("x:2", _spoilt(99))
    writer.flush()
    until(lambda: failures)
    assert [(f.what, f.key, f.error.code, f.nbytes) for f in failures] == [
        ("put of 'x:2', layers 0:6, tokens 0:10", RoutingKey("x:2"), "invalid_record", 6 * 10 * 4 * 8)
    ]


def test_a_failure_is_logged_once_with_id_and_cause(writer: RoutingWriter, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        writer.submit("x:3", _spoilt(99))
        writer.flush()
        until(lambda: "x:3" in caplog.text)
    lines = [(record.levelname, record.getMessage()) for record in caplog.records if "x:3" in record.getMessage()]
    assert [(level, "invalid_record" in text and "id 99" in text) for level, text in lines] == [("ERROR", True)]


def test_the_report_lists_exactly_what_failed(writer: RoutingWriter) -> None:
    bad = {f"r:{number}" for number in range(0, 60, 7)}
    for number in range(60):
        writer.submit(f"r:{number}", _spoilt(99) if f"r:{number}" in bad else routing())
    report = writer.flush()
    assert (codes(report.failures), report.stored, report.failed) == ({(i, "invalid_record") for i in bad}, 51, 9)


def test_a_report_lists_a_failure_once(writer: RoutingWriter) -> None:
    writer.submit("x:4", _spoilt(99))
    assert [writer.flush().failed for _ in range(2)] == [1, 0]


def test_check_raises_the_first_failure_typed(writer: RoutingWriter) -> None:
    writer.submit("x:5", _spoilt(99))
    report = writer.flush()
    with pytest.raises(InvalidRecordError, match=r"put of 'x:5', layers 0:6, tokens 0:10: id 99") as caught:
        report.check()
    assert caught.value.report is report


def test_check_of_a_good_report_returns_it(writer: RoutingWriter) -> None:
    writer.submit("x:6", routing())
    report = writer.flush()
    assert report.check() is report


def test_a_ticket_raises_again_and_again(writer: RoutingWriter) -> None:
    ticket = writer.submit("x:7", _spoilt(99))
    for _ in range(2):
        with pytest.raises(InvalidRecordError):
            ticket.result(PATIENCE)
    assert repr(ticket) == "Ticket(put of 'x:7', layers 0:6, tokens 0:10: failed)"


def test_contradicting_content_is_a_conflict(writer: RoutingWriter) -> None:
    writer.submit("x:8", routing(seed=1))
    with pytest.raises(ConflictError):
        writer.submit("x:8", routing(seed=2)).result(PATIENCE)


def test_contradicting_totals_are_a_conflict(writer: RoutingWriter) -> None:
    writer.submit("x:9", routing(10))
    with pytest.raises(ConflictError):
        writer.seal("x:9", 11).result(PATIENCE)


def test_a_failed_seal_has_no_payload_to_lose(writer: RoutingWriter, failures: list[WriteFailure]) -> None:
    writer.submit("x:10", routing(10))
    writer.seal("x:10", 11)
    writer.flush()
    until(lambda: failures)
    assert (failures[0].what, failures[0].nbytes) == ("seal of 'x:10'", 0)


def test_an_on_failure_that_raises_hurts_nobody(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    def fail(failure: WriteFailure) -> None:
        raise ValueError("the host's own fault")

    with place.writer(on_failure=fail) as writer:
        writer.submit("x:1", _spoilt(99))
        writer.submit("x:2", routing()).result(PATIENCE)
        writer.flush()
        until(lambda: "on_failure raised" in caplog.text)
        assert writer.submit("x:3", routing()).result(PATIENCE).code == ""


def test_on_failure_may_call_the_writer(place: Place) -> None:
    def abort(failure: WriteFailure) -> None:
        writer.abort(failure.key, f"not stored: {failure.error.code}")

    with place.writer(on_failure=abort) as writer, place.read() as store:
        writer.submit("x:1", _spoilt(99))
        assert until(lambda: [status.state for status in store.list()]) == ["aborted"]


def test_what_a_store_cannot_do_is_a_failure(place: Place) -> None:
    with place.writer("blind") as writer, pytest.raises(UnsupportedError):
        writer.clear().result(PATIENCE)


def test_a_schema_that_is_none_is_refused(place: Place) -> None:
    with pytest.raises(InvalidRecordError, match="is no RoutingSchema"):
        place.writer(schema={"num_experts": SCHEMA.num_experts})  # type: ignore[arg-type]
