"""The unix socket of the service: clients of this host use it, and it bears whatever is said to it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fastdeploy_routing_plugins.errors import StoreClosedError
from fastdeploy_routing_plugins.stores.rdma.metadata import framing
from fastdeploy_routing_plugins.stores.rdma.metadata import messages as m
from fastdeploy_routing_plugins.stores.rdma.metadata.client import Entry, Security
from fastdeploy_routing_plugins.stores.rdma.metadata.lines import UnixLine
from fastdeploy_routing_plugins.stores.rdma.metadata.naming import digest
from fastdeploy_routing_plugins.stores.rdma.metadata.unix_server import SIZE

from ....interrupts import Interrupted, alarms, stop_alarm
from . import samples
from .helpers import client_of, name, producing, says, served, serving, until
from .test_hostile import MUTATIONS, mutant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastdeploy_routing_plugins.stores.rdma.metadata.client import MetadataClient
    from fastdeploy_routing_plugins.stores.rdma.metadata.service import Service

HELLO = framing.encode_question(m.Hello("ns", bytes(16)), 1, 1000)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serving() as service:
        yield service


def line_of(client: MetadataClient) -> str:
    """Returns what kind of connection the calling thread has."""
    client.status()
    return type(client.connection().channel()._line).__name__


def socket_of(service: Service) -> str:
    assert service._unix is not None
    return service._unix.name


@contextlib.contextmanager
def stranger(service: Service) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(20)
        peer.connect(f"\0{socket_of(service)}")
        yield peer


def is_cut(peer: socket.socket) -> bool:
    """Whether the service closes a connection."""
    try:
        while peer.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def unix_of(client: MetadataClient) -> int:
    return int(client.status()["unix"])


def works(service: Service) -> bool:
    """Whether the service still does what it should, over both ways."""
    with client_of(service.address) as client, producing(client) as producer:
        client.publish(producer.owner, [(name("works"), b"here")])
        assert client.lookup([name("works")]) == [Entry(name("works"), producer.owner, b"here")]
        return line_of(client) == "UnixLine"


def test_clients_of_this_host_use_it(service: Service) -> None:
    with client_of(service.address) as client:
        assert line_of(client) == "UnixLine"
        before = unix_of(client)
        with client_of(service.address) as other:
            assert line_of(other) == "UnixLine"
            assert unix_of(client) == before + 1
        until(lambda: unix_of(client) == before)


def test_threads_have_connections_of_their_own(service: Service) -> None:
    with client_of(service.address) as client:
        found: list[str] = []
        threads = [threading.Thread(target=lambda: found.append(line_of(client))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == ["UnixLine"] * 4


def test_who_finds_no_room_uses_the_ports() -> None:
    with serving(unix=1) as service, client_of(service.address) as first, client_of(service.address) as second:
        assert (line_of(first), line_of(second)) == ("UnixLine", "ZmqLine")
    with serving(unix=0) as service, client_of(service.address) as client:
        assert service._unix is None
        assert line_of(client) == "ZmqLine"


def test_a_secret_is_asked_for_here_too() -> None:
    with serving(security=Security("", "key")) as service:
        with client_of(service.address, security=Security("", "key")) as client:
            assert line_of(client) == "UnixLine"
        with stranger(service) as peer:
            peer.sendall(SIZE.pack(len(HELLO)) + HELLO)
            answer = peer.recv(1000)[SIZE.size :]
            assert isinstance(framing.decode_answer(answer)[1], m.Prove)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_clients_go_on_with_the_next_service_by_themselves(how: int) -> None:
    with served() as service, client_of(service.address) as client, producing(client) as producer:
        producer.put(name())
        for _ in range(3):
            assert line_of(client) == "UnixLine"
            service.end(how)
            service.start()
            assert client.lookup([name()]) == [Entry(name(), producer.owner, b"place")]
        assert line_of(client) == "UnixLine"


def test_closing_ends_a_wait_of_another_thread(service: Service) -> None:
    with client_of(service.address) as client:
        ended: list[float] = []
        waits = threading.Event()

        def wait() -> None:
            line_of(client)
            waits.set()
            with pytest.raises(StoreClosedError):
                client.wait("ns/nobody/000000/routing/", [], time.monotonic() + 60)
            ended.append(time.monotonic())

        thread = threading.Thread(target=wait)
        thread.start()
        assert waits.wait(20)
        time.sleep(0.1)
        began = time.monotonic()
        client.close()
        thread.join(20)
        assert len(ended) == 1
        assert ended[0] - began < 5


def test_a_forked_child_of_the_service_keeps_no_connection_open(tmp_path: Path) -> None:
    code = """
import os, sys, threading, time
from fastdeploy_routing_plugins.stores.rdma.metadata.service import Service
from fastdeploy_routing_plugins.stores.rdma.metadata.client import MetadataClient
from fastdeploy_routing_plugins.stores.rdma.address import Address
service = Service(Address("127.0.0.1", 0, 0))
os.register_at_fork(after_in_child=service.in_child)
threading.Thread(target=service.run, daemon=True).start()
print(service._unix.name, flush=True)
sys.stdin.readline()
if os.fork() == 0:
    time.sleep(60)
    os._exit(0)
print("forked", flush=True)
time.sleep(60)
"""
    root = str(Path(__file__).parents[4])
    env = {**os.environ, "PYTHONPATH": root}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
        start_new_session=True,
    )
    try:
        line = UnixLine(says(process))
        end = time.monotonic() + 20
        line.send(HELLO, end)
        assert line.receive(end)
        assert process.stdin is not None
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert says(process) == "forked"
        process.kill()
        with pytest.raises(ConnectionError):
            line.receive(time.monotonic() + 20)
        line.close()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def test_a_forked_child_of_a_client_makes_its_own(service: Service) -> None:
    with client_of(service.address) as client:
        assert line_of(client) == "UnixLine"
        pid = os.fork()
        if pid == 0:
            os._exit(0 if line_of(client) == "UnixLine" else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert line_of(client) == "UnixLine"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_not_heard(service: Service) -> None:
    pid = os.fork()
    if pid == 0:
        os.setuid(65534)
        with stranger(service) as peer:
            os._exit(0 if is_cut(peer) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_client_does_not_speak_to_another_user() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    where = f"fd-routing-test-{os.getpid()}"
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setuid(65534)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"\0{where}")
            listener.listen()
            os.write(send, b"x")
            time.sleep(60)
        os._exit(0)
    try:
        os.read(receive, 1)
        with pytest.raises(PermissionError):
            UnixLine(where)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(receive)
        os.close(send)


def test_a_question_broken_off_by_a_signal_does_not_disturb_the_next(service: Service) -> None:
    wanted = [name(f"x=3a{index}") for index in range(300)]
    with client_of(service.address, timeout=5) as client, producing(client) as producer:
        client.publish(producer.owner, [(each, bytes(40)) for each in wanted])
        client.connection().page = None  # as on another host: every listing is asked for
        chance = random.Random(3)
        with alarms():
            for _ in range(300):
                with contextlib.suppress(Interrupted):
                    signal.setitimer(signal.ITIMER_REAL, 0.0002 + chance.random() / 500)
                    for _ in range(20):
                        client.listing(["ns/"])
                stop_alarm()
                assert len(client.listing(["ns/"])[0].names) >= 300


def test_a_service_without_descriptors_rests_and_goes_on(tmp_path: Path) -> None:
    code = """
import resource, sys, threading, time
from fastdeploy_routing_plugins.stores.rdma.metadata.service import Service
from fastdeploy_routing_plugins.stores.rdma.address import Address
service = Service(Address("127.0.0.1", 0, 0))
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
thread = threading.Thread(target=service.run, daemon=True)
thread.start()
file = open(f"/proc/self/task/{thread.native_id}/stat")
print(service._unix.name, flush=True)
for line in sys.stdin:
    file.seek(0)
    print(sum(map(int, file.read().split()[13:15])), flush=True)
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )
    assert process.stdin is not None

    def spent() -> float:
        assert process.stdin is not None
        process.stdin.write("x\n")
        process.stdin.flush()
        return int(says(process)) / os.sysconf("SC_CLK_TCK")

    try:
        where = f"\0{says(process)}"
        with contextlib.ExitStack() as stack:
            for _ in range(60):
                peer = stack.enter_context(socket.socket(socket.AF_UNIX))
                peer.settimeout(5)
                peer.connect(where)
            time.sleep(0.5)
            before = spent()
            time.sleep(1.0)
            assert spent() - before < 0.5
        line = UnixLine(where[1:])
        end = time.monotonic() + 20
        line.send(HELLO, end)
        assert line.receive(end)
        line.close()
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


# --- hostile bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [framing.MAX_MESSAGE + 1, 2**31, 2**32 - 1])
def test_a_frame_that_is_too_large_ends_its_connection(service: Service, size: int) -> None:
    with stranger(service) as peer:
        peer.sendall(SIZE.pack(size) + b"x" * 1000)
        assert is_cut(peer)
    assert works(service)


def test_frames_in_pieces_are_put_together(service: Service) -> None:
    with stranger(service) as peer:
        data = SIZE.pack(len(HELLO)) + HELLO
        for at in range(len(data)):
            peer.sendall(data[at : at + 1])
        assert peer.recv(1000)
        peer.sendall(data * 3)
        received = b""
        while received.count(b"fd-routing-") < 3:
            received += peer.recv(1 << 16)


def test_who_asks_without_reading_is_cut_and_others_are_served(service: Service) -> None:
    with client_of(service.address) as client, producing(client) as producer:
        client.publish(producer.owner, [(name(f"x=3a{index}"), b"p" * 40) for index in range(2000)])
        listing = framing.encode_question(m.AskListings(["ns/"]), 2, 1000)
        with stranger(service) as peer:
            peer.sendall(SIZE.pack(len(HELLO)) + HELLO)
            peer.settimeout(0.5)
            with contextlib.suppress(OSError):  # either it takes no more, or it cut the connection
                for _ in range(100_000):
                    peer.sendall(SIZE.pack(len(listing)) + listing)
                pytest.fail("it took 100,000 questions from who reads no answer")
            assert client.lookup([name("x=3a1")]) == [Entry(name("x=3a1"), producer.owner, b"p" * 40)]
        assert client.status()["memory"] < 2 << 30


def test_who_waits_without_reading_is_cut_when_too_much_is_to_be_said(service: Service) -> None:
    with client_of(service.address) as client, producing(client) as producer, stranger(service) as peer:
        before = client.status()["refused"].get("unread", 0)
        peer.sendall(SIZE.pack(len(HELLO)) + HELLO)
        places = [(name("crowd", f"x{index:04d}"), b"p" * 40) for index in range(1000)]
        client.publish(producer.owner, places)
        prefix = "ns/crowd/000000/routing/"
        names = client.listing([prefix])[0].names
        waiting = client.status()["waiting"]
        for number in range(200):
            ask = framing.encode_question(m.AskChange(prefix, len(names), digest(names)), 10 + number, 60_000)
            peer.sendall(SIZE.pack(len(ask)) + ask)
        until(lambda: client.status()["waiting"] == waiting + 200)
        client.publish(producer.owner, [(name("crowd", "y"), b"p")])
        until(lambda: client.status()["refused"].get("unread", 0) > before)
    assert works(service)


def samples_digest(names: list[str]) -> int:
    from fastdeploy_routing_plugins.stores.rdma.metadata.naming import digest

    return digest(names)


def test_mutated_frames_do_no_harm(service: Service) -> None:
    frames = [framing.encode_question(body, 7, 50) for body in samples.QUESTIONS.values()]
    rng = random.Random(5)
    with client_of(service.address) as client:
        before = client.status()["memory"]
        sent = 0
        while sent < MUTATIONS:
            with stranger(service) as peer:
                peer.settimeout(0.2)
                with contextlib.suppress(OSError):
                    peer.sendall(SIZE.pack(len(HELLO)) + HELLO)
                    for _ in range(50):
                        raw = mutant(rng, frames)
                        sent += 1
                        honest = rng.random() < 0.9
                        peer.sendall((SIZE.pack(len(raw)) if honest else os.urandom(4)) + raw)
                    peer.recv(1 << 20)
        assert client.status()["memory"] < before + (64 << 20)
    assert works(service)
