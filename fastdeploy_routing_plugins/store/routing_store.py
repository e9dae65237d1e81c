"""``RoutingStore``: routing by key over any backend. Final: stores differ in their backend, never here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, final

from .. import arrays, envelope
from ..backend import Backend, Buffer
from ..errors import AbortedError, InvalidKeyError, InvalidRecordError, SupersededError
from ..keys import MAX_ATTEMPT, RoutingKey, as_key, check_int, encode_namespace
from ..names import AbortName, ObjectName, PartName, SealName
from ..record import RoutingRecord, WeightSpan, check_spans
from ..spec import Capability
from ..status import PutOutcome, RolloutStatus
from . import fetching, inspection
from .assemble import Attempts
from .objects import CALL_LIMIT, READABLE, Objects
from .placing import place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..resolver import ResolvedStore
    from ..schema import RoutingSchema
    from .inspection import RolloutStat, VerifyReport
    from .selection import Selection


@final
class RoutingStore:
    """Routing by key; ``open_store_async`` makes one. Its verbs are coroutines, ``SyncStore`` has them as methods.

    Attributes:
        resolved: Which store it is and how it is configured.
        namespace: The namespace that all keys belong to.
        producer: Who this handle writes as.
        schema: The model's schema, or None if each put states it and reads accept any.
    """

    def __init__(
        self,
        resolved: ResolvedStore,
        backend: Backend,
        schema: RoutingSchema | None = None,
        *,
        call_limit: float | None = CALL_LIMIT,
    ) -> None:
        self.resolved = resolved
        self.namespace = resolved.namespace
        self.producer = resolved.producer
        self.schema = schema
        self._objects = Objects(resolved.name, backend, resolved.spec.capabilities, call_limit)
        encode_namespace(self.namespace)

    async def open(self) -> None:
        """Opens the backend. Opening deletes and changes nothing that is stored."""
        await self._objects.open()

    async def close(self, timeout: float = 5.0) -> None:
        """Closes the backend; harmless when already closed.

        Raises:
            StoreUnavailableError: it did not close within ``timeout`` seconds.
        """
        await self._objects.close(timeout)

    async def __aenter__(self) -> RoutingStore:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"RoutingStore({self.resolved.name!r}, namespace={self.namespace!r})"

    async def flush(self) -> None:
        """Returns when everything put so far is as durable as the store makes it."""
        self._objects.need()
        await self._objects.flush()

    # --- writing ------------------------------------------------------------------------------------------------

    async def put(
        self,
        key: str | RoutingKey,
        routing: Any,
        *,
        schema: RoutingSchema | None = None,
        choice: int = 0,
        attempt: int = 0,
        layers: Selection = None,
        tokens: Selection = None,
        total_tokens: int | None = None,
        layout: str = "layer_first",
        weight_versions: Sequence[WeightSpan] = (),
    ) -> PutOutcome:
        """Stores routing, whole or a part of it; returns when every reader can get it.

        Args:
            key: The rollout id, or a ``RoutingKey``.
            routing: Integers ``[layers, tokens, top_k]`` (``[tokens, top_k]`` for one layer): a NumPy array of any
                memory order, byte order and width, or a Paddle or torch tensor. Logical expert ids.
            schema: The model's schema, unless the store was opened with one.
            choice: Which choice of a request with ``n > 1``.
            attempt: The producer's number of the attempt; readers see the highest one.
            layers: Which MoE layers (positions in ``schema.layer_ids``) these are; None: all.
            tokens: Which tokens (absolute) these are; None: all tokens of the rollout.
            total_tokens: Recorded tokens of the whole rollout, if known; implied by ``tokens=None``.
            layout: ``"layer_first"``, or ``"token_first"`` for ``[tokens, layers, top_k]``.
            weight_versions: Spans of weight versions that cover the tokens.

        Raises:
            InvalidRecordError: The routing does not fit the schema or the ranges stated.
            InvalidKeyError: The id, choice, attempt or a range cannot be stored.
            ConflictError: Other routing is stored in this place, or the totals contradict each other.
            SupersededError: A higher attempt is stored.
            AbortedError: This attempt was given up.
            StoreUnavailableError: The store does not take it now; a retry may succeed.
        """
        self._objects.need()
        key = as_key(key, choice)
        stamp = self._stamp(key, attempt)
        schema = schema or self.schema
        if schema is None:
            raise InvalidRecordError(
                "the model's schema is not known", hint="open_store(..., schema=RoutingSchema(...)) states it once"
            )
        array = arrays.layer_first(arrays.as_numpy(routing), layout)
        what = place(array.shape, schema, layers, tokens, total_tokens)
        check_spans(tuple(weight_versions), what.part.tokens)
        array = arrays.canonical(array, schema, what.part)
        payload = envelope.payload_of(array)
        header = envelope.PartHeader(
            **stamp,
            num_experts=schema.num_experts,
            top_k=schema.top_k,
            layer_ids=schema.layer_ids,
            dtype=schema.dtype,
            layers=what.part.layers,
            tokens=what.part.tokens,
            total_tokens=what.total_tokens,
            digests=envelope.digest_payload(payload, what.part, schema.row_bytes),
            weight_versions=tuple((span.start, span.stop, span.version) for span in weight_versions),
        )
        name, duplicate = await self._create(key, what, header, Buffer(payload, array.shape, schema.dtype))
        return PutOutcome(name, duplicate, payload.nbytes)

    async def seal(self, key: str | RoutingKey, total_tokens: int, *, choice: int = 0, attempt: int = 0) -> None:
        """Says how many recorded tokens a rollout has in all, once that is known.

        Raises:
            ConflictError: Another total was stated, or a part goes beyond it.
            SupersededError: A higher attempt is stored.
        """
        self._objects.need()
        key = as_key(key, choice)
        what = SealName(total_tokens)
        header = envelope.SealHeader(**self._stamp(key, attempt), total_tokens=total_tokens)
        await self._create(key, what, header, Buffer(memoryview(b"")))

    async def abort(self, key: str | RoutingKey, reason: str, *, choice: int = 0, attempt: int = 0) -> None:
        """Gives an attempt up: readers get ``AbortedError`` with the reason at once. The first reason stays.

        Raises:
            SupersededError: A higher attempt is stored.
        """
        self._objects.need()
        key = as_key(key, choice)
        header = envelope.AbortHeader(**self._stamp(key, attempt), reason=str(reason)[:4096])
        await self._create(key, AbortName(), header, Buffer(memoryview(b"")))

    def _stamp(self, key: RoutingKey, attempt: int) -> dict[str, Any]:
        return {
            "namespace": self.namespace,
            "rollout_id": key.rollout_id,
            "choice": key.choice,
            "kind": key.kind,
            "attempt": check_int("attempt", attempt, MAX_ATTEMPT),
            "producer": self.producer,
            "time_ns": time.time_ns(),
        }

    async def _create(
        self, key: RoutingKey, what: ObjectName, header: envelope.Header, payload: Buffer
    ) -> tuple[str, bool]:
        """Creates an object that fits its rollout; returns its name and whether the same was there already."""
        attempt = header.attempt
        prefix = key.prefix(self.namespace)
        name = f"{prefix}{attempt:019d}/{what}"
        if Capability.LIST not in self._objects.has:
            return name, await self._objects.create(name, header, payload)
        known = Attempts.parse(prefix, await self._objects.names(prefix))
        if known.highest > attempt:
            raise SupersededError(
                f"attempt {attempt} of {key} is older than the stored attempt {known.highest}", attempt=known.highest
            )
        if isinstance(what, (PartName, SealName)):
            if known.aborted(attempt):
                raise AbortedError(f"attempt {attempt} of {key} was given up", hint="put with a higher attempt")
            known.check_new(key, attempt, what)
        duplicate = await self._objects.create(name, header, payload)
        if any(number < attempt for number in known.objects):
            # Listed again: other producers may have put the missing parts meanwhile.
            known = Attempts.parse(prefix, await self._objects.names(prefix))
            if known.objects and known.status(key).state == "complete":
                await self._objects.delete(known.names(below=known.highest))
        return name, duplicate

    # --- reading ------------------------------------------------------------------------------------------------

    async def get(
        self,
        key: str | RoutingKey,
        *,
        timeout: float = 0.0,
        choice: int = 0,
        layers: Selection = None,
        tokens: Selection = None,
        layer_ids: Sequence[int] | None = None,
        min_attempt: int = 0,
        verify: bool = True,
    ) -> RoutingRecord:
        """Returns routing, waiting for it if need be.

        Args:
            key: The rollout id, or a ``RoutingKey``.
            timeout: Seconds to wait for what is absent; moving the bytes is not counted.
            choice: Which choice of a request with ``n > 1``.
            layers: Which MoE layers, by position in the recorded layers; None: all.
            tokens: Which tokens, absolute; None: all. A range is returned as soon as its own parts are there.
            layer_ids: Which layers by the model's own indices, consecutive recorded ones; instead of ``layers``.
            min_attempt: Attempts below this do not count.
            verify: Whether digests are compared (whole chunks are read then).

        Raises:
            AbsentError: It is not there when the time is over; the subclass says why (``NotFoundError``,
                ``PendingError``, ``IncompleteError``, ``AbortedError``), ``waited`` how many seconds it took.
            CorruptDataError: Stored bytes are not what was put.
            ConflictError: Parts contradict each other.
            SchemaMismatchError: The store was opened with another schema than the routing has.
            UnsupportedError: The store keeps nothing that could be read.
        """
        self._objects.need(READABLE)
        if layers is not None and layer_ids is not None:
            raise InvalidKeyError("layers and layer_ids exclude each other")
        query = fetching.Query(
            as_key(key, choice), layers, tokens, None if layer_ids is None else tuple(layer_ids), min_attempt, verify
        )
        return await fetching.get(self._objects, self.namespace, self.schema, query, timeout)

    async def wait(
        self, key: str | RoutingKey, *, timeout: float, choice: int = 0, min_attempt: int = 0
    ) -> RolloutStatus:
        """Waits until a rollout is complete. Raises like ``get``."""
        self._objects.need(READABLE)
        query = fetching.Query(as_key(key, choice), min_attempt=min_attempt)
        return (await fetching.wait_until_readable(self._objects, self.namespace, query, fetching.Clock(timeout)))[0]

    async def status(self, key: str | RoutingKey, *, choice: int = 0) -> RolloutStatus:
        """Returns what the names say of a rollout, at the cost of one listing.

        Raises:
            NotFoundError: There is none.
        """
        self._objects.need(Capability.LIST)
        key = as_key(key, choice)
        prefix = key.prefix(self.namespace)
        return Attempts.parse(prefix, await self._objects.names(prefix)).status(key)

    async def stat(self, key: str | RoutingKey, *, choice: int = 0) -> RolloutStat:
        """Returns status, schema, weight versions and producers; reads headers, no payload. Raises NotFoundError."""
        return await inspection.stat(self._objects, await self.status(key, choice=choice), self.namespace)

    async def verify(self, key: str | RoutingKey, *, choice: int = 0) -> VerifyReport:
        """Reads all of a rollout and checks everything: digests, ids, repeats, overlaps; warns of dead layers.

        Raises:
            NotFoundError: There is none.
        """
        self._objects.need(READABLE)
        return await inspection.verify(self._objects, await self.status(key, choice=choice), self.namespace)

    # --- listing and deleting -----------------------------------------------------------------------------------

    async def list(self, prefix: str | None = None) -> list[RolloutStatus]:
        """Returns the rollouts of the namespace, sorted by key.

        Args:
            prefix: Only ids equal to this, or continuing after a colon: ``"x:1"`` means ``x:1`` and ``x:1:…``, never
                ``x:10``.
        """
        groups = await self._groups(prefix)
        return [Attempts.parse(key.prefix(self.namespace), names).status(key) for key, names in groups.items()]

    async def delete(self, *keys: str | RoutingKey, choice: int = 0) -> int:
        """Deletes rollouts, all attempts; returns how many existed. Unknown ones are no error."""
        self._objects.need(Capability.LIST)
        prefixes = [as_key(key, choice).prefix(self.namespace) for key in keys]
        return await self._delete_each([await self._objects.names(prefix) for prefix in prefixes])

    async def delete_prefix(self, prefix: str) -> int:
        """Deletes the rollouts that ``list(prefix)`` names; returns how many existed."""
        return await self._delete_each((await self._groups(prefix)).values())

    async def clear(self, *, everything: bool = False) -> int:
        """Deletes the namespace's rollouts that this producer wrote; returns how many.

        Args:
            everything: Delete the rollouts of all producers.
        """
        groups = (await self._groups(None)).values()
        if everything:
            return await self._delete_each(groups)
        return await self._delete_each(
            [await inspection.written_by(self._objects, self.producer, names) for names in groups]
        )

    async def _delete_each(self, groups: Iterable[Sequence[str]]) -> int:
        count = 0
        for names in groups:
            count += bool(await self._objects.delete(names))
        return count

    async def _groups(self, prefix: str | None) -> Mapping[RoutingKey, Sequence[str]]:
        self._objects.need(Capability.LIST)
        return await inspection.by_key(self._objects, self.namespace, prefix)
