"""``RoutingStore``: routing by key over any backend. Final: stores differ in their backend, never here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, final

from .. import envelope
from ..errors import InvalidKeyError, InvalidRecordError, NotFoundError, UnsupportedError
from ..keys import MAX_ATTEMPT, RoutingKey, as_key, check_int, encode_namespace, shown
from ..names import MAX_TOKENS, AbortName, SealName
from ..schema import RoutingSchema
from ..spec import Capability
from . import fetching, inspection, writing
from .assemble import Attempts
from .objects import CALL_LIMIT, READABLE, Objects

MAX_REASON = 4096  # characters of an abort's reason that are kept

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..arena.file import ArenaFile
    from ..backend import Backend
    from ..record import RoutingRecord, Versions
    from ..resolver import ResolvedStore
    from ..status import PutOutcome, RolloutStatus
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
        shared_loop: bool = True,
    ) -> None:
        self.resolved = resolved
        self.namespace = resolved.namespace
        self.producer = resolved.producer
        given: object = schema
        if given is not None and not isinstance(given, RoutingSchema):
            raise InvalidRecordError(f"{shown(schema)} is no RoutingSchema", hint="RoutingSchema(num_experts=…, …)")
        self.schema = schema
        self._objects = Objects(resolved.name, backend, resolved.spec.capabilities, call_limit, shared_loop)
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

    async def inherit(self) -> None:
        """For a store worker: takes over what a dead one, that wrote as this one, kept for readers.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        self._objects.need()
        await self._objects.inherit()

    async def make_room(self, arena: ArenaFile, nbytes: int) -> int:
        """For a store worker whose engine waits for room in its arena: see ``Backend._make_room``."""
        self._objects.need()
        return await self._objects.make_room(arena, nbytes)

    async def linger(self) -> None:
        """Returns when nothing that this process keeps for readers is needed any more, or was kept long enough."""
        self._objects.need()
        await self._objects.linger()

    async def __aenter__(self) -> RoutingStore:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __reduce__(self) -> Any:
        raise UnsupportedError(
            "an open store cannot be copied or pickled", hint="pass store.resolved and open it there"
        )

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
        weight_versions: Versions = (),
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
            weight_versions: The weights that made these tokens: one version, or spans with absolute tokens.

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
        stated: object = schema or self.schema
        if not isinstance(stated, RoutingSchema):
            raise InvalidRecordError(
                "the model's schema is not known" if stated is None else f"{shown(stated)} is no RoutingSchema",
                hint="open_store(..., schema=RoutingSchema(...)) states it once",
            )
        place: dict[str, Any] = {"layers": layers, "tokens": tokens, "total_tokens": total_tokens, "layout": layout}
        return await self.put_draft(
            key, routing, stated, self._stamp(key, attempt), weight_versions=weight_versions,
            on_copy=self._objects.digests_on_copy, **place,
        )  # fmt: skip

    async def put_draft(
        self, key: RoutingKey, routing: Any, schema: RoutingSchema, stamp: Mapping[str, Any], **how: Any
    ) -> PutOutcome:
        """``put`` for the store worker, which knows more of a part; see ``writing.draft_part`` for the arguments."""
        self._objects.need()
        size = getattr(routing, "nbytes", 0)
        draft = await self._objects.offload(size, writing.draft_part, key, stamp, routing, schema, **how)
        return await writing.create(self._objects, self.namespace, draft)

    async def seal(self, key: str | RoutingKey, total_tokens: int, *, choice: int = 0, attempt: int = 0) -> None:
        """Says how many recorded tokens a rollout has in all, once that is known.

        Raises:
            ConflictError: Another total was stated, or a part goes beyond it.
            SupersededError: A higher attempt is stored.
        """
        self._objects.need()
        key = as_key(key, choice)
        what = SealName(check_int("total_tokens", total_tokens, MAX_TOKENS))
        header = envelope.SealHeader(**self._stamp(key, attempt), total_tokens=what.total_tokens)
        await writing.create(self._objects, self.namespace, writing.Draft(key, what, header))

    async def abort(self, key: str | RoutingKey, reason: str, *, choice: int = 0, attempt: int = 0) -> None:
        """Gives an attempt up: readers get ``AbortedError`` with the reason at once. The first reason stays.

        Raises:
            ConflictError: The attempt is complete.
            SupersededError: A higher attempt is stored.
        """
        self._objects.need()
        key = as_key(key, choice)
        text = str(reason)[:MAX_REASON].encode(errors="backslashreplace").decode()
        header = envelope.AbortHeader(**self._stamp(key, attempt), reason=text)
        await writing.create(self._objects, self.namespace, writing.Draft(key, AbortName(), header))

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
        view: bool = False,
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
            view: Whether the routing may lie in the store's own memory, which it keeps there for as long as it lives.

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
        query = fetching.Query(as_key(key, choice), layers, tokens, layer_ids, min_attempt, verify, view)
        return await fetching.get(self._objects, self.namespace, self.schema, query, timeout)

    async def wait(
        self, key: str | RoutingKey, *, timeout: float, choice: int = 0, min_attempt: int = 0
    ) -> RolloutStatus:
        """Waits until a rollout is complete. Raises like ``get``."""
        self._objects.need(READABLE)
        query = fetching.Query(as_key(key, choice), min_attempt=min_attempt)
        clock = fetching.Clock(timeout)
        return (await fetching.wait_until_readable(self._objects, self.namespace, self.schema, query, clock))[0]

    async def status(self, key: str | RoutingKey, *, choice: int = 0) -> RolloutStatus:
        """Returns what the names say of a rollout, at the cost of one listing.

        Raises:
            NotFoundError: There is none; the hint says why, if the store knows.
        """
        self._objects.need(Capability.LIST)
        return await inspection.named(self._objects, as_key(key, choice), self.namespace, why=True)

    async def _known(self, key: RoutingKey) -> RolloutStatus | None:
        """Returns what ``status`` does, None if there is none, for who does not ask why."""
        self._objects.need(Capability.LIST)
        try:
            return await inspection.named(self._objects, key, self.namespace, why=False)
        except NotFoundError:
            return None

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

    async def keeps(self) -> bool:
        """Whether the store lists a mark that it just took, and nobody else knows of; tried in a namespace of its own.

        Tells a store that loses what it takes from a rollout that somebody deleted at once.
        """
        return await writing.keeps(self._objects, self._stamp(RoutingKey("probe"), 0))

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
        groups = [await self._objects.names(prefix) for prefix in prefixes]
        if Capability.RETAIN in self._objects.has:
            # What went with its producer may be there again from another one, unless it is known to be deleted.
            for prefix, names in zip(prefixes, groups, strict=True):
                if not names:
                    await self._objects.clear(prefix)
        return await self._delete_each(groups)

    async def delete_prefix(self, prefix: str) -> int:
        """Deletes the rollouts that ``list(prefix)`` names; returns how many existed."""
        given: object = prefix
        if given is None:
            raise InvalidKeyError("delete_prefix needs a prefix", hint="clear(everything=True) deletes all rollouts")
        return await self._delete_each((await self._groups(prefix)).values())

    async def clear(self, *, everything: bool = False) -> int:
        """Deletes the namespace's rollouts that this producer wrote; returns how many.

        Args:
            everything: Delete the rollouts of all producers.
        """
        self._objects.need(Capability.LIST)
        if everything:
            count = len(await inspection.groups(self._objects, self.namespace))
            await self._objects.clear(f"{encode_namespace(self.namespace)}/")
            return count
        groups = (await self._groups(None)).values()
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
