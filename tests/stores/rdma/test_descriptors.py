"""Processes that are short of file descriptors or threads: an error that says so, and no end of the process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest

from fastdeploy_routing_plugins import open_reader, open_store, open_writer
from fastdeploy_routing_plugins.errors import StoreUnavailableError

from .test_through_writer import SCHEMA, Place, place, routing

__all__ = ["place"]  # the fixture

CHILD = """
import json, os, resource, sys
from fastdeploy_routing_plugins import open_store, resolve
from fastdeploy_routing_plugins.errors import RoutingError
from tests.stores.rdma.test_through_writer import SCHEMA

resolved = resolve(json.loads(sys.argv[1]))
with open_store(resolved, schema=SCHEMA) as store:  # looking for plugins, and importing, takes descriptors, too
    store.get("x:1")
for more in range(0, 44, 2):
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1 + more, 4096))
        try:
            with open_store(resolved, schema=SCHEMA) as store:
                store.get("x:1")
                said = "ok"
        except RoutingError as err:
            said = err.code
        except OSError as err:
            said = os.strerror(err.errno)
        print(said, flush=True)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.parametrize("place", ["shm", "tcp"], indirect=True)
def test_too_few_descriptors_are_an_error(place: Place) -> None:
    with open_store(place.config(), schema=SCHEMA) as store:
        store.put("x:1", routing(1))
        command = [sys.executable, "-c", CHILD, json.dumps(place.config())]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    said, codes = done.stdout.split("\n")[0:-1:2], done.stdout.split("\n")[1:-1:2]
    assert codes == ["0"] * 22, done.stderr
    assert {said[0], said[-1]} == {"store_unavailable", "ok"}
    assert set(said) <= {"store_unavailable", "ok"}


@pytest.mark.parametrize("place", ["shm"], indirect=True)
def test_too_few_threads_are_an_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with open_store(place.config(), schema=SCHEMA) as store, open_reader(place.config(), schema=SCHEMA) as reader:
        store.put("x:1", routing(1))
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StoreUnavailableError, match="no further thread"):
            open_store(place.config(), schema=SCHEMA)
        with pytest.raises(StoreUnavailableError, match="no further thread"):
            reader.get_batch(["x:1", "x:2"], timeout=1)
        with pytest.raises(StoreUnavailableError, match="no further thread"):
            open_writer(place.config(), schema=SCHEMA, limits=place.limits)
        store.close()
        reader.close()
        monkeypatch.setattr(threading.Thread, "start", start)
