"""``noop`` counts and drops, and says so."""

from __future__ import annotations

import logging
import threading

import pytest

from fastdeploy_routing_plugins.errors import UnsupportedError
from fastdeploy_routing_plugins.spec import Capability, StoreContext
from fastdeploy_routing_plugins.stores.noop.backend import NoopBackend, NoopStats
from fastdeploy_routing_plugins.stores.noop.plugin import fd_routing_store

from ..helpers import part, seal

ITEM = part()


def put(backend: NoopBackend, times: int = 1) -> None:
    for _ in range(times):
        backend._put(ITEM.name, ITEM.header, ITEM.buffer())


def test_puts_and_bytes_are_counted() -> None:
    backend = NoopBackend()
    put(backend, 3)
    backend._put(seal().name, seal().header, seal().buffer())
    assert backend.stats() == NoopStats(puts=4, nbytes=3 * ITEM.array.nbytes)


def test_no_put_of_any_thread_is_lost() -> None:
    backend = NoopBackend()
    threads = [threading.Thread(target=put, args=(backend, 2000)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert backend.stats().puts == 16_000


def test_opening_says_once_that_nothing_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    backend = NoopBackend()
    with caplog.at_level(logging.INFO, "fastdeploy_routing_plugins.noop"):
        backend._open()
        put(backend, 5)
        backend._close()
    assert [record.name for record in caplog.records if "keeps nothing" in record.getMessage()] == [
        "fastdeploy_routing_plugins.noop"
    ]


def test_deleting_finds_nothing() -> None:
    backend = NoopBackend()
    put(backend)
    assert backend._delete([ITEM.name]) == 0


@pytest.mark.parametrize("verb", ["get", "list", "clear", "wait"])
def test_reading_is_unsupported(verb: str) -> None:
    backend = NoopBackend()
    calls = {
        "get": lambda: backend._get(ITEM.name),
        "list": lambda: backend._list("ns/"),
        "clear": lambda: backend._clear("ns/"),
        "wait": lambda: backend._wait("ns/", (), 0),
    }
    with pytest.raises(UnsupportedError):
        calls[verb]()


def test_the_plugin_claims_no_capability() -> None:
    assert fd_routing_store().capabilities == Capability.NONE


def test_the_plugin_makes_the_backend() -> None:
    spec = fd_routing_store()
    assert isinstance(spec.create(StoreContext("noop", spec.load_config()(), "ns", "me")), NoopBackend)
