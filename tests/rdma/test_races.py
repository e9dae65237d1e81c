"""Attempts and deletes under readers, over the device."""

from __future__ import annotations

import os
import time

from ..stores.rdma.faulty import Child
from .conftest import Ends, both

SECONDS = float(os.environ.get("FD_ROUTING_TEST_RACE_SECONDS", "10"))


def test_what_is_read_under_deletes_and_attempts_is_whole_or_a_typed_error(ends: Ends) -> None:
    lane, place = ends.lane, ends.ground
    names = [f"small{number}" for number in range(8)]
    write = place.config(**lane.producer.options, timeout=5.0)
    follow = place.config(**lane.reader.options, timeout=5.0)
    with Child("write", write, names, 20) as writers, Child("follow", follow, names, 4, 1) as readers:
        writers.answer()
        readers.answer()
        time.sleep(SECONDS)
        read, written = readers.ask("stop", within=120), writers.ask("stop", within=120)
    print(read, written)
    assert (read["wrong"], written["wrong"]) == ([], [])
    assert read["counts"]["read"] > 0


def test_a_higher_attempt_is_what_is_read(ends: Ends) -> None:
    with both(ends) as (producer, reader):
        producer.ask("put", 0, 5, within=120)
        assert reader.ask("fetch", 0, 5, within=120)["errors"] == []
        producer.ask("put", 0, 5, 1, within=120)
        got = reader.ask("fetch", 0, 5, within=120)
        assert (got["wrong"], got["errors"]) == ([], [])
        assert producer.ask("delete", 0, 5) == 5
        got = reader.ask("fetch", 0, 5, 0.0, within=120)
        assert got["errors"] == ["deleted"] * 5
