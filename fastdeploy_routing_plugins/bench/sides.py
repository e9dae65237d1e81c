"""A candidate at work: the side that puts and the side that gets, of a store and of a peer."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastdeploy_routing_plugins.bench.arrays import Arrays, flat
from fastdeploy_routing_plugins.bench.peers import Site, find
from fastdeploy_routing_plugins.bench.stream import KIND, Stream
from fastdeploy_routing_plugins.opening import open_reader, open_store, open_writer
from fastdeploy_routing_plugins.resolving.sources import OPTIONS_KEY
from fastdeploy_routing_plugins.spec import Capability

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fastdeploy_routing_plugins.bench.job import Candidate, Job, Way
    from fastdeploy_routing_plugins.bench.peers import Peer

_PATIENCE = 60.0  # s
_SPARE = 16 << 20  # bytes of shared memory beside three times what a round puts


class VoidError(Exception):
    """Bytes were changed on the way."""


def room(job: Job) -> int:
    """Returns how much memory the side that puts gets: what was deleted may need a moment to be free."""
    return 3 * job.work.files * job.work.nbytes + 2 * job.work.rollout_bytes + _SPARE


def clock(call: Callable[[], Any], check: Callable[[Any], None] | None = None) -> int:
    """Returns the nanoseconds of a call and of releasing what it returned, which is checked in between."""
    start = time.perf_counter_ns()
    found = call()
    took = time.perf_counter_ns() - start
    if check is not None:
        check(found)
    start = time.perf_counter_ns()
    del found
    return took + time.perf_counter_ns() - start


def _same(found: Any, expected: Any) -> None:
    if not np.array_equal(flat(found), flat(expected)):
        raise VoidError


class _Side:
    def __init__(self, candidate: Candidate, job: Job, arrays: Arrays) -> None:
        self.candidate, self.job, self.arrays = candidate, job, arrays
        self.ends = ExitStack()

    def keys(self, turn: int) -> list[str]:
        """Returns the keys of a round's arrays."""
        return [f"bench-{turn}-{index}-{self.job.work.nbytes}" for index in range(self.job.work.files)]

    def layer_keys(self, turn: int) -> list[str]:
        """Returns the keys of a round's rollout, layer by layer."""
        return [f"{self.rollout_key(turn)}_{layer}" for layer in range(self.job.work.rollout_layers)]

    def rollout_key(self, turn: int) -> str:
        """Returns the key of a round's rollout."""
        return f"rollout-{turn}"

    def close(self) -> None:
        """Closes everything."""
        self.ends.close()


class StoreWriting(_Side):
    """The side that puts into a store."""

    def __init__(self, candidate: Candidate, job: Job, arrays: Arrays) -> None:
        super().__init__(candidate, job, arrays)
        self._store = self.ends.enter_context(open_store(candidate.store))
        if Capability.LIST in self._store.resolved.spec.capabilities:
            self.ends.callback(self._store.clear, everything=True)
        self._writer = None
        if candidate.submits:
            limits = {"arena_bytes": room(job), "arena_dir": job.shm}
            opened = open_writer(candidate.store, schema=job.work.schema, limits=limits)
            self._writer = self.ends.enter_context(opened)

    def put(self, turn: int) -> list[int]:
        """Puts a round's arrays, one by one."""
        schema = self.job.work.schema
        return [
            clock(lambda: self._store.put(key, array, schema=schema))  # noqa: B023 - called at once
            for key, array in zip(self.keys(turn), self.arrays.files(turn), strict=True)
        ]

    def submit(self, turn: int) -> list[int]:
        """Hands a round's arrays over to the writer, and then, outside the clock, waits until they are stored."""
        assert self._writer is not None
        writer = self._writer
        took = [
            clock(lambda: writer.submit(key, array))  # noqa: B023 - called at once
            for key, array in zip(self.keys(turn), self.arrays.files(turn), strict=True)
        ]
        writer.flush(_PATIENCE).check()
        return took

    def put_rollout(self, turn: int) -> list[int]:
        """Puts the tokens that there are of an engine's table, all layers at once."""
        work = self.job.work
        table = self.arrays.table(turn)[:, : work.rollout_tokens]
        return [clock(lambda: self._store.put(self.rollout_key(turn), table, schema=work.rollout_schema))]

    def delete(self, turn: int) -> list[int]:
        """Deletes what a round put."""
        if Capability.LIST in self._store.resolved.spec.capabilities:
            self._store.delete(*self.keys(turn), self.rollout_key(turn))
        return []


class StoreReading(_Side):
    """The side that gets from a store; each way has a store of its own, so that none knows what others asked for."""

    def __init__(self, candidate: Candidate, job: Job, arrays: Arrays) -> None:
        super().__init__(candidate, job, arrays)
        self._opened = [self._open(way) for way in candidate.gets]

    def _open(self, way: Way) -> Any:
        config = self.candidate.store
        config = {**config, OPTIONS_KEY: {**config[OPTIONS_KEY], **way.options}}
        if way.mode == "batch":
            return self.ends.enter_context(open_reader(config, schema=self.job.work.schema))
        return self.ends.enter_context(open_store(config))

    def get(self, turn: int, way: int) -> list[int]:
        """Gets a round's arrays in one of the ways."""
        store, mode, keys = self._opened[way], self.candidate.gets[way].mode, self.keys(turn)
        expected = self.arrays.files(turn)
        if mode == "batch":
            return [clock(lambda: store.get_batch(keys).routing, _check_all(expected))]
        if mode != "get":
            for key in keys:
                store.wait(key, timeout=_PATIENCE)
        view = {"view": True} if mode == "view" else {}
        return [
            clock(lambda: store.get(key, **view).routing, lambda found: _same(found, array))  # noqa: B023
            for key, array in zip(keys, expected, strict=True)
        ]

    def get_rollout(self, turn: int) -> list[int]:
        """Gets the rollout, all layers at once, by the first way that gets one by one."""
        store = next(
            each for each, way in zip(self._opened, self.candidate.gets, strict=True) if way.mode != "batch"
        )  # fmt: skip
        expected = self.arrays.rollout(turn)
        return [clock(lambda: store.get(self.rollout_key(turn)).routing, lambda found: _same(found, expected))]


class PeerWriting(_Side):
    """The side that puts by a peer."""

    def __init__(self, candidate: Candidate, job: Job, arrays: Arrays) -> None:
        super().__init__(candidate, job, arrays)
        self._peer = _open_peer(candidate, job)
        self.ends.callback(self._peer.close)

    def put(self, turn: int) -> list[int]:
        """Puts a round's arrays, one by one."""
        arrays = self.arrays.files(turn)
        self._peer.prepare(arrays)
        return [
            clock(lambda: self._peer.put(key, array))  # noqa: B023 - called at once
            for key, array in zip(self.keys(turn), arrays, strict=True)
        ]

    def put_rollout(self, turn: int) -> list[int]:
        """Puts an engine's table as FastDeploy does: padded, layer by layer."""
        layers = list(self.arrays.table(turn))
        self._peer.prepare(layers)
        items = list(zip(self.layer_keys(turn), layers, strict=True))
        return [clock(lambda: self._peer.put_many(items))]

    def delete(self, turn: int) -> list[int]:
        """Deletes a round's arrays."""
        self._peer.delete(self.keys(turn))
        return []

    def delete_rollout(self, turn: int) -> list[int]:
        """Deletes a round's rollout."""
        self._peer.delete(self.layer_keys(turn))
        return []


class PeerReading(_Side):
    """The side that gets by a peer."""

    def __init__(self, candidate: Candidate, job: Job, arrays: Arrays) -> None:
        super().__init__(candidate, job, arrays)
        self._peer = _open_peer(candidate, job)
        self.ends.callback(self._peer.close)

    def get(self, turn: int, way: int) -> list[int]:
        """Gets a round's arrays, one by one or, from the plain stream, all at once."""
        expected, peer = self.arrays.files(turn), self._peer
        if self.candidate.gets[way].mode == "batch":
            assert isinstance(peer, Stream)
            size = self.job.work.nbytes
            return [
                clock(
                    lambda: peer.read(0, size * len(expected)).reshape(len(expected), size),
                    _check_all(expected),
                )
            ]
        return [
            clock(lambda: peer.get(key), lambda found: _same(found, array))  # noqa: B023 - called at once
            for key, array in zip(self.keys(turn), expected, strict=True)
        ]

    def get_rollout(self, turn: int) -> list[int]:
        """Gets a rollout as trainers of FastDeploy do: layer by layer, put together, without what is padded."""
        work, table = self.job.work, self.arrays.table(turn)
        shape, dtype = table.shape[1:], table.dtype

        def gather() -> Any:
            layers = [
                np.asarray(flat(self._peer.get(key)).view(dtype).reshape(shape)[: work.rollout_tokens])
                for key in self.layer_keys(turn)
            ]
            return np.stack(layers)

        expected = table[:, : work.rollout_tokens]
        return [clock(gather, lambda found: _same(found, expected))]


def _check_all(expected: Iterable[Any]) -> Callable[[Any], None]:
    def check(found: Any) -> None:
        for each, array in zip(found, expected, strict=True):
            _same(each, array)

    return check


def _open_peer(candidate: Candidate, job: Job) -> Peer:
    kind = KIND if candidate.peer == KIND.name else find(candidate.peer)
    assert kind is not None, "the command has looked for it"
    nbytes = job.work.files * job.work.nbytes
    return kind.open(Site(Path(job.folder), job.redis_port, job.writing, nbytes))
