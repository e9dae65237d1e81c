"""What the service reads off names; it knows their components, see ``keys.py``, and nothing of what they mean."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import xxhash

from ....errors import InvalidKeyError
from ....keys import decode_component

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMPONENT = "[-0-9a-z._%=`~]+"
_NAME = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT}){{5}}", re.ASCII)
DEPTH: Final = 4  # components of a rollout's prefix
COLON: Final = "=3a"  # as ids have it, encoded


def is_name(name: str) -> bool:
    """Whether an object can be called so."""
    return _NAME.fullmatch(name) is not None


def rollout_of(name: str) -> str:
    """Returns the prefix of the names of a name's rollout: its first four components."""
    return name[: name.rfind("/", 0, name.rfind("/")) + 1]


def rollout_of_prefix(prefix: str) -> str:
    """Returns the prefix of the one rollout that a prefix is of; empty if it may be of several."""
    pieces = prefix.split("/", DEPTH)
    return "/".join(pieces[:DEPTH]) + "/" if len(pieces) > DEPTH else ""


def trajectory_of(name: str) -> str:
    """Returns namespace and trajectory of a name, or of a prefix of at least two components.

    The trajectory is the rollout id, encoded, without turn and segment, if it ends with these (``RolloutId``).
    """
    namespace, _, rest = name.partition("/")
    rollout = rest.partition("/")[0]
    pieces = rollout.rsplit(COLON, 2)
    if len(pieces) == 3 and pieces[0] and all(piece.isdecimal() and len(piece) <= 18 for piece in pieces[1:]):
        rollout = pieces[0]
    return f"{namespace}/{rollout}"


def digest(names: Sequence[str]) -> int:
    """Returns a digest of a listing's names."""
    return xxhash.xxh3_64_intdigest("\n".join(names).encode())


def plain_namespace(encoded: str) -> str:
    """Returns a namespace as people write it, or what a client said instead."""
    with suppress(InvalidKeyError):
        return decode_component(encoded) or encoded
    return encoded
