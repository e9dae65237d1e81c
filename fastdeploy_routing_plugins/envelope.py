"""Headers as bytes: what is stored beside a payload, how it is checked, and digests of the payload.

A header is one line of UTF-8 text, so it can live in a safetensors file, a database column or a terminal::

    FDROUTING/1.1 0123456789abcdef {"object":"part", ...}

The 16 hexadecimal digits are XXH3-64 of the line without them and the blank after them. The payload is C order,
layers first, little-endian; it is digested per layer and chunk of 4,096 tokens (counted from the part's first token).
XXH3 (Yann Collet, xxHash 0.8) finds accidents, not attackers. Readers accept older minor versions of the format, and
a header is written as the oldest one that has all that it says; ``tests/golden`` pins them. New in 1.1: ``whole``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Final

import msgspec
import xxhash

from .digests import CHUNK_TOKENS, DIGEST_DIGITS
from .errors import CorruptDataError, InvalidKeyError, InvalidRecordError, UnsupportedError
from .keys import DEFAULT_KIND, MAX_ATTEMPT, MAX_CHOICE, RoutingKey, encode_component, encode_namespace
from .names import AbortName, ObjectName, Part, PartName, SealName, object_name, parse_object
from .record import WeightSpan, check_spans, merged
from .schema import RoutingSchema

FORMAT: Final = (1, 1)
MAX_HEADER: Final = 64 << 20
_MAGIC = b"FDROUTING/"
# How the lines of each minor version begin; all are of one length.
_LINES = tuple(b"%s%d.%d " % (_MAGIC, FORMAT[0], minor) for minor in range(FORMAT[1] + 1))
_AT = len(_LINES[0])
_BODY = _AT + DIGEST_DIGITS + 1  # where they have their JSON

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_ATTEMPT)]


class _Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="object", kw_only=True, gc=False):
    """What every stored object says.

    Attributes:
        namespace: The namespace's text.
        rollout_id: The full rollout id, compared on read.
        choice: See ``RoutingKey``.
        kind: See ``RoutingKey``.
        attempt: The attempt's number.
        producer: Who wrote it.
        time_ns: When, in ns since the epoch by the producer's clock.
    """

    namespace: str
    rollout_id: str
    choice: Count
    kind: str
    attempt: Count
    producer: str
    time_ns: Count

    def key(self) -> RoutingKey:
        """The key that the object belongs to."""
        return RoutingKey(self.rollout_id, self.choice, self.kind)

    def what(self) -> ObjectName:
        """The last component of the object's name."""
        raise AssertionError("subclasses know")

    def name(self) -> str:
        """The full name under which the object must be stored."""
        return object_name(self.key(), self.namespace, self.attempt, self.what())


class PartHeader(_Base, frozen=True, forbid_unknown_fields=True, tag="part", kw_only=True, gc=False):
    """The header of a part.

    Attributes:
        num_experts: See ``RoutingSchema``.
        top_k: See ``RoutingSchema``.
        layer_ids: See ``RoutingSchema``; of the whole rollout.
        dtype: The payload's dtype, a function of ``num_experts``.
        layers: ``(start, stop)``, positions.
        tokens: ``(start, stop)``, absolute.
        total_tokens: Tokens of the whole rollout, if known.
        digests: XXH3-64 of each layer x chunk, layer by layer, 16 hexadecimal digits each.
        weight_versions: ``(start, stop, version)`` spans over the part's tokens.
        whole: XXH3-64 of the whole payload, 16 hexadecimal digits, if it is small (``digests.WHOLE``): who reads all
            of it needs no more.
    """

    num_experts: Count
    top_k: Count
    layer_ids: tuple[Count, ...]
    dtype: str
    layers: tuple[Count, Count]
    tokens: tuple[Count, Count]
    total_tokens: Count | None
    digests: str
    weight_versions: tuple[tuple[Count, Count, int | str], ...] = ()
    whole: str | msgspec.UnsetType = msgspec.UNSET

    def schema(self) -> RoutingSchema:
        """The model's schema."""
        return self.model().schema

    def model(self) -> Model:
        """The model's schema, and what follows from it."""
        last = _last[0]  # comparing is sooner done than looking up: most headers are those of one model
        schema = last.schema
        if (
            schema.layer_ids == self.layer_ids
            and schema.num_experts == self.num_experts
            and schema.top_k == self.top_k
        ):
            return last
        _last[0] = found = _model(self.num_experts, self.top_k, self.layer_ids)
        return found

    def is_called(self, name: str, model: Model) -> bool:
        """Whether this is the header of a name, in the usual case; False may also mean that ``name`` has to tell."""
        if self.kind != DEFAULT_KIND or self.choice > MAX_CHOICE:
            return False
        namespace, rollout = encode_namespace(self.namespace), encode_component(self.rollout_id)
        folder = f"{namespace}/{rollout}/{self.choice:06d}/{DEFAULT_KIND}/{self.attempt:019d}/"
        if not name.startswith(folder):
            return False
        try:
            what = parse_object(name[len(folder) :])  # remembered: the name was listed a moment ago
        except InvalidKeyError:
            return False
        return isinstance(what, PartName) and self._fits(what, model)

    def is_that_of(self, known: Identity, model: Model) -> bool:
        """Whether this is the header of a part that is known by its key."""
        key = known.key
        return (
            self.rollout_id == key.rollout_id
            and self.choice == key.choice
            and self.kind == key.kind
            and self.attempt == known.attempt
            and self.namespace == known.namespace
            and self._fits(known.what, model)
        )

    def _fits(self, what: PartName, model: Model) -> bool:
        part = what.part
        return (
            part.tokens == self.tokens
            and part.layers == self.layers
            and what.total_tokens == self.total_tokens
            and what.total_layers == model.num_layers
            and what.row_bytes == model.row_bytes
            and what.schema == model.fingerprint
        )

    def part(self) -> Part:
        """Which rectangle the payload holds."""
        return Part(self.tokens, self.layers)

    def what(self) -> PartName:
        """The last component of the part's name."""
        schema = self.schema()
        return PartName(self.part(), schema.num_layers, self.total_tokens, schema.row_bytes, schema.fingerprint)

    def spans(self) -> tuple[WeightSpan, ...]:
        """The weight-version spans."""
        return tuple(WeightSpan(*span) for span in self.weight_versions)

    @property
    def chunks(self) -> int:
        """Number of digests of one layer."""
        return -(-(self.tokens[1] - self.tokens[0]) // CHUNK_TOKENS)

    def same_content(self, other: Header) -> bool:
        """Whether the other object holds the same routing of the same model in the same place."""
        return isinstance(other, PartHeader) and all(
            getattr(self, f) == getattr(other, f)
            for f in ("num_experts", "top_k", "layer_ids", "dtype", "layers", "tokens", "total_tokens", "digests")
        )

    def same_weights(self, other: PartHeader) -> bool:
        """Whether this states no weight versions, or those that the other object states."""
        mine, theirs = self.weight_versions, other.weight_versions
        return not mine or mine == theirs or merged(self.spans()) == merged(other.spans())


class Identity(msgspec.Struct, frozen=True, gc=False):
    """What a part's name is composed of, for who knows it: sooner compared with a header than the name is."""

    namespace: str
    key: RoutingKey
    attempt: int
    what: PartName


class Model(msgspec.Struct, frozen=True):
    """A schema, and what follows from it: one object for the many headers of a model."""

    schema: RoutingSchema
    num_layers: int
    dtype: str
    row_bytes: int
    fingerprint: str


@lru_cache(maxsize=64)
def _model(num_experts: int, top_k: int, layer_ids: tuple[int, ...]) -> Model:
    schema = RoutingSchema(num_experts, top_k, layer_ids)
    return Model(schema, schema.num_layers, schema.dtype, schema.row_bytes, schema.fingerprint)


_last = [_model(1, 1, (0,))]  # that of the header looked at last


class SealHeader(_Base, frozen=True, forbid_unknown_fields=True, tag="seal", kw_only=True):
    """The header of a seal. Attribute ``total_tokens``: tokens of the whole rollout."""

    total_tokens: Count

    def what(self) -> SealName:
        """The last component of the seal's name."""
        return SealName(self.total_tokens)

    def same_content(self, other: Header) -> bool:
        """Whether the other seal says the same."""
        return isinstance(other, SealHeader) and self.total_tokens == other.total_tokens


class AbortHeader(_Base, frozen=True, forbid_unknown_fields=True, tag="abort", kw_only=True):
    """The header of an abort mark. Attribute ``reason``: why the producer gave up."""

    reason: str

    def what(self) -> AbortName:
        """The last component of the mark's name."""
        return AbortName()

    def same_content(self, other: Header) -> bool:
        """Whether the other object is an abort mark too; the first reason stays."""
        return isinstance(other, AbortHeader)


Header = PartHeader | SealHeader | AbortHeader

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Header] = msgspec.json.Decoder(Header)


def encode_header(header: Header) -> bytes:
    """Returns the header's line.

    Raises:
        InvalidRecordError: The header would be longer than readers accept.
    """
    line = _LINES[isinstance(header, PartHeader) and header.whole is not msgspec.UNSET]
    body = _encoder.encode(header)
    if len(body) > MAX_HEADER - 64:
        raise InvalidRecordError(f"the part needs a header of {len(body)} bytes", hint="put it in smaller parts")
    return line + _line_digest(line, body) + b" " + body


def _line_digest(line: bytes, body: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(line + body).encode()


def decode_header(
    data: bytes | bytearray | memoryview, *, name: str | None = None, known: Identity | None = None
) -> Header:
    """Parses and checks a header; reads and allocates no more than ``data`` holds.

    Args:
        data: The header's bytes.
        name: The name it was stored under, compared with what the header says.
        known: What that name is composed of, if the caller knows it.

    Raises:
        CorruptDataError: these bytes are no header, or the header of something else.
        UnsupportedError: a newer version of this package wrote it.
    """
    raw = bytes(data[: MAX_HEADER + 1])
    line, body = raw[:_AT], raw[_BODY:]
    ours = line in _LINES and raw[_AT:_BODY] == _line_digest(line, body) + b" "
    if not ours or len(raw) > MAX_HEADER:  # another version's, or none
        body = _checked_body(raw, name)
    try:
        header = _decoder.decode(body)
        if isinstance(header, PartHeader):
            model = header.model()
            _check_part(header, model)
            if known is not None:
                if header.is_that_of(known, model):
                    return header
                raise CorruptDataError(f"the header belongs to {header.name()}, not to {known.key}", name=name)
            if name is not None and header.is_called(name, model):
                return header
        stored = header.name()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidKeyError, InvalidRecordError) as err:
        raise CorruptDataError(f"the header contradicts itself: {err}", name=name) from err
    if name is not None and stored != name:
        raise CorruptDataError(f"the header belongs to {stored}, not to {name}", name=name)
    return header


def _checked_body(raw: bytes, name: str | None) -> bytes:
    """Returns the JSON of a header; raises for what is none, or that of a version which is not read here."""
    if len(raw) > MAX_HEADER or not raw.startswith(_MAGIC):
        raise CorruptDataError("this is no routing header", name=name)
    pieces = raw.split(b" ", 2)
    if len(pieces) != 3 or len(pieces[1]) != DIGEST_DIGITS or _line_digest(pieces[0] + b" ", pieces[2]) != pieces[1]:
        raise CorruptDataError("the header's digest does not match", name=name)
    _check_format(pieces[0][len(_MAGIC) :], name)
    return pieces[2]


def _check_format(version: bytes, name: str | None) -> None:
    major, _, minor = version.partition(b".")
    if not (major.isdigit() and minor.isdigit() and len(version) < 9):
        raise CorruptDataError("the header has no format version", name=name)
    found = int(major), int(minor)
    if found[0] != FORMAT[0] or found[1] > FORMAT[1]:
        raise UnsupportedError(
            f"stored in format {found[0]}.{found[1]}, this version reads up to {FORMAT[0]}.{FORMAT[1]}",
            hint="upgrade fastdeploy-routing-plugins",
        )


def _check_part(header: PartHeader, model: Model) -> None:
    """Raises for what the header's name does not show; composing the name checks the rest."""
    if header.dtype != model.dtype:
        raise InvalidRecordError(f"dtype {header.dtype!r} is not that of {header.num_experts} experts")
    num_layers = header.layers[1] - header.layers[0]
    if num_layers < 1 or len(header.digests) != num_layers * header.chunks * DIGEST_DIGITS:
        raise InvalidRecordError("the number of digests does not fit the part")
    if header.whole is not msgspec.UNSET and len(header.whole) != DIGEST_DIGITS:
        raise InvalidRecordError("the digest of the whole payload is none")
    if header.weight_versions:
        check_spans(header.spans(), header.tokens)
