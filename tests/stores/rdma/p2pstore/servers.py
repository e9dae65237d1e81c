"""A real redis-server on loopback, and p2pstore's own client beside it, in this process or another."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import numpy as np

from fastdeploy_routing_plugins import RoutingSchema, open_store

SERVER = shutil.which("redis-server")
MISSING = [name for name in ("p2pstore", "redis", "mooncake") if importlib.util.find_spec(name) is None]
REASON = "needs " + ", ".join([*MISSING, *([] if SERVER else ["redis-server"])])
READY = not MISSING and SERVER is not None
PATIENCE = 20.0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Redis:
    """One redis-server of its own; nothing is written to disk unless ``durable``."""

    def __init__(self, folder: Path, *, durable=False, arguments=()):
        self.folder = folder
        self.port = free_port()
        self.durable = durable
        self.arguments = list(arguments)
        self.process = None

    @property
    def address(self):
        return f"redis://127.0.0.1:{self.port}/0?protocol=tcp"

    def start(self):
        log = ["--appendonly", "yes", "--appendfsync", "always"] if self.durable else ["--appendonly", "no"]
        command = [SERVER, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder)]
        self.process = subprocess.Popen([*command, *log, *self.arguments], stdout=subprocess.DEVNULL)
        until = time.monotonic() + PATIENCE
        while not self.answers():
            assert time.monotonic() < until, "redis-server does not answer"
            time.sleep(0.01)
        return self

    def answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), 0.5) as connection:
                connection.settimeout(0.5)
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()

    def client(self):
        import redis

        return contextlib.closing(redis.Redis(port=self.port, decode_responses=True))


@contextlib.contextmanager
def trainer(redis, database=0):
    """An unmodified P2PClient, as a trainer makes it."""
    from fastdeploy_routing_plugins.stores.rdma.p2pstore import logs
    from fastdeploy_routing_plugins.stores.rdma.p2pstore.client import _stop_listening

    p2pstore = logs.load()
    config = p2pstore.P2PConfig(
        metadata_server=f"redis://127.0.0.1:{redis.port}/{database}",
        local_host=f"127.0.0.1:{free_port()}",
        protocol="tcp",
    )
    client = p2pstore.P2PClient(config)
    try:
        yield client
    finally:
        client.close()
        for transport in client.transports:
            _stop_listening(transport)


def ask(coroutine):
    """Runs one call of a P2PClient."""
    return asyncio.run(coroutine)


def config(redis, **options):
    """A configuration; ``timeout`` is short, so that what waits for nothing does not wait long."""
    own = {"server": redis.address, "timeout": 3.0, **options}
    return {"routing_store_type": "rdma", "routing_store_config": own}


def store(redis, expected=None, **options):
    """A store over p2pstore."""
    return open_store(config(redis, **options), schema=expected)


def reader(redis, schema=None, **options):
    """A store that also reads values without a header."""
    schema = schema or SCHEMA
    layers = "+".join(map(str, schema.layer_ids))
    text = f"experts={schema.num_experts},top_k={schema.top_k},layers={layers}"
    return store(redis, None, schema=text, **options)


def kept_here():
    """Values that clients of this package hold in this process."""
    from fastdeploy_routing_plugins.stores.rdma.p2pstore import held

    clients = [client._client for client, _ in held._here().used.values()]
    return sorted(key for client in clients for transport in client.transports for key in transport._storage)


SCHEMA = RoutingSchema(num_experts=64, top_k=4, layer_ids=(1, 2, 5))


def routing(schema=SCHEMA, tokens=20, seed=0):
    rng = np.random.default_rng([schema.num_experts, tokens, seed])
    first = rng.integers(schema.num_experts, size=(schema.num_layers, tokens, 1))
    spread = np.arange(schema.top_k) * (schema.num_experts // schema.top_k)
    return ((first + spread) % schema.num_experts).astype(schema.dtype)


def padded(array, tokens, dtype):
    """As FastDeploy pads: rows of -1, or what that wraps to."""
    value = np.full((array.shape[0], tokens, array.shape[2]), -1, np.int64).astype(dtype)
    value[:, : array.shape[1]] = array
    return value
