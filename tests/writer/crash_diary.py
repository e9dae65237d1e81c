"""What the engines of the crash tests write down, and what must follow from it: nothing acknowledged is lost.

A diary is a file of JSON lines. The kernel keeps what was written to it, however its writer ends. The lines of one
operation, all with the same number ``n``::

    want    it is about to be handed over; says which part, and its digest
    in      the writer took it
    out     the writer refused it; it must not appear
    filling a reservation that is not published yet; unless ``want`` follows, it must not appear
    ack     its ticket ended well
    fail    its ticket ended in an error
"""

from __future__ import annotations

import json
import os
import re
import threading
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from fastdeploy_routing_plugins import RoutingSchema, SyncStore
from fastdeploy_routing_plugins.errors import NotFoundError, RoutingError

LAYERS, TOP_K, EXPERTS = 6, 4, 64
SCHEMA = RoutingSchema(EXPERTS, TOP_K, range(LAYERS))
LOST = re.compile(r"left by a dead run and lost: (.*?): (\w+): ")

Span = tuple[int, int]


def routing(key: str, attempt: int, tokens: int) -> npt.NDArray[np.uint8]:
    """Returns the routing of a whole rollout, which follows from its name."""
    chance = np.random.default_rng(zlib.crc32(f"{key} {attempt} {tokens}".encode()))
    first = chance.integers(0, EXPERTS, (LAYERS, tokens, 1), dtype=np.uint8)
    return (first + 7 * np.arange(TOP_K, dtype=np.uint8)) % EXPERTS


def digest(array: npt.NDArray[np.uint8]) -> str:
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(array))


class Diary:
    """A diary from its writer's side; may be written by several threads."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._count = 0

    def number(self) -> int:
        with self._lock:
            self._count += 1
            return self._count

    def note(self, what: str, /, **facts: Any) -> None:
        os.write(self._fd, (json.dumps({"is": what, **facts}) + "\n").encode())


@dataclass
class Done:
    """One operation as its diary tells it."""

    engine: str
    verb: str
    key: str
    attempt: int = 0
    layers: Span = (0, LAYERS)
    tokens: Span = (0, 0)
    rows: int = 0
    digest: str = ""
    state: str = "want"
    code: str = ""

    @property
    def text(self) -> str:
        """What the package calls it in its reports."""
        if self.verb != "put":
            return f"{self.verb} of {self.key!r}"
        attempt = f", attempt {self.attempt}" if self.attempt else ""
        (l0, l1), (t0, t1) = self.layers, self.tokens
        return f"put of {self.key!r}{attempt}, layers {l0}:{l1}, tokens {t0}:{t1}"

    @property
    def place(self) -> tuple[int, Span, Span]:
        return self.attempt, self.layers, self.tokens


@dataclass
class Story:
    """Everything that a case's engines wrote.

    Attributes:
        done: Operations, in the order in which they were handed over.
        lines: Other lines, by kind.
        lost: What a later run reported as lost, and the error's code.
    """

    done: list[Done] = field(default_factory=list)
    lines: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    def add(self, path: Path) -> None:
        """Reads one engine's diary, also while it is written."""
        mine: dict[int, Done] = {}
        for line in path.read_text().splitlines(keepends=True) if path.exists() else []:
            if not line.endswith("\n"):
                continue
            facts = json.loads(line)
            what = facts.pop("is")
            number = facts.pop("n", 0)
            if what == "want":
                facts = {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}
                mine[number] = Done(path.name, **facts)
                self.done.append(mine[number])
            elif what in ("in", "out", "ack", "fail"):
                code = facts.get("code", "")
                if what == "fail" and code == "store_closed":
                    what = "in"  # closing left it to the worker, which goes on alone
                # The thread that sees a ticket's end may be faster than the one that notes the hand-over.
                if not (what == "in" and mine[number].state in ("ack", "fail")):
                    mine[number].state, mine[number].code = what, code
            else:
                self.lines.setdefault(what, []).append(facts)
                if what == "log" and (found := LOST.search(facts["text"])):
                    self.lost[found[1]] = found[2]

    @property
    def unknown(self) -> int:
        """How many operations nobody answered for before their engine died."""
        return sum(done.state in ("in", "want") for done in self.done)


def check(story: Story, store: SyncStore) -> list[str]:
    """Returns everything that is wrong with what a store holds after a story has come to its end."""
    by_key: dict[str, list[Done]] = {}
    for done in story.done:
        by_key.setdefault(done.key, []).append(done)
    problems = []
    stored = {status.key.rollout_id for status in store.list()}
    for key in sorted(stored - set(by_key)):
        problems.append(f"{key} is stored, but was never handed over")
    for key, operations in by_key.items():
        try:
            problems += _check_key(key, operations, story.lost, store)
        except RoutingError as err:
            problems.append(f"{key} cannot be read: {err.code}: {err}")
    return problems


def _check_key(key: str, operations: list[Done], lost: dict[str, str], store: SyncStore) -> list[str]:
    try:
        status = store.status(key)
        present = {(status.attempt, part.part.layers, part.part.tokens) for part in status.parts}
        state, highest, sealed = status.state, status.attempt, status.total_tokens is not None
    except NotFoundError:
        present, state, highest, sealed = set(), "absent", -1, False
    problems = []
    certain = [done for done in operations if done.state == "ack" or (done.state == "in" and done.text not in lost)]
    for index, done in enumerate(operations):
        tried = [later for later in operations[index + 1 :] if later.state != "out"]
        deleted = any(later.verb == "delete" for later in tried)
        superseded = any(later.verb == "put" and later.attempt > done.attempt for later in tried)
        if done not in certain:
            continue
        if done.verb == "put" and done.place not in present and not (deleted or superseded):
            problems.append(f"{done.text} ({done.state}) is not stored; {key} is {state}, {sorted(present)}")
        if done.verb == "delete" and not tried and present:
            problems.append(f"{key} was deleted ({done.state}), but is stored")
        if done.verb == "abort" and not deleted and state != "aborted":
            problems.append(f"{key} was aborted ({done.state}), but is {state}")
        if done.verb == "seal" and not (deleted or sealed):
            problems.append(f"{key} was sealed ({done.state}), but is {state}")
    wanted = {done.place: done for done in operations if done.verb == "put" and done.state != "out"}
    for place in present:
        attempt, layers, tokens = place
        if place not in wanted:
            problems.append(f"{key}, attempt {attempt}, layers {layers}, tokens {tokens} is stored, never handed over")
        elif state != "aborted" and attempt == highest:
            problems += _check_content(wanted[place], wanted[place] in certain, store)
    return problems


def _check_content(done: Done, certain: bool, store: SyncStore) -> list[str]:
    expected = routing(done.key, done.attempt, done.rows)[slice(*done.layers), slice(*done.tokens)]
    try:
        found = store.get(done.key, layers=done.layers, tokens=done.tokens).routing
    except RoutingError as err:  # what failed may be damaged, as long as its readers are told so
        return [f"{done.text} cannot be read: {err.code}: {err}"] if certain else []
    same = digest(expected) == done.digest and np.array_equal(found, expected)
    return [] if same else [f"{done.text} comes back changed"]
