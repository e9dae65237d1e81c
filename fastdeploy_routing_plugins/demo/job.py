"""What the demo's processes share: their job, the messages beside the store, and the events that they report."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from fastdeploy_routing_plugins import RoutingSchema
from fastdeploy_routing_plugins.arena.room import SHM
from fastdeploy_routing_plugins.demo.model import ModelConfig
from fastdeploy_routing_plugins.errors import RoutingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class DemoJob:
    """What the two processes are told.

    Attributes:
        store: The configuration given to ``open_writer`` and ``open_store``.
        run: Unique name of this run; part of every rollout id, so that runs sharing a store never meet.
        requests: Number of requests.
        new_tokens: Tokens that every request samples at least.
        seed: Seed of weights, prompts and sampling.
        sabotage: Whether the rollout process swaps the records of two requests.
        timeout: Seconds after which the trainer stops waiting for records.
        channel: File descriptor of the side channel, the writing end for the rollout process.
        arena_dir: Folder for the shared memory between the rollout process and its store worker.
        release: Whether the trainer deletes what it has read, as it must where that takes the rollout's memory.
    """

    store: dict[str, Any]
    run: str
    requests: int
    new_tokens: int
    seed: int
    sabotage: bool = False
    timeout: float = 120.0
    channel: int = -1
    arena_dir: str = SHM
    release: bool = False

    @property
    def model(self) -> ModelConfig:
        """The model that both processes build."""
        return ModelConfig(seed=self.seed)

    @property
    def schema(self) -> RoutingSchema:
        """The routing schema of the model."""
        model = self.model
        return RoutingSchema(num_experts=model.experts, top_k=model.top_k, layer_ids=model.moe_layer_ids)

    def rollout_id(self, index: int) -> str:
        """Returns the id of request ``index``: data, generation, turn, segment."""
        return f"demo-{self.run}:{index}:0:0"


@dataclass(frozen=True, slots=True)
class Handover:
    """What travels beside the store: the response that an RL framework carries, and the digest of the routing.

    Attributes:
        rollout_id: Id under which the routing is stored.
        tokens: Prompt and sampled tokens.
        prompt_tokens: How many of ``tokens`` are prompt.
        logprobs: Natural log-probability of every sampled token in the rollout model.
        sha256: Digest of the routing array, see ``digest``.
    """

    rollout_id: str
    tokens: list[int]
    prompt_tokens: int
    logprobs: list[float]
    sha256: str


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a process's stdout."""

    kind: Literal["progress", "result", "error"]
    done: int = 0
    total: int = 0
    message: str = ""
    result: dict[str, Any] = field(default_factory=dict)


def digest(routing: NDArray[Any]) -> str:
    """Returns the SHA-256 of the shape and the values, whatever integer type and memory order hold them."""
    sha = hashlib.sha256(repr(routing.shape).encode())
    sha.update(np.ascontiguousarray(routing, dtype="<i8").tobytes())
    return sha.hexdigest()


def run_process(body: Callable[[DemoJob, Callable[[int, int], None]], Any]) -> int:
    """Runs one demo process: job from stdin, events to stdout, everything else to stderr.

    Args:
        body: Takes the job and a progress callback, returns a dataclass of figures.

    Returns:
        The exit code: 0, or 1 after a typed error was reported. Other errors are left to the interpreter.
    """
    # Whatever a store prints, even from C, must not end up between the events.
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def emit(event: Event) -> None:
        events.write(msgspec.json.encode(event) + b"\n")
        events.flush()

    try:
        job = msgspec.json.decode(sys.stdin.buffer.read(), type=DemoJob)
        figures = body(job, lambda done, total: emit(Event("progress", done, total)))
    except RoutingError as error:
        emit(Event("error", message=f"{error.code}: {error}"))
        return 1
    emit(Event("result", result=asdict(figures)))
    return 0
