"""What the metadata service tells its clients: entries and listings."""

from __future__ import annotations

import msgspec


class Entry(msgspec.Struct, frozen=True, gc=False):
    """What the service keeps of one object.

    Attributes:
        name: The object's full name.
        owner: Who holds it, an id of 32 hexadecimal digits.
        place: Where its owner has it; opaque to the service.
    """

    name: str
    owner: str
    place: bytes


class Listing(msgspec.Struct, frozen=True):
    """What lies under a prefix. Callers share it: it must not be changed.

    Attributes:
        names: The names, sorted.
        entries: Their entries, in the same order.
        gone: Why objects that were here are not any more, or empty: ``"lost"`` if a dead producer held one, else the
            reason of the latest removal that is remembered, one of ``Reason``. Only told if there are no names.
        steady: Whether it is that of one rollout, and all who hold its objects gave signs of life.
    """

    names: list[str]
    entries: list[Entry]
    gone: str = ""
    steady: bool = False
