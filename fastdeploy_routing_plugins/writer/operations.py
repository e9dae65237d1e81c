"""What a block in the arena asks the worker to do, and the setup that all blocks of an arena share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from ..errors import ArenaError
from ..keys import DEFAULT_KIND, MAX_ATTEMPT, RolloutId, RoutingKey, shown
from ..schema import RoutingSchema

if TYPE_CHECKING:
    from ..resolver import ResolvedStore
    from .limits import WriterLimits

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_ATTEMPT)]
Pair = tuple[Count, Count]


class _Operation(msgspec.Struct, frozen=True, kw_only=True, array_like=True, omit_defaults=True):
    """Something to do, in order."""


class _OnKey(_Operation, frozen=True, kw_only=True, array_like=True):
    """Something to do to one rollout."""

    rollout_id: str
    choice: Count = 0
    kind: str = DEFAULT_KIND
    attempt: Count = 0

    @property
    def key(self) -> RoutingKey:
        """The rollout."""
        return RoutingKey(self.rollout_id, self.choice, self.kind)

    @property
    def line(self) -> str | None:
        """Operations of one line, a trajectory, keep their order; None: nothing passes this one."""
        return RolloutId.parse(self.rollout_id).trajectory


class PutOp(_OnKey, frozen=True, kw_only=True, array_like=True, tag="put"):
    """Store a part; the payload is the block's, or a spilled file's.

    Attributes:
        layers: ``(start, stop)``, positions.
        tokens: ``(start, stop)``, absolute.
        total_tokens: Tokens of the whole rollout, if known.
        dtype: NumPy's code of the payload's dtype; C order, ``[layers, tokens, top_k]``.
        token_first: Whether the payload is ``[tokens, layers, top_k]`` instead.
        weight_versions: ``(start, stop, version)``.
        time_ns: When it was handed over.
        spill: Name of the file that holds the payload instead of the block.
        nbytes: Payload bytes, wherever they are.
    """

    layers: Pair
    tokens: Pair
    total_tokens: Count | None
    dtype: str
    time_ns: Count
    nbytes: Count
    weight_versions: tuple[tuple[Count, Count, int | str], ...] = ()
    spill: str = ""
    token_first: bool = False


class SealOp(_OnKey, frozen=True, kw_only=True, array_like=True, tag="seal"):
    """Say how many tokens the rollout has in all."""

    total_tokens: Count


class AbortOp(_OnKey, frozen=True, kw_only=True, array_like=True, tag="abort"):
    """Give an attempt up."""

    reason: str


class DeleteOp(_OnKey, frozen=True, kw_only=True, array_like=True, tag="delete"):
    """Delete a rollout, all attempts."""


class _Barrier(_Operation, frozen=True, kw_only=True, array_like=True):
    """Something that comes after everything before it and before everything after it."""

    @property
    def line(self) -> str | None:
        """None: nothing passes this one."""
        return None


class DeletePrefixOp(_Barrier, frozen=True, kw_only=True, array_like=True, tag="delete_prefix"):
    """Delete the rollouts whose id is the prefix or continues after a colon."""

    prefix: str


class ClearOp(_Barrier, frozen=True, kw_only=True, array_like=True, tag="clear"):
    """Delete the namespace's rollouts of this producer, or of all producers."""

    everything: bool


class FlushOp(_Barrier, frozen=True, kw_only=True, array_like=True, tag="flush"):
    """Make durable what was put before."""


Operation = PutOp | SealOp | AbortOp | DeleteOp | DeletePrefixOp | ClearOp | FlushOp

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Operation] = msgspec.msgpack.Decoder(Operation)

encode: Final = _encoder.encode


def decode(meta: bytes) -> Operation:
    """Parses a block's meta text.

    Raises:
        ArenaError: no version of this package wrote it.
    """
    try:
        return _decoder.decode(meta)
    except (msgspec.DecodeError, ValueError) as err:
        raise ArenaError(f"a block asks for something unknown: {err}") from err


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What an arena's text says: all that its worker, or an adopter, needs.

    Attributes:
        store: ``ResolvedStore.to_json()``.
        num_experts: See ``RoutingSchema``.
        top_k: See ``RoutingSchema``.
        layer_ids: See ``RoutingSchema``.
        validate: See ``WriterLimits``.
        read_back: See ``WriterLimits``.
        retry_for: See ``WriterLimits``.
        call_timeout: See ``WriterLimits``.
        lanes: See ``WriterLimits``.
        arena_dir: See ``WriterLimits``.
        spill_dir: See ``WriterLimits``.
        cwd: The engine's working folder, from which relative paths in the store's options start.
        abort_lost: See ``WriterLimits``.
    """

    store: str
    num_experts: int
    top_k: int
    layer_ids: tuple[int, ...]
    validate: bool
    read_back: bool
    retry_for: float
    call_timeout: float
    lanes: int
    arena_dir: str
    spill_dir: str | None
    cwd: str = "/"
    abort_lost: bool = False

    @classmethod
    def of(cls, resolved: ResolvedStore, schema: RoutingSchema, limits: WriterLimits) -> Setup:
        """Returns the setup of a writer."""
        spill_dir = limits.spill_dir
        return cls(
            store=resolved.to_json(),
            num_experts=schema.num_experts,
            top_k=schema.top_k,
            layer_ids=schema.layer_ids,
            validate=limits.validate,
            read_back=limits.read_back,
            retry_for=limits.retry_for,
            call_timeout=limits.call_timeout,
            lanes=limits.lanes,
            arena_dir=os.path.abspath(limits.arena_dir),
            spill_dir=None if spill_dir is None else os.path.abspath(os.path.expanduser(spill_dir)),
            cwd=os.getcwd(),
            abort_lost=limits.abort_lost,
        )

    def schema(self) -> RoutingSchema:
        """The model's schema."""
        return RoutingSchema(self.num_experts, self.top_k, self.layer_ids)

    def encode(self) -> bytes:
        """Returns the arena's text."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, text: bytes) -> Setup:
        """Parses an arena's text.

        Raises:
            ArenaError: it is none.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, ValueError) as err:
            raise ArenaError(f"the arena's text is damaged: {err}") from err


def verb_of(operation: Operation) -> str:
    """Returns ``put``, ``seal``, ``abort``, ``delete``, ``deleteprefix``, ``clear`` or ``flush``."""
    return type(operation).__name__.removesuffix("Op").lower()


def describe(operation: Operation) -> str:
    """Returns what an operation is, for logs: its verb and its rollout."""
    verb = verb_of(operation)
    if isinstance(operation, PutOp):
        attempt = "" if operation.attempt == 0 else f", attempt {shown(min(operation.attempt, MAX_ATTEMPT))}"
        (l0, l1), (t0, t1) = operation.layers, operation.tokens
        return f"put of {operation.key}{attempt}, layers {l0}:{l1}, tokens {t0}:{t1}"
    if isinstance(operation, (SealOp, AbortOp, DeleteOp)):
        return f"{verb} of {operation.key}"
    if isinstance(operation, DeletePrefixOp):
        return f"delete of prefix {operation.prefix!r}"
    return verb
