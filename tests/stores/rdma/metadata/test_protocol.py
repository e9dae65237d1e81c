"""The protocol's bytes: pinned by a golden file, and read back as they were written."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins.errors import CorruptDataError
from fastdeploy_routing_plugins.stores.rdma.metadata import changes, framing
from fastdeploy_routing_plugins.stores.rdma.metadata import messages as m

from . import samples

GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "metadata-1.json").read_text())
FRAMES = samples.frames()


def test_the_golden_file_has_every_message() -> None:
    kinds = {type(body) for group in (samples.QUESTIONS, samples.ANSWERS, samples.STREAM) for body in group.values()}
    declared = {*m.Question.__args__, *m.Answer.__args__, *changes.Told.__args__}
    assert (kinds, set(GOLDEN)) == (declared, set(FRAMES))


@pytest.mark.parametrize("which", FRAMES)
def test_messages_are_written_as_the_golden_file_has_them(which: str) -> None:
    assert FRAMES[which].hex() == GOLDEN[which]


@pytest.mark.parametrize("which", samples.QUESTIONS)
def test_golden_questions_are_read(which: str) -> None:
    raw = bytes.fromhex(GOLDEN[f"ask {which}"])
    assert framing.split_question(raw) == (1, 2**40, 5000)
    assert framing.decode_question(raw) == samples.QUESTIONS[which]


@pytest.mark.parametrize("which", samples.ANSWERS)
def test_golden_answers_are_read(which: str) -> None:
    head = framing.Head(1, 2**40, samples.EPOCH)
    assert framing.decode_answer(bytes.fromhex(GOLDEN[f"say {which}"])) == (head, samples.ANSWERS[which])


@pytest.mark.parametrize("which", samples.STREAM)
def test_golden_messages_of_the_stream_are_read(which: str) -> None:
    found = changes.decode_told(bytes.fromhex(GOLDEN[f"tell {which}"]))
    assert found == (samples.TOPIC, samples.EPOCH, samples.STREAM[which])


def test_fields_of_later_versions_are_passed_over() -> None:
    raw = framing.encode_question(samples.QUESTIONS["inventory"], 1, 1)
    assert raw[framing.QUESTION_HEAD] == 0x92  # an array of two
    later = raw[: framing.QUESTION_HEAD] + b"\x93" + raw[framing.QUESTION_HEAD + 1 :] + b"\xa3new"
    assert framing.decode_question(later) == samples.QUESTIONS["inventory"]


def test_a_question_of_another_version_says_which() -> None:
    with pytest.raises(framing.VersionError) as caught:
        framing.split_question(b"\x02" + FRAMES["ask status"][1:])
    assert caught.value.version == 2


def test_a_name_beyond_the_limit_is_refused() -> None:
    with pytest.raises(CorruptDataError):
        framing.decode_question(framing.encode_question(m.AskEntries(["n" * 401]), 1, 1))


def test_more_names_than_the_limit_are_refused() -> None:
    with pytest.raises(CorruptDataError):
        framing.decode_question(framing.encode_question(m.AskEntries(["n"] * (m.MAX_ITEMS + 1)), 1, 1))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_corrupt(raw: bytes) -> None:
    for read in (framing.decode_answer, changes.decode_told, framing.decode_question, framing.split_question):
        with contextlib.suppress(CorruptDataError):
            read(raw)
