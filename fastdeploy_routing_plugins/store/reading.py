"""From stored bytes to arrays: which byte ranges a rectangle needs, checking them, and putting them together."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..backend import Blob, GetRequest
from ..digests import CHUNK_TOKENS, digest_payload, digest_whole, verify_chunks
from ..envelope import Identity, PartHeader, decode_header
from ..errors import ConflictError, CorruptDataError
from ..names import Part, PartName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..arrays import IntArray


class Piece(msgspec.Struct, frozen=True, gc=False):
    """One part's share of what is asked for.

    Attributes:
        name: The stored object's full name.
        what: The name's last component.
        rect: The wanted rectangle within the part; absolute.
        read: The rectangle to read: ``rect``, widened to whole chunks if digests are checked; absolute.
        known: What the name is composed of, if that is at hand.
    """

    name: str
    what: PartName
    rect: Part
    read: Part
    known: Identity | None = None

    @property
    def whole(self) -> bool:
        """Whether all of the part is read."""
        return self.read is self.what.part or self.read == self.what.part

    def ranges(self) -> list[tuple[int, int]]:
        """Byte ranges of ``read`` in the payload: one if it has all tokens of the part, else one per layer."""
        (t0, t1), l0 = self.what.part.tokens, self.what.part.layers[0]
        row, layer_bytes = self.what.row_bytes, self.what.layer_bytes
        first, last = self.read.layers[0] - l0, self.read.layers[1] - l0
        if self.read.tokens == (t0, t1):
            return [(first * layer_bytes, last * layer_bytes)]
        begin, end = (self.read.tokens[0] - t0) * row, (self.read.tokens[1] - t0) * row
        return [(layer * layer_bytes + begin, layer * layer_bytes + end) for layer in range(first, last)]

    def request(self) -> GetRequest:
        """What to ask of the backend."""
        return GetRequest(self.name, None if self.whole else self.ranges())


def plan(prefix: str, parts: Sequence[PartName], want: Part, *, verify: bool) -> list[Piece]:
    """Returns the pieces that cover ``want``; parts that share no cell with it are left out."""
    pieces = []
    for what in parts:
        rect = what.part.intersect(want)
        if rect is None:
            continue
        start, stop = what.part.tokens
        read = rect
        if verify and rect.tokens != (start, stop):
            low = start + (rect.tokens[0] - start) // CHUNK_TOKENS * CHUNK_TOKENS
            high = min(stop, start - (start - rect.tokens[1]) // CHUNK_TOKENS * CHUNK_TOKENS)
            read = Part((low, high), rect.layers)
        pieces.append(Piece(f"{prefix}{what}", what, rect, read))
    return pieces


def decode_piece(piece: Piece, blob: Blob, *, verify: bool) -> tuple[PartHeader, IntArray]:
    """Checks a fetched piece and returns its header and ``[layers, tokens, top_k]`` of ``piece.rect``.

    Args:
        piece: What was asked for.
        blob: What the store returned for ``piece.request()``.
        verify: Whether chunk digests are compared.

    Raises:
        CorruptDataError: the bytes are not what was put.
    """
    header, views = check_piece(piece, blob, verify=verify)
    return header, to_array(piece, header, views)


def check_piece(piece: Piece, blob: Blob, *, verify: bool) -> tuple[PartHeader, list[memoryview]]:
    """Checks a fetched piece as ``decode_piece`` does; returns its header, and its payload for ``to_array``."""
    header = decode_header(blob.header, name=piece.name, known=piece.known)
    if not isinstance(header, PartHeader):
        raise CorruptDataError("the header is not that of a part", name=piece.name)
    what, whole, payload = piece.what, piece.whole, blob.payload
    if whole and len(payload) == 1:
        views = [memoryview(payload[0]).cast("B")]
        good = views[0].nbytes == what.nbytes
    else:
        views = [memoryview(chunk).cast("B") for chunk in payload]
        good = [view.nbytes for view in views] == [stop - start for start, stop in piece.ranges()]
    if not good:
        wanted = sum(stop - start for start, stop in piece.ranges())
        raise CorruptDataError(
            f"payload has {sum(v.nbytes for v in views)} bytes instead of {wanted}", name=piece.name
        )
    if verify and not (whole and _is_sound(header, what, views[0])):
        try:
            _verify(piece, header, views)
        except CorruptDataError as err:
            raise CorruptDataError(f"{header.key()}: {err.message}", hint=err.hint, name=piece.name) from None
    return header, views


def _is_sound(header: PartHeader, what: PartName, payload: memoryview) -> bool:
    """Whether this is what was put, in the usual case; where not, ``verify_chunks`` tells."""
    if header.whole is not msgspec.UNSET:
        return digest_whole(payload) == header.whole
    return digest_payload(payload, what.part, what.row_bytes) == header.digests


def check_chunks(piece: Piece, header: PartHeader, blob: Blob) -> None:
    """Checks every digest of a whole part; ``check_piece`` is content with that of all of it, or with the others.

    Raises:
        CorruptDataError: the bytes are not what was put, or a digest is not theirs.
    """
    payload = memoryview(blob.payload[0]).cast("B")
    _verify(piece, header, [payload])
    if header.whole is not msgspec.UNSET and header.whole != digest_whole(payload):
        raise CorruptDataError("the digest of all bytes does not match, those of the layers do", name=piece.name)


def _verify(piece: Piece, header: PartHeader, views: list[memoryview]) -> None:
    what, read = piece.what, piece.read
    t0, l0 = what.part.tokens[0], what.part.layers[0]
    tokens = read.tokens[0] - t0, read.tokens[1] - t0
    first = read.layers[0] - l0
    each = read.num_layers // len(views)  # one view of all layers, or one for each
    for index, view in enumerate(views):
        verify_chunks(header, (first + index * each, first + (index + 1) * each), tokens, view, what.row_bytes)


def to_array(piece: Piece, header: PartHeader, views: list[memoryview]) -> IntArray:
    """Returns a checked piece's payload as ``[layers, tokens, top_k]`` of ``piece.rect``; a view if it is one."""
    dtype = _little_endian(header.dtype)
    (start, stop), (first, last) = piece.read.tokens, piece.read.layers
    shape = (last - first, stop - start, header.top_k)
    array: IntArray
    if len(views) == 1:
        array = np.frombuffer(views[0], dtype).reshape(shape)
    else:
        array = np.empty(shape, dtype)
        for layer, view in zip(array, views, strict=True):
            layer[...] = np.frombuffer(view, dtype).reshape(shape[1:])
    if piece.rect is piece.read or piece.rect == piece.read:
        return array
    skip = piece.rect.tokens[0] - piece.read.tokens[0]
    rect: IntArray = array[:, skip : skip + piece.rect.num_tokens]
    return rect


@lru_cache(maxsize=8)
def _little_endian(dtype: str) -> np.dtype[Any]:
    found: np.dtype[Any] = np.dtype(dtype).newbyteorder("<")
    return found


def empty(want: Part, dtype: str, top_k: int) -> IntArray:
    """Returns a new array ``[layers, tokens, top_k]`` for a rectangle, not filled in."""
    array: IntArray = np.empty((want.num_layers, want.num_tokens, top_k), _little_endian(dtype))
    return array


def join(want: Part, pieces: Sequence[Piece], arrays: Sequence[IntArray], dtype: str, top_k: int) -> IntArray:
    """Puts pieces that cover ``want`` together; a single piece is returned as it is, without a copy.

    Raises:
        ConflictError: two pieces hold different ids for the same cells; the message names the ranges.
    """
    if len(pieces) == 1 and pieces[0].rect == want:
        result = arrays[0]
    else:
        result = empty(want, dtype, top_k)
        cells = sum(piece.rect.num_layers * piece.rect.num_tokens for piece in pieces)
        overlapping = cells > want.num_layers * want.num_tokens
        done: list[tuple[Piece, IntArray]] = []
        for piece, array in zip(pieces, arrays, strict=True):
            if overlapping:
                compare(piece, array, done)
                done.append((piece, array))
            result[_slices(piece.rect, want)] = array
    shown: IntArray = result.view()
    shown.flags.writeable = False
    return shown


def compare(piece: Piece, array: IntArray, others: Sequence[tuple[Piece, IntArray]]) -> None:
    """Compares a piece with others where they overlap.

    Raises:
        ConflictError: two pieces hold different ids for the same cells; the message names the ranges.
    """
    for other, stored in others:
        shared = piece.rect.intersect(other.rect)
        if shared is not None and not np.array_equal(
            array[_slices(shared, piece.rect)], stored[_slices(shared, other.rect)]
        ):
            raise ConflictError(
                f"two parts hold different ids for {shared}",
                hint="routing that was produced again needs a higher attempt number",
                part=shared,
            )


def _slices(inner: Part, outer: Part) -> tuple[slice, slice]:
    layers = slice(inner.layers[0] - outer.layers[0], inner.layers[1] - outer.layers[0])
    return layers, slice(inner.tokens[0] - outer.tokens[0], inner.tokens[1] - outer.tokens[0])
