"""How long it takes from handing a rollout over until another process has it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from _fastdeploy import Miniature, PaddleReader
from _peer import SCHEMA, VARIANTS, Array, Consumer, Peer, local, routing, tokens_of
from _report import Claim, Measure, Samples

from fastdeploy_routing_plugins import open_writer

MIB = 2.8
_ARENA = 64 << 20
_WARM_UP = 3  # rounds
_PAUSE = 0.01  # s in which the reader begins to wait

OURS, MINIATURE = "writer.submit, store.get", "FastDeploy in miniature, paddle.load"


def _latency(hand_over: Callable[[str, Array], object], reader: Peer, key: str, variant: int) -> float:
    """Returns microseconds from the call until the reader had everything."""
    tokens = tokens_of(MIB)
    array = routing(tokens, variant)
    reader.tell("wait", key, tokens, variant)
    time.sleep(_PAUSE)
    start = time.monotonic_ns()
    hand_over(key, array)
    over, same = reader.answer()
    if not same:
        raise SystemExit("bytes were changed on the way: the measurement is void")
    return (over - start) / 1e3


def measure(folder: Path, rounds: int) -> Iterator[Measure | Claim]:
    """Yields latencies, and what is claimed of them."""
    files = folder / "fastdeploy"
    files.mkdir()
    limits = {"arena_bytes": _ARENA, "arena_dir": str(folder)}
    with ExitStack() as stack:
        writer = stack.enter_context(open_writer(local(folder), schema=SCHEMA, limits=limits))
        miniature = Miniature(files)
        stack.callback(miniature.close)
        readers = {OURS: Peer(Consumer, folder, {}), MINIATURE: Peer(PaddleReader, files)}
        for reader in readers.values():
            stack.callback(reader.close)
        candidates: dict[str, tuple[Callable[[str, Array], object], Callable[[], object]]] = {
            OURS: (writer.submit, lambda: writer.flush().check()),
            MINIATURE: (miniature.put, miniature.drained),
        }
        names = list(candidates)
        samples = Samples.of(names)
        for number in range(rounds + _WARM_UP):
            gc.collect()
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                hand_over, settle = candidates[name]
                key = f"bench:{number}:0:0"
                took = _latency(hand_over, readers[name], key, number % VARIANTS)
                settle()
                readers[name].verify("remove", key)
                if number >= _WARM_UP:
                    samples.add(name, [took])
    yield from samples.measures(f"until readable elsewhere, local, {MIB:g} MiB", "µs", MINIATURE)
    ours, theirs = samples.median(OURS), samples.median(MINIATURE)
    yield Claim("submit until readable: half of FastDeploy in miniature", ours, "<=", theirs / 2, "µs")
