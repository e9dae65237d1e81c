"""Redis is killed and restarted under load; producers die. Nothing hangs, errors are typed, nothing else is lost.

Redis loses what it did not write down: without a log (``appendonly no``) everything, with ``appendfsync always``
nothing that was acknowledged, which is what is asserted here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from fastdeploy_routing_plugins.errors import (
    AbsentError,
    BackendError,
    ConfigError,
    ProducerLostError,
    RoutingError,
    StoreUnavailableError,
)
from fastdeploy_routing_plugins.stores.rdma.p2pstore import backend

from .servers import PATIENCE, SCHEMA, Redis, config, kept_here, reader, routing, store

KILLS = max(3, int(os.environ.get("FD_ROUTING_TEST_KILLS", "50")) // 50)  # 20 with the long form's 1000
LONGEST = 15.0  # s that a call may take; options say 2 s, and p2pstore's own tries come on top
CHILD = """
import json, sys
import numpy as np
from fastdeploy_routing_plugins import RoutingSchema, open_store
schema = RoutingSchema(64, 4, (1, 2, 5))
array = np.load(sys.argv[2])
with open_store(json.loads(sys.argv[1]), schema=schema) as store:
    store.put("id", array)
    print("put", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def durable(tmp_path):
    server = Redis(tmp_path, durable=True).start()
    yield server
    server.stop()


class Writer:
    """Puts as fast as it can; knows what was acknowledged."""

    def __init__(self, server, number):
        self.server, self.number = server, number
        self.acknowledged, self.refused, self.others, self.longest = [], 0, [], 0.0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        with store(self.server, SCHEMA, timeout=2.0) as store_:
            count = 0
            while not self.stop.is_set():
                name = f"{self.number}:{count}"
                began = time.monotonic()
                try:
                    store_.put(name, routing(seed=count))
                except StoreUnavailableError:
                    self.refused += 1
                except Exception as err:  # noqa: BLE001 - that there is none is what the test is about
                    self.others.append(err)
                else:
                    self.acknowledged.append((name, count))
                    count += 1
                self.longest = max(self.longest, time.monotonic() - began)
            self.check(store_)

    def check(self, store_):
        self.lost = []
        for name, seed in self.acknowledged:
            try:
                same = np.array_equal(store_.get(name).routing, routing(seed=seed))
            except AbsentError:
                same = False
            if not same:
                self.lost.append(name)


def test_redis_is_killed_and_restarted_under_load(durable):
    writers = [Writer(durable, number) for number in range(2)]
    for writer in writers:
        writer.thread.start()
    for _ in range(KILLS):
        before = [len(writer.acknowledged) for writer in writers]
        until = time.monotonic() + PATIENCE
        while any(len(writer.acknowledged) < count + 5 for writer, count in zip(writers, before, strict=True)):
            assert time.monotonic() < until, "a writer does not go on after a restart"
            time.sleep(0.01)
        refused = [writer.refused for writer in writers]
        durable.kill()
        until = time.monotonic() + PATIENCE
        while any(writer.refused <= count for writer, count in zip(writers, refused, strict=True)):
            assert time.monotonic() < until, "a put while Redis is down is not refused"
            time.sleep(0.01)
        durable.start()
    for writer in writers:
        writer.stop.set()
    for writer in writers:
        writer.thread.join(4 * PATIENCE)
        assert not writer.thread.is_alive()
    assert [writer.others for writer in writers] == [[], []]
    assert [writer.lost for writer in writers] == [[], []]
    assert max(writer.longest for writer in writers) < LONGEST


def test_every_call_is_refused_while_redis_is_down(tmp_path):
    server = Redis(tmp_path).start()
    try:
        with store(server, SCHEMA, timeout=0.5) as one:
            one.put("id", routing())
            server.kill()
            calls = (
                lambda: one.put("other", routing()),
                lambda: one.get("id"),
                lambda: one.list(),
                lambda: one.delete("id"),
                lambda: one.clear(),
            )
            for call in calls:
                began = time.monotonic()
                with pytest.raises(StoreUnavailableError):
                    call()
                assert time.monotonic() - began < LONGEST
            began = time.monotonic()
        assert time.monotonic() - began < LONGEST
        with pytest.raises(StoreUnavailableError):
            store(server, SCHEMA, timeout=0.5)
    finally:
        server.stop()


def test_a_frozen_redis_holds_nobody_up(tmp_path):
    server = Redis(tmp_path).start()
    try:
        with store(server, SCHEMA, timeout=0.5) as one:
            one.put("id", routing())
            server.process.send_signal(signal.SIGSTOP)
            try:
                began = time.monotonic()
                with pytest.raises(StoreUnavailableError):
                    one.put("other", routing(seed=1))
                assert time.monotonic() - began < LONGEST
            finally:
                server.process.send_signal(signal.SIGCONT)
            until = time.monotonic() + PATIENCE
            while True:
                try:
                    one.put("other", routing(seed=1))
                    break
                except StoreUnavailableError:
                    assert time.monotonic() < until
            np.testing.assert_array_equal(one.get("other").routing, routing(seed=1))
    finally:
        server.process.send_signal(signal.SIGCONT)
        server.stop()


def test_what_an_unlogged_redis_forgets_can_be_put_again(tmp_path):
    server = Redis(tmp_path).start()
    try:
        with store(server, SCHEMA) as one:
            one.put("id", routing())
            server.kill()
            server.start()
            with pytest.raises(AbsentError):
                one.get("id")
            one.put("id", routing(seed=1))
            np.testing.assert_array_equal(one.get("id").routing, routing(seed=1))
    finally:
        server.stop()


def test_what_an_unlogged_redis_forgets_is_not_kept_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(backend, "_PRUNE_EVERY", 0.0)
    server = Redis(tmp_path).start()
    try:
        with store(server, SCHEMA) as one:
            for number in range(3):
                one.put(f"before:{number}", routing())
            server.kill()
            server.start()
            one.put("after", routing())
            assert kept_here() == ["after"]
    finally:
        server.stop()


def test_a_password_that_is_wrong_is_a_configuration_error(tmp_path):
    server = Redis(tmp_path, arguments=["--requirepass", "right"]).start()
    try:
        for address in (server.address, server.address.replace("//", "//:wrong@")):
            with pytest.raises((ConfigError, BackendError)):
                store(server, SCHEMA, server=address)
        with store(server, SCHEMA, server=server.address.replace("//", "//:right@")) as one:
            one.put("id", routing())
            np.testing.assert_array_equal(one.get("id").routing, routing())
    finally:
        server.stop()


@pytest.fixture(params=[True, False], ids=["header", "bare"])
def producer(request, redis, tmp_path):
    """A process that holds ``id``, put with a header or without."""
    np.save(tmp_path / "routing.npy", routing())
    own = json.dumps(config(redis, header=request.param))
    command = [sys.executable, "-W", "ignore", "-c", CHILD, own, str(tmp_path / "routing.npy")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "put\n"
        yield process
        process.kill()


def test_a_killed_producer_is_named(redis, producer):
    with reader(redis) as one:
        np.testing.assert_array_equal(one.get("id").routing, routing())
    producer.kill()
    producer.wait()
    with reader(redis) as one, pytest.raises(ProducerLostError):
        one.get("id")


@pytest.mark.parametrize("header", [True, False])
def test_what_a_killed_producer_put_can_be_put_again(redis, producer, header):
    producer.kill()
    producer.wait()
    with store(redis, SCHEMA, header=header) as one:
        one.put("id", routing(seed=1))
        np.testing.assert_array_equal(one.get("id").routing, routing(seed=1))


def test_a_frozen_producer_holds_no_reader_up(redis, producer):
    producer.send_signal(signal.SIGSTOP)
    try:
        with reader(redis, timeout=0.5) as one:
            began = time.monotonic()
            with pytest.raises(RoutingError):
                one.get("id")
            assert time.monotonic() - began < LONGEST
    finally:
        producer.send_signal(signal.SIGCONT)
