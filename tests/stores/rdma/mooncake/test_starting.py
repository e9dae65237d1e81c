"""Whether and how Mooncake starts here, and what is said where it does not."""

from __future__ import annotations

import pytest

from fastdeploy_routing_plugins.errors import UnsupportedError

from .agent import ON_DEVICE
from .conftest import Start, need_mooncake

need_mooncake()


@pytest.mark.skipif(ON_DEVICE, reason="this host has a device")
def test_falling_back_to_tcp_is_refused(start: Start, folder: str) -> None:
    agent = start()
    with pytest.raises(UnsupportedError, match="no RDMA device"):
        agent("open", allow_tcp=False)


@pytest.mark.skipif(ON_DEVICE, reason="this host has a device")
def test_an_engine_that_must_use_rdma_does_not_start_without(start: Start, folder: str) -> None:
    assert "does not start" in start()("start_engine", "rdma")


def test_it_is_available_where_tcp_is_allowed(start: Start, folder: str) -> None:
    assert start()("available", allow_tcp=True) == ""


def test_a_folder_for_logs_does_not_end_the_process(start: Start, folder: str) -> None:
    agent = start(MC_LOG_DIR="/tmp", GLOG_minloglevel="0")
    agent("open")
    agent("serve", folder)
    assert "MC_LOG_DIR" in agent.words()


def test_the_environment_is_as_it_was_after_an_engine_was_made(start: Start, folder: str) -> None:
    tcp = {"MC_TCP_STATUS_TIMEOUT_SEC": "9", "MC_TCP_PROGRESS_TIMEOUT_SEC": "9"}
    agent = start(MC_LOG_DIR="/tmp", MC_FORCE_TCP="0", MC_TRANSFER_TIMEOUT="77", **tcp)
    before = agent("environ")
    agent("open")
    agent("serve", folder)
    assert agent("environ") == before


def test_what_an_engine_logs_is_little(start: Start, folder: str) -> None:
    agent = start()
    agent("open")
    agent("serve", folder)
    assert len(agent.words().splitlines()) <= 3
