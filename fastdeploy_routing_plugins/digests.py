"""Payloads as bytes, and their digests: XXH3-64 of each layer and chunk of 4,096 tokens, see ``envelope``."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
import xxhash

from .errors import CorruptDataError

if TYPE_CHECKING:
    from .arrays import IntArray
    from .envelope import PartHeader
    from .names import Part

CHUNK_TOKENS: Final = 4096
DIGEST_DIGITS: Final = 16  # hexadecimal
WHOLE: Final = 256 << 10  # bytes; a payload of so many, or less, has a digest of all of it, too
_CACHED = 256 << 10  # bytes; copied and digested while they are in the second-level cache


def payload_of(array: IntArray) -> memoryview:
    """Returns a C-contiguous array's bytes as a flat read-only memoryview, little-endian, without a copy if it can."""
    if array.size == 0:
        return memoryview(b"")
    if sys.byteorder == "big" and array.dtype.itemsize > 1:
        array = array.byteswap()
    return array.data.toreadonly().cast("B")


def digest_payload(payload: memoryview, part: Part, row_bytes: int) -> str:
    """Returns the digests of a part's payload as ``PartHeader.digests`` holds them."""
    (start, stop), (first, last) = part.tokens, part.layers
    return _digests(payload, last - first, (stop - start) * row_bytes, CHUNK_TOKENS * row_bytes).hex()


def digest_whole(payload: memoryview) -> str:
    """Returns the digest of a whole payload, 16 hexadecimal digits: one call, where a small one has many chunks."""
    return xxhash.xxh3_64_hexdigest(payload)


def no_digests(part: Part) -> str:
    """Returns what stands for the digests of a part's payload until they are made: it is as long."""
    return "0" * (part.num_layers * -(-part.num_tokens // CHUNK_TOKENS) * DIGEST_DIGITS)


def copy_and_digest(payload: memoryview, target: memoryview, part: Part, row_bytes: int) -> str:
    """Copies a part's payload, and returns the digests of the copy, taken while it is in the processor's cache."""
    source, copy = np.frombuffer(payload, np.uint8), np.frombuffer(target, np.uint8)
    digest, found, at = xxhash.xxh3_64_digest, [], 0
    group: list[slice] = []
    for chunk in [*_chunks(part.num_layers, part.num_tokens * row_bytes, CHUNK_TOKENS * row_bytes), None]:
        if group and (chunk is None or chunk.stop - at > _CACHED):
            np.copyto(copy[at : group[-1].stop], source[at : group[-1].stop])
            found += [digest(target[each]) for each in group]
            at, group = group[-1].stop, []
        if chunk is not None:
            group.append(chunk)
    return b"".join(found).hex()


def _digests(payload: memoryview, layers: int, layer_bytes: int, step: int) -> bytes:
    digest = xxhash.xxh3_64_digest
    return b"".join([digest(payload[chunk]) for chunk in _chunks(layers, layer_bytes, step)])


@lru_cache(maxsize=32)
def _chunks(layers: int, layer_bytes: int, step: int) -> list[slice]:
    """Where the chunks of a payload are; rollouts of one length share the answer."""
    return [
        slice(at, min(at + step, base + layer_bytes))
        for base in range(0, layers * layer_bytes, layer_bytes or 1)
        for at in range(base, base + layer_bytes, step)
    ]


def verify_chunks(
    header: PartHeader, layers: tuple[int, int], tokens: tuple[int, int], data: memoryview, row_bytes: int
) -> None:
    """Checks whole chunks of consecutive layers.

    Args:
        header: The part's header.
        layers: ``(start, stop)``, positions within the part.
        tokens: ``(start, stop)`` within the part: from a chunk's first token to a chunk's end or the part's.
        data: Their bytes, layer by layer.
        row_bytes: Bytes of one token in one layer.

    Raises:
        CorruptDataError: A chunk is not what was written; the message names it.
    """
    layer_bytes = (tokens[1] - tokens[0]) * row_bytes
    found = _digests(data, layers[1] - layers[0], layer_bytes, CHUNK_TOKENS * row_bytes).hex()
    first, per_layer = tokens[0] // CHUNK_TOKENS, -(-(tokens[1] - tokens[0]) // CHUNK_TOKENS)
    width = header.chunks * DIGEST_DIGITS
    begin, end = first * DIGEST_DIGITS, (first + per_layer) * DIGEST_DIGITS
    if end - begin == width:
        expected = header.digests[layers[0] * width : layers[1] * width]
    else:
        expected = "".join(
            [header.digests[at + begin : at + end] for at in range(layers[0] * width, layers[1] * width, width)]
        )
    if found == expected:
        return
    bad = next(i for i, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other) // DIGEST_DIGITS
    layer, chunk = divmod(bad, per_layer)
    token = header.tokens[0] + tokens[0] + chunk * CHUNK_TOKENS
    raise CorruptDataError(
        f"layer position {header.layers[0] + layers[0] + layer}, tokens from {token}: digest does not match",
        hint="the stored bytes were changed or damaged; delete the rollout and produce it again",
    )
