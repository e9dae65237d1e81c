"""Networks that fail between readers, producers and the service: typed errors in time, and recovery by itself."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from fastdeploy_routing_plugins import SyncStore
from fastdeploy_routing_plugins.errors import AbsentError, RoutingError, StoreUnavailableError
from fastdeploy_routing_plugins.stores.rdma.address import Address, parse
from fastdeploy_routing_plugins.stores.rdma.transport.tcp import TcpSource

from .chaos import Chaos
from .faulty import LONG, Ground, get, ground, is_right, routing, until
from .metadata.helpers import Served, served, serving

PARTITION = 30.0 if LONG else 2.0  # s
TIMEOUT = 1.0  # s, option of the readers
ENDS = 10.0  # s that a call with that timeout may take on a busy machine
KEYS = ["one", "two", "three"]


@dataclass
class Net:
    """A service, and proxies in front of it.

    Attributes:
        place: Over the real address.
        far: Over the proxies.
        sync: The proxy in front of the stream of changes.
        coord: The same of the socket of questions.
    """

    place: Ground
    far: Ground
    sync: Chaos
    coord: Chaos

    def both(self, mode: str, *arguments: Any) -> None:
        """Does the same to both proxies."""
        for proxy in (self.sync, self.coord):
            getattr(proxy, mode)(*arguments)


@contextlib.contextmanager
def netting(place: Ground, address: Address) -> Iterator[Net]:
    with Chaos((address.host, address.sync)) as sync, Chaos((address.host, address.coord)) as coord:
        yield Net(place, replace(place, server=str(Address("127.0.0.1", sync.port, coord.port))), sync, coord)


@pytest.fixture(scope="module")
def place() -> Iterator[Ground]:
    """A service, and a producer beside it that holds ``KEYS``."""
    with served("--max-unix", "0") as service, ground(str(service.address)) as made, made.child("hold") as plain:
        plain.answer()
        plain.ask("put", *KEYS)
        yield made


@pytest.fixture
def net(place: Ground) -> Iterator[Net]:
    with netting(place, parse(place.server)) as made:
        yield made


def ends(store: SyncStore, key: str = "one") -> str:
    """Gets a rollout, which must end in time; returns the error's code, or nothing."""
    began = time.monotonic()
    code = ""
    try:
        assert is_right(store.get(key), key)
    except RoutingError as err:
        code = err.code
    assert time.monotonic() - began < ENDS
    return code


def all_right(store: SyncStore) -> bool:
    return all(is_right(get(store, key), key) for key in KEYS)


# --- between a reader and the service -------------------------------------------------------------------------------


def test_a_slow_network_to_the_service_is_no_trouble(net: Net) -> None:
    net.both("delay", 0.05)
    with net.far.store("shm") as reader:
        assert [ends(reader, key) for key in KEYS] == ["", "", ""]


@pytest.mark.parametrize("mode", ["stall", "half_open"])
def test_a_silent_network_to_the_service_is_an_error_in_time_and_heals(net: Net, mode: str) -> None:
    with net.far.store("tcp", timeout=TIMEOUT) as reader:
        assert ends(reader) == ""
        net.both(mode)
        assert until(lambda: ends(reader, "two")) == "store_unavailable"
        net.both("flow")
        assert all_right(reader)


def test_a_reset_of_the_way_to_the_service_is_no_trouble(net: Net) -> None:
    with net.far.store("tcp") as reader:
        assert ends(reader) == ""
        net.both("reset")
        assert [ends(reader, key) for key in KEYS] == ["", "", ""]


def test_a_partition_from_the_service_heals(net: Net) -> None:
    with net.far.store("shm", timeout=TIMEOUT) as reader, net.far.store(timeout=TIMEOUT) as writer:
        assert ends(reader) == ""
        writer.put("mine", routing("mine"))
        net.both("partition", PARTITION)
        end = time.monotonic() + PARTITION
        codes = set()
        while time.monotonic() < end:
            codes.add(ends(reader, "two"))
        assert codes <= {"", "store_unavailable"}
        assert all_right(reader)
        assert is_right(get(reader, "mine"), "mine")


@pytest.fixture
def movable() -> Iterator[tuple[Served, Net]]:
    """A service of its own, behind proxies."""
    with (
        served("--max-unix", "0") as service,
        ground(str(service.address)) as place,
        netting(place, service.address) as net,
    ):
        yield service, net


def test_a_service_that_moved_is_found_by_everybody(movable: tuple[Served, Net]) -> None:
    service, net = movable
    with net.far.child("hold") as producer, net.far.store("tcp", timeout=TIMEOUT) as reader, serving(unix=0) as other:
        producer.answer()
        producer.ask("put", "theirs")
        assert is_right(get(reader, "theirs"), "theirs")
        net.sync.move((other.address.host, other.address.sync))
        net.coord.move((other.address.host, other.address.coord))
        service.end()
        net.both("reset")
        assert is_right(get(reader, "theirs"), "theirs")
        # The other service ran before: until the producer has found it, nothing is there to delete.
        assert until(lambda: deletes(reader, "theirs") and producer.ask("held") == 0)


def deletes(store: SyncStore, key: str) -> bool:
    """Deletes a rollout; returns whether the service answered. It may have done so also if it did not."""
    try:
        store.delete(key)
    except StoreUnavailableError:
        return False
    return True


# --- between a producer and the service -----------------------------------------------------------------------------


def test_a_producer_that_was_cut_off_has_lost_nothing(net: Net) -> None:
    with net.far.child("hold") as producer, net.place.store("shm", timeout=TIMEOUT) as reader:
        producer.answer()
        producer.ask("put", "theirs", "gone")
        assert is_right(get(reader, "theirs"), "theirs")
        net.both("partition", max(PARTITION, 3.0))
        assert until(lambda: ends(reader, "theirs")) == "store_unavailable"
        reader.delete("gone")
        assert is_right(get(reader, "theirs"), "theirs")
        assert until(lambda: producer.ask("held") == 1)


def test_a_put_during_a_partition_is_there_afterwards_or_an_error(net: Net) -> None:
    with net.far.child("hold", timeout=TIMEOUT) as producer, net.place.store("shm", timeout=TIMEOUT) as reader:
        producer.answer()
        producer.ask("put", "theirs")
        net.both("stall")
        answer = producer.ask("put", "later")
        net.both("flow")
        assert answer["error"] == "store_unavailable"
        assert until(lambda: producer.ask("put", "later") == 1)
        assert is_right(get(reader, "later"), "later")


def test_a_put_whose_answer_is_lost_is_taken_back_by_itself(net: Net) -> None:
    with net.far.child("hold", timeout=TIMEOUT) as producer, net.place.store("shm", timeout=TIMEOUT) as reader:
        producer.answer()
        producer.ask("put", "theirs")
        net.coord.stall_after(0)
        assert producer.ask("put", "later")["error"] == "store_unavailable"
        net.both("flow")
        assert until(lambda: absent(reader, "later"))
        assert producer.ask("put", "later") == 1
        assert is_right(get(reader, "later"), "later")


def absent(store: SyncStore, key: str) -> bool:
    """Whether a rollout is known not to be there."""
    try:
        store.get(key)
    except AbsentError:
        return True
    except StoreUnavailableError:
        return False
    return False


# --- between a reader and a producer's TCP port ---------------------------------------------------------------------


@pytest.fixture
def link(place: Ground) -> Iterator[tuple[SyncStore, Chaos]]:
    """A reader that reaches the producer through a proxy."""
    with place.store("tcp", timeout=TIMEOUT) as reader, Chaos(way(reader)) as proxy:
        way(reader, proxy.address)
        yield reader, proxy


def way(reader: SyncStore, address: str | None = None) -> tuple[str, int]:
    """Returns where a reader finds the producer; with an address, it looks there from now on."""
    client = reader._store._objects._backend.blocking._client  # type: ignore[attr-defined]
    names = client.listing([f"{client.namespace}/one/"])[0].names
    owner = client.lookup(names)[0].owner
    info = client.owner(owner)
    if address is not None:
        client.connection().owners[owner] = msgspec.structs.replace(info, tcp=address)
    host, _, port = info.tcp.rpartition(":")
    return host, int(port)


def test_a_slow_network_to_the_producer_is_no_trouble(link: tuple[SyncStore, Chaos]) -> None:
    reader, proxy = link
    proxy.delay(0.05)
    assert [ends(reader, key) for key in KEYS] == ["", "", ""]


@pytest.mark.parametrize("mode", ["stall", "half_open"])
def test_a_silent_network_to_the_producer_is_an_error_in_time_and_heals(
    link: tuple[SyncStore, Chaos], mode: str
) -> None:
    reader, proxy = link
    assert ends(reader) == ""
    getattr(proxy, mode)()
    assert ends(reader) == "store_unavailable"
    proxy.flow()
    assert all_right(reader)


def test_a_producer_that_does_not_answer_is_waited_for_once(
    link: tuple[SyncStore, Chaos], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, proxy = link
    assert ends(reader) == ""
    asked: list[str] = []

    def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*args: Any, **kwargs: Any) -> Any:
            asked.append(name)
            return method(*args, **kwargs)

        return ask

    for name in ("read", "each"):
        monkeypatch.setattr(TcpSource, name, counted(name, getattr(TcpSource, name)))
    proxy.stall()
    assert (ends(reader), asked) == ("store_unavailable", ["read"])
    assert (ends(reader, "two"), asked) == ("store_unavailable", ["read"])  # it was asked a moment ago
    proxy.flow()
    assert all_right(reader)


def test_why_a_producer_cannot_be_reached_is_told(place: Ground) -> None:
    with place.store("tcp", timeout=TIMEOUT) as reader, socket.create_server(("127.0.0.1", 0)) as listening:
        way(reader, f"127.0.0.1:{listening.getsockname()[1]}")
        thread = threading.Thread(target=answer_nonsense, args=(listening,))
        thread.start()
        with pytest.raises(StoreUnavailableError, match="is no producer of routing"):
            reader.get("one")
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def answer_nonsense(listening: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 400 Bad Request" * 10)


def test_a_network_that_stalls_in_the_middle_of_a_read_is_an_error_in_time_and_heals(
    link: tuple[SyncStore, Chaos],
) -> None:
    reader, proxy = link
    proxy.stall_after(1000)
    assert ends(reader) == "store_unavailable"
    proxy.flow()
    assert all_right(reader)


def test_a_reset_in_the_middle_of_a_read_is_no_trouble(link: tuple[SyncStore, Chaos]) -> None:
    reader, proxy = link
    proxy.reset_after(1000)
    assert [ends(reader, key) for key in KEYS] == ["", "", ""]


def test_a_partition_from_the_producer_heals(link: tuple[SyncStore, Chaos]) -> None:
    reader, proxy = link
    assert ends(reader) == ""
    proxy.partition(PARTITION)
    end = time.monotonic() + PARTITION
    while time.monotonic() < end:
        assert ends(reader) in ("", "store_unavailable")
    assert all_right(reader)


def test_a_stalled_read_keeps_no_other_reader_waiting_for_longer(link: tuple[SyncStore, Chaos]) -> None:
    reader, proxy = link
    proxy.stall()
    errors: list[BaseException] = []

    def read() -> None:
        try:
            reader.get("one")
        except StoreUnavailableError as err:
            errors.append(err)

    threads = [threading.Thread(target=read) for _ in range(12)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    proxy.flow()
    assert (len(errors), time.monotonic() - began < ENDS) == (12, True)
