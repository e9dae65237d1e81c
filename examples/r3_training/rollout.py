"""The rollout engine: a process of its own that samples in bfloat16 and hands the routing over to a writer."""

from __future__ import annotations

import multiprocessing
import signal
from dataclasses import dataclass

import numpy as np
import paddle
from model import ModelConfig, MoeModel, bfloat16

from fastdeploy_routing_plugins import ResolvedStore, WeightSpan, open_writer
from fastdeploy_routing_plugins.errors import RoutingError

ARENA = {"arena_bytes": 16 << 20}  # far more than a step needs


@dataclass(frozen=True)
class Request:
    """What the trainer asks for: one answer to each prompt.

    Attributes:
        name: Begins the ids of the rollouts, and is unique in the namespace.
        prompts: int64 ``[batch, prompt tokens]``.
        lengths: int64 ``[batch]``, tokens of prompt and answer; answers end at different times.
        weights: The weights to sample with.
        version: Their number, which is recorded with the routing.
        seed: Of the sampling.
    """

    name: str
    prompts: np.ndarray
    lengths: np.ndarray
    weights: dict[str, np.ndarray]
    version: int
    seed: tuple[int, ...]


@dataclass(frozen=True)
class Rollouts:
    """The engine's reply. The routing is not in it: it comes through the store, under the ids.

    Attributes:
        ids: The rollouts' ids.
        tokens: int64 ``[batch, longest]``; what lies behind a rollout's length means nothing.
        logprobs: float32 ``[batch, longest - 1]``, the engine's log-probability of each token but the first.
    """

    ids: list[str]
    tokens: np.ndarray
    logprobs: np.ndarray


def generate(model: MoeModel, request: Request) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples token by token with a cache of keys and values.

    Returns:
        Tokens and log-probabilities as in ``Rollouts``, and the routing as uint8
        ``[batch, longest - 1, layers, top_k]``: the token sampled last never goes through the model.
    """
    rng = np.random.default_rng(request.seed)
    batch, prompt = request.prompts.shape
    tokens, logprobs, routing = [request.prompts], [np.zeros((batch, prompt - 1), np.float32)], []
    cache: list = []
    with paddle.no_grad():
        for _ in range(prompt, int(request.lengths.max())):
            logits, used, _ = model(paddle.to_tensor(tokens[-1]), cache)
            scores = paddle.nn.functional.log_softmax(logits[:, -1], -1).numpy()
            chosen = np.argmax(scores + rng.gumbel(size=scores.shape), axis=-1)[:, None]  # samples by probability
            tokens.append(chosen)
            logprobs.append(np.take_along_axis(scores, chosen, 1))
            routing.append(used.numpy().astype(model.config.schema.dtype).transpose(0, 2, 1, 3))
    return np.concatenate(tokens, 1), np.concatenate(logprobs, 1), np.concatenate(routing, 1)


def engine(connection, store: ResolvedStore, config: ModelConfig, keep: bool) -> None:
    """Serves requests until None comes; then replies with how many rollouts were stored. Runs in its own process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer ends, and with it the connection
    try:
        with open_writer(store, schema=config.schema, limits=ARENA) as writer:
            model = MoeModel(config, seed=0, rounding=bfloat16)
            previous = None
            while (request := connection.recv()) is not None:
                if previous is not None and not keep:
                    writer.delete_prefix(previous)  # who asks for the next rollouts has read the last ones
                previous = request.name
                model.load(request.weights)
                tokens, logprobs, routing = generate(model, request)
                ids = [f"{request.name}:{index}:0:0" for index in range(len(tokens))]
                connection.send(Rollouts(ids, tokens, logprobs))
                for rollout_id, rows, length in zip(ids, routing, request.lengths.tolist(), strict=True):
                    spans = [WeightSpan(0, length - 1, request.version)]
                    writer.submit(rollout_id, rows[: length - 1], layout="token_first", weight_versions=spans)
            writer.flush(timeout=60).check()  # raises if anything was not stored
            connection.send(writer.stats().stored)
    except RoutingError as err:
        connection.send(err)
    except (EOFError, OSError):  # the trainer is gone
        pass


class Engine:
    """The trainer's end of the engine's process."""

    def __init__(self, store: ResolvedStore, config: ModelConfig, keep: bool) -> None:
        processes = multiprocessing.get_context("spawn")
        self._connection, theirs = processes.Pipe()
        self._process = processes.Process(target=engine, args=(theirs, store, config, keep), name="rollout-engine")
        self._process.start()
        theirs.close()  # so that the engine's end is noticed here

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self._connection.close()
        self._process.join()

    def roll_out(self, request: Request) -> Rollouts:
        """Returns answers to the prompts of a request. Their routing is on its way through the store."""
        return self._ask(request)

    def finish(self) -> int:
        """Ends the engine and returns how many rollouts it has stored."""
        return self._ask(None)

    def _ask(self, message):
        try:
            self._connection.send(message)
            reply = self._connection.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            code = self._process.exitcode
            raise SystemExit(f"error: the rollout engine has ended with {code}; what it said is above") from None
        if isinstance(reply, RoutingError):
            raise reply
        return reply
