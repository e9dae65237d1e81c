"""The kit's tests of whole rollouts: ``RoutingStore`` over the store, as engines and trainers use it."""

from __future__ import annotations

import base64
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ..errors import (
    PendingError,
    UnsupportedError,
)
from ..names import Part
from ..opening import open_store, open_store_async
from ..schema import RoutingSchema
from ..spec import Capability
from .harness import ConformanceBase, Harness, conformance

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from ..arrays import IntArray
    from ..store.routing_store import RoutingStore

READ, LIST = Capability.READ, Capability.LIST
READABLE = READ | LIST

SCHEMAS = tuple(RoutingSchema(experts, 4, (1, 2, 5)) for experts in (256, 65_536, 70_000))
"""One schema for each dtype: uint8, uint16, uint32."""
SMALL = SCHEMAS[0]


def make_routing(schema: RoutingSchema, tokens: int, seed: int = 0) -> IntArray:
    """Returns ``[layers, tokens, top_k]`` in the schema's dtype, distinct ids in a row, the extreme ones too."""
    rng = np.random.default_rng([schema.num_experts, tokens, seed])
    first = rng.integers(schema.num_experts, size=(schema.num_layers, tokens, 1))
    first[:, :1] = 0
    first[:, -1:] = schema.num_experts - 1
    spread = np.arange(schema.top_k) * (schema.num_experts // schema.top_k)
    made: IntArray = ((first + spread) % schema.num_experts).astype(schema.dtype)
    return made


def grid(layers: int, tokens: int, seed: int) -> list[Part]:
    """Cuts a rollout into rectangles at random and returns them in random order."""
    rng = np.random.default_rng(seed)
    parts = []
    for layer in range(layers):
        edges = [0, *sorted(int(edge) for edge in rng.choice(np.arange(1, tokens), 3, replace=False)), tokens]
        parts += [Part((start, stop), (layer, layer + 1)) for start, stop in itertools.pairwise(edges)]
    return [parts[index] for index in rng.permutation(len(parts))]


async def assert_reads(store: RoutingStore, rollout_id: str, routing: IntArray, schema: RoutingSchema) -> None:
    """Asserts that a rollout is read back with its schema, dtype, shape and ids."""
    record = await store.get(rollout_id)
    assert (record.schema, record.routing.dtype) == (schema, np.dtype(schema.dtype))
    assert record.routing.shape == routing.shape
    assert np.array_equal(record.routing, routing)


class RolloutTests(ConformanceBase):
    """Whole rollouts through ``RoutingStore``."""

    @conformance()
    async def test_rollouts_are_put_and_read_or_refused(self, kit: Harness) -> None:
        """Every store takes routing; one that cannot read or list says ``UnsupportedError``, never "not found"."""
        routing = make_routing(SMALL, 20)
        async with open_store_async(kit.resolved, schema=SMALL) as store:
            await store.put("r:0", routing)
            await store.flush()
            await kit.settle()
            if READABLE in kit.capabilities:
                assert np.array_equal((await store.get("r:0")).routing, routing)
                return
            refused: list[Coroutine[Any, Any, Any]] = [store.get("r:0"), store.wait("r:0", timeout=0.0)]
            refused += [store.stat("r:0"), store.verify("r:0")]
            if LIST not in kit.capabilities:
                refused += [store.list(), store.status("r:0"), store.clear(everything=True), store.delete("r:0")]
            for call in refused:
                with pytest.raises(UnsupportedError):
                    await call

    @conformance(READABLE)
    async def test_rollouts_come_back_exactly(self, kit: Harness) -> None:
        """Whole rollouts of each dtype, some of them longer than a digest's chunk, come back bit for bit."""
        async with open_store_async(kit.resolved) as store:
            for number, schema in enumerate(SCHEMAS):
                for tokens in (0, 1, 300, 5000):
                    routing = make_routing(schema, tokens)
                    await store.put(f"whole:{number}:{tokens}", routing, schema=schema)
                    await kit.settle()
                    await assert_reads(store, f"whole:{number}:{tokens}", routing, schema)

    @conformance(READABLE)
    async def test_rollouts_in_other_memory_orders_come_back_exactly(self, kit: Harness) -> None:
        """Wide, big-endian, Fortran, reversed, read-only and token-first input is stored as what it says."""
        routing = make_routing(SMALL, 100)
        locked = routing.copy()
        locked.flags.writeable = False
        forms = [routing.astype(">i8"), np.asfortranarray(routing), routing[::-1].copy()[::-1], locked]
        async with open_store_async(kit.resolved, schema=SMALL) as store:
            for number, form in enumerate(forms):
                await store.put(f"form:{number}", form)
            await store.put(f"form:{len(forms)}", routing.transpose(1, 0, 2), layout="token_first")
            await kit.settle()
            for number in range(len(forms) + 1):
                await assert_reads(store, f"form:{number}", routing, SMALL)

    @conformance(READABLE)
    async def test_layers_put_one_by_one_come_back_exactly(self, kit: Harness) -> None:
        """A rollout put layer by layer is complete with the last layer, and not before."""
        async with open_store_async(kit.resolved) as store:
            for number, schema in enumerate(SCHEMAS):
                routing = make_routing(schema, 70)
                for layer in range(schema.num_layers):
                    assert layer == 0 or (await store.status(f"layers:{number}")).state == "incomplete"
                    await store.put(f"layers:{number}", routing[layer], schema=schema, layers=layer)
                    await kit.settle()
                await assert_reads(store, f"layers:{number}", routing, schema)

    @conformance(READABLE)
    async def test_random_parts_come_back_exactly(self, kit: Harness) -> None:
        """Parts of any shape in any order, and a seal that says the total, make up the rollout."""
        async with open_store_async(kit.resolved) as store:
            for number, schema in enumerate(SCHEMAS):
                routing = make_routing(schema, 200)
                for part in grid(schema.num_layers, 200, number):
                    piece = routing[slice(*part.layers), slice(*part.tokens)]
                    await store.put(f"p:{number}", piece, schema=schema, layers=part.layers, tokens=part.tokens)
                await kit.settle()
                with pytest.raises(PendingError):
                    await store.get(f"p:{number}")
                await store.seal(f"p:{number}", 200)
                await kit.settle()
                await assert_reads(store, f"p:{number}", routing, schema)

    @conformance(READABLE)
    async def test_ranges_of_rollouts_are_exact(self, kit: Harness) -> None:
        """Layers and tokens of a reader's choice are exactly that part of the rollout, checked or not."""
        schema = SCHEMAS[1]
        routing = make_routing(schema, 9000)
        async with open_store_async(kit.resolved, schema=schema) as store:
            await store.put("r", routing[:, :6000], tokens=(0, 6000), total_tokens=9000)
            await store.put("r", routing[:, 6000:], tokens=(6000, 9000), total_tokens=9000)
            await kit.settle()
            ranges = (((0, 3), (0, 9000)), ((1, 2), (4095, 4097)), ((0, 2), (5999, 6001)), ((2, 3), (7, 7)))
            for layers, tokens in ranges:
                for verify in (True, False):
                    record = await store.get("r", layers=layers, tokens=tokens, verify=verify)
                    assert np.array_equal(record.routing, routing[slice(*layers), slice(*tokens)])

    @conformance(READABLE)
    async def test_headers_alone_describe_a_rollout(self, kit: Harness) -> None:
        """``stat`` and ``verify`` agree with what was put."""
        async with open_store_async(kit.resolved, schema=SMALL) as store:
            await store.put("s", make_routing(SMALL, 50))
            await kit.settle()
            assert (await store.stat("s")).schema == SMALL
            assert (await store.stat("s")).producers == ("kit",)
            report = await store.verify("s")
        assert (report.ok, list(report.problems), report.nbytes) == (True, [], 3 * 50 * 4)

    @conformance(READABLE)
    async def test_plain_code_and_asyncio_read_the_same(self, kit: Harness) -> None:
        """``open_store`` and ``open_store_async`` over one store read what the other wrote."""
        routing, other = make_routing(SMALL, 30), make_routing(SMALL, 30, seed=1)
        async with open_store_async(kit.resolved, schema=SMALL) as store:
            with open_store(kit.resolved, schema=SMALL) as plain:
                plain.put("plain", routing)
                await store.put("async", other)
                await kit.settle()
                assert np.array_equal(plain.get("async", timeout=5.0).routing, other)
                assert np.array_equal((await store.get("plain", timeout=5.0)).routing, routing)

    @conformance(READABLE)
    async def test_another_process_reads_rollouts(self, kit: Harness) -> None:
        """A trainer in another process reads each dtype from the store as the engine's configuration names it."""
        stored = {f"rollout:{number}": make_routing(schema, 100) for number, schema in enumerate(SCHEMAS)}
        async with open_store_async(kit.resolved) as store, kit.peer() as peer:
            for (rollout_id, routing), schema in zip(stored.items(), SCHEMAS, strict=True):
                await store.put(rollout_id, routing, schema=schema)
            await kit.settle()
            for rollout_id, routing in stored.items():
                found = await peer.result("rollout", resolved=kit.resolved.to_json(), rollout_id=rollout_id)
                packed = base64.b64encode(routing.tobytes()).decode()
                assert found == [str(routing.dtype), list(routing.shape), packed]
