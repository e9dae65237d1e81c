"""The processes of the fault and stress tests: ``faulty_children ROLE CONFIG ...``, all arguments JSON.

Commands come a line each, ``["verb", argument, ...]``, and are answered with a line of JSON each.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from fastdeploy_routing_plugins import SyncStore, open_store
from fastdeploy_routing_plugins.errors import AbsentError, AlreadyExistsError, RoutingError, SupersededError

from .faulty import SCHEMA, is_right, routing


def hold(config: dict[str, Any]) -> None:
    """A plain process that puts."""
    with open_store(config, schema=SCHEMA) as store:

        def put(*keys: str) -> int:
            for key in keys:
                store.put(key, routing(key))
            return len(keys)

        def held() -> int:
            producer = store._store._objects._backend.blocking._producer  # type: ignore[attr-defined]
            return 0 if producer is None else int(producer.shelf.count)

        obey({"put": put, "held": held, "delete": store.delete})


class Reader(threading.Thread):
    """Gets keys in random order, views and copies, until it is told to stop.

    Attributes:
        read: How often that worked.
        wrong: What was not right.
        errors: How often which error came.
        slowest: Seconds that the slowest get took.
    """

    def __init__(self, store: SyncStore, keys: list[str], hold: float, seed: int = 0) -> None:
        super().__init__(daemon=True)
        self._store = store
        self._keys = keys
        self._hold = hold
        self._chance = random.Random(seed)
        self.over = threading.Event()
        self.read = 0
        self.slowest = 0.0
        self.wrong: list[str] = []
        self.errors: Counter[str] = Counter()

    def run(self) -> None:
        while not self.over.is_set():
            self._one(self._chance.choice(self._keys), view=self._chance.random() < 0.5)

    def _one(self, key: str, *, view: bool) -> None:
        began = time.monotonic()
        try:
            record = self._store.get(key, view=view)
            if self._hold:
                time.sleep(self._hold * self._chance.random())
            if not is_right(record, key):
                self.wrong.append(f"{key}: attempt {record.attempt} comes changed")
            self.read += 1
        except RoutingError as err:
            self.errors[err.code] += 1
        except Exception as err:  # noqa: BLE001 - which is what is looked for
            self.wrong.append(f"{key}: {err!r}")
        self.slowest = max(self.slowest, time.monotonic() - began)


def read(config: dict[str, Any], keys: list[str], threads: int, hold: float) -> None:
    """A process that reads for as long as it lives, or until told to stop."""
    with open_store(config, schema=SCHEMA) as store:
        readers = [Reader(store, keys, hold, number) for number in range(threads)]
        for reader in readers:
            reader.start()

        def stop() -> dict[str, Any]:
            for reader in readers:
                reader.over.set()
            for reader in readers:
                reader.join()
            errors: Counter[str] = sum((reader.errors for reader in readers), Counter())
            return {
                "read": sum(reader.read for reader in readers),
                "wrong": [each for reader in readers for each in reader.wrong][:20],
                "errors": dict(errors),
                "slowest": max(reader.slowest for reader in readers),
            }

        obey({"count": lambda: sum(reader.read for reader in readers), "stop": stop})


def serve(config: dict[str, Any]) -> None:
    """A process that only opens the store: the first to do so runs the shared service."""
    with open_store(config, schema=SCHEMA) as store:
        backend = store._store._objects._backend.blocking  # type: ignore[attr-defined]
        obey({"server": lambda: backend._client.status()["pid"]})


# --- the stress ---------------------------------------------------------------------------------------------------


def write(config: dict[str, Any], names: list[str], window: int) -> None:
    """Writers, one a thread: each puts one rollout after the other, again and again, and deletes the oldest."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    over = threading.Event()

    def work(store: SyncStore, name: str) -> None:
        chance = random.Random(name)
        number = 0
        while not over.is_set():
            key = f"{name}:{number}"
            try:
                store.put(key, routing(key))
                if chance.random() < 0.3:
                    store.put(key, routing(key, 1), attempt=1)
                counts["put"] += 1
                number += 1
                if number > window:
                    counts["deleted"] += store.delete(f"{name}:{number - 1 - window}")
            except (AlreadyExistsError, SupersededError) as err:
                counts[err.code] += 1
                number += 1
            except RoutingError as err:
                counts[err.code] += 1
            except Exception as err:  # noqa: BLE001 - which is what is looked for
                wrong.append(f"{key}: {err!r}")
            time.sleep(chance.random() * 0.05)

    with open_store(config, schema=SCHEMA) as store:
        threads = [threading.Thread(target=work, args=(store, name)) for name in names]
        for thread in threads:
            thread.start()

        def stop() -> dict[str, Any]:
            over.set()
            for thread in threads:
                thread.join()
            return {"counts": dict(counts), "wrong": wrong[:20]}

        obey({"stop": stop})


def follow(config: dict[str, Any], names: list[str], threads: int, seed: int) -> None:
    """Readers, each of which follows one writer, waits for what it puts next, and jumps over what is gone."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    over = threading.Event()
    slowest = [0.0] * threads

    def work(store: SyncStore, index: int) -> None:
        chance = random.Random(1000 * seed + index)
        name, number = names[(seed * threads + index) % len(names)], 0
        while not over.is_set():
            key, began = f"{name}:{number}", time.monotonic()
            try:
                record = store.get(key, timeout=1.0, view=chance.random() < 0.5)
                if not is_right(record, key):
                    wrong.append(f"{key}: attempt {record.attempt} comes changed")
                counts["read"] += 1
                number += 1
            except AbsentError as err:
                counts[err.code] += 1
                number += err.code != "not_found"
            except RoutingError as err:
                counts[err.code] += 1
            except Exception as err:  # noqa: BLE001 - which is what is looked for
                wrong.append(f"{key}: {err!r}")
            slowest[index] = max(slowest[index], time.monotonic() - began)

    with open_store(config, schema=SCHEMA) as store:
        workers = [threading.Thread(target=work, args=(store, index)) for index in range(threads)]
        for worker in workers:
            worker.start()

        def stop() -> dict[str, Any]:
            over.set()
            for worker in workers:
                worker.join()
            return {"counts": dict(counts), "wrong": wrong[:20], "slowest": max(slowest)}

        obey({"stop": stop})


# --- all of them ----------------------------------------------------------------------------------------------------


def obey(verbs: dict[str, Callable[..., Any]]) -> None:
    """Does what is said until the input ends, or says so."""
    say("ready")
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        if verb == "end":
            return
        try:
            say(verbs[verb](*arguments))
        except RoutingError as err:
            say({"error": err.code, "text": str(err)})


def say(what: Any) -> None:
    """Says something."""
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(what), flush=True)


if __name__ == "__main__":
    role, *given = sys.argv[1:]
    {"hold": hold, "read": read, "serve": serve, "write": write, "follow": follow}[role](*map(json.loads, given))
