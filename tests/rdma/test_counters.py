"""Bytes go over the device, and the kernel's counters say so: Mooncake falls back to TCP without a word."""

from __future__ import annotations

import faulthandler
import os

from .conftest import Ends, both

RECORDS = int(os.environ.get("FD_ROUTING_TEST_RECORDS", "40"))
AT_ONCE = 10  # records that the producer holds


def test_every_byte_of_many_records_crosses(ends: Ends) -> None:
    faulthandler.cancel_dump_traceback_later()  # the long form takes longer than any other test may
    before = ends.lane.producer.sent()
    nbytes = 0
    with both(ends) as (producer, reader):
        for first in range(0, RECORDS, AT_ONCE):
            put = producer.ask("put", first, AT_ONCE, within=600)
            got = reader.ask("fetch", first, AT_ONCE, within=600)
            assert (got["wrong"], got["errors"]) == ([], [])
            assert got["nbytes"] == put
            nbytes += put
            assert producer.ask("delete", first, AT_ONCE) == AT_ONCE
    sent = ends.lane.producer.sent() - before
    print(f"{RECORDS} records, {nbytes >> 20} MiB; {ends.lane.producer.device} sent at most {sent >> 20} MiB")
    assert sent >= nbytes


def test_the_counters_tell_rdma_from_tcp(ends: Ends) -> None:
    with both(ends, transport="tcp") as (producer, reader):
        before = ends.lane.producer.sent()
        nbytes = producer.ask("put", 0, AT_ONCE, within=600)
        assert reader.ask("fetch", 0, AT_ONCE, within=600)["nbytes"] == nbytes
        producer.ask("delete", 0, AT_ONCE)
        assert ends.lane.producer.sent() - before < nbytes // 10
