"""What the two processes of a benchmark are told, and what they answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from fastdeploy_routing_plugins.bench.presets import Work  # noqa: TC001 - msgspec reads it from the annotations

Mode = Literal["get", "waited", "view", "batch"]


@dataclass(frozen=True, slots=True)
class Way:
    """A way to get what a candidate put.

    Attributes:
        name: What tables call it.
        mode: One by one; the same of what was waited for before, as copies or as views; or all at once.
        options: Of the store, instead of the candidate's own.
    """

    name: str
    mode: Mode = "get"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that is measured.

    Attributes:
        name: What users call it.
        put_name: What tables call its put.
        gets: Ways to get what was put; none if nothing can be read.
        peer: The name of a kind of peer; empty: a store.
        store: The store's configuration.
        submits: Whether the writer's ``submit`` is measured, too.
        rollout: What tables call moving a rollout end to end by it; empty: that is not measured.
    """

    name: str
    put_name: str
    gets: tuple[Way, ...]
    peer: str = ""
    store: dict[str, Any] = field(default_factory=dict)
    submits: bool = False
    rollout: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """What both processes know.

    Attributes:
        writing: Whether this is the process that puts.
        work: What is moved.
        candidates: Everything that is measured.
        folder: For files.
        shm: For shared memory.
        redis_port: A redis-server's; 0: there is none.
    """

    writing: bool
    work: Work
    candidates: tuple[Candidate, ...]
    folder: str
    shm: str
    redis_port: int


@dataclass(frozen=True, slots=True)
class Ask:
    """A call: ``verb`` of the process, for a candidate, in a round."""

    verb: str
    candidate: str = ""
    turn: int = 0
    way: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """How it went.

    Attributes:
        times: Nanoseconds of each call.
        error: What went wrong; empty: nothing did.
        void: Whether bytes were changed on the way.
    """

    times: list[int] = field(default_factory=list)
    error: str = ""
    void: bool = False
