"""What the metadata service and its clients say to each other: the bodies of messages; see ``framing`` for the rest.

A body is a msgpack array whose first item is the number of its kind. Later versions append fields, which older readers
pass over.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from .states import Reason as Reason
from .states import Refusal as Refusal
from .states import State as State

MAX_NAME: Final = 400  # characters, see backend.py
MAX_PLACE: Final = 80  # bytes, see place.py
MAX_ITEMS: Final = 4096  # names in one message
PAGE_BYTES: Final = 256 << 10  # of names in one answer; what is longer comes in pages
SMALL: Final = 64  # names of a rollout that an answer to something else brings along


Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
Prefix = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
OwnerId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}$")]
PlaceBytes = Annotated[bytes, msgspec.Meta(max_length=MAX_PLACE)]
U64 = Annotated[int, msgspec.Meta(ge=0)]
Names = Annotated[list[Name], msgspec.Meta(max_length=MAX_ITEMS)]


class _Body(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message's body."""


# --- questions ------------------------------------------------------------------------------------------------------


class Hello(_Body, frozen=True, tag=1):
    """First message of a connection, and first to a service that was started again.

    Attributes:
        namespace: The encoded namespace that the client will keep to.
        token: Random, 16 bytes; a client that connects again says the same, so that a repeated question does nothing
            twice.
        proof: Of the secret, see ``security.prove``; empty at first.
        who: For people.
    """

    namespace: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    token: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    proof: Annotated[bytes, msgspec.Meta(max_length=32)] = b""
    who: Annotated[str, msgspec.Meta(max_length=200)] = ""


class AskListings(_Body, frozen=True, tag=2):
    """What lies under prefixes; for each, only names behind ``after``."""

    prefixes: Annotated[list[Prefix], msgspec.Meta(max_length=MAX_ITEMS)]
    after: Annotated[list[Prefix], msgspec.Meta(max_length=MAX_ITEMS)] = []


class AskEntries(_Body, frozen=True, tag=3):
    """Who holds these names, and where."""

    names: Names


class AskChange(_Body, frozen=True, tag=4):
    """What lies under a prefix as soon as it is not ``count`` names with this digest (see ``digest``) any more."""

    prefix: Prefix
    count: U64
    digest: U64


class Publish(_Body, frozen=True, tag=5):
    """An owner holds these names at these places. ``again``: it said so before."""

    owner: OwnerId
    names: Names
    places: Annotated[list[PlaceBytes], msgspec.Meta(max_length=MAX_ITEMS)]
    again: bool = False


class Delete(_Body, frozen=True, tag=6):
    """Remove these names. Owners in ``mine`` free theirs without being told."""

    names: Names
    reason: Annotated[int, msgspec.Meta(ge=1, le=3)] = int(Reason.DELETED)
    mine: Annotated[list[OwnerId], msgspec.Meta(max_length=64)] = []


class DeletePrefix(_Body, frozen=True, tag=7):
    """Remove everything under a prefix; the answer says if more is left to remove. ``mine``: see ``Delete``."""

    prefix: Prefix
    mine: Annotated[list[OwnerId], msgspec.Meta(max_length=64)] = []


class AskOwner(_Body, frozen=True, tag=8):
    """What an owner said about itself, at least in this revision."""

    owner: OwnerId
    revision: U64 = 0


class AskStatus(_Body, frozen=True, tag=9):
    """The service's figures."""


class Register(_Body, frozen=True, tag=10):
    """An owner, as ``place.encode`` has it, and the dead owners whose names it takes over."""

    info: Annotated[bytes, msgspec.Meta(max_length=64 << 10)]
    succeeds: Annotated[list[OwnerId], msgspec.Meta(max_length=64)] = []


class Inventory(_Body, frozen=True, tag=11):
    """The owner has published everything that it holds."""

    owner: OwnerId


class Sign(_Body, frozen=True, tag=12):
    """The owner lives, and freed what it was told to up to ``dropped``."""

    owner: OwnerId
    dropped: U64 = 0


class Unregister(_Body, frozen=True, tag=13):
    """The owner ends; what it held is gone."""

    owner: OwnerId


Question = (
    Hello | AskListings | AskEntries | AskChange | Publish | Delete | DeletePrefix | AskOwner | AskStatus
    | Register | Inventory | Sign | Unregister
)  # fmt: skip


# --- answers --------------------------------------------------------------------------------------------------------


class Refused(_Body, frozen=True, tag=64):
    """No answer; ``code`` is a ``Refusal``."""

    code: int
    message: str = ""


class Prove(_Body, frozen=True, tag=65):
    """The client must prove that it knows the secret: see ``security.prove``."""

    nonce: bytes


class Welcome(_Body, frozen=True, tag=66):
    """Answer to a hello.

    Attributes:
        page: Path of the page of counters (see ``page.py``), for clients of this host; empty: none.
        page_key: What stands in its head.
        topic: What the topics of the client's namespace begin with, see ``changes.py``.
        sync: Port of the stream of changes.
        lease: Seconds without a sign after which an owner is lost.
        unix: Abstract name of the unix socket, for clients of this host and user; empty: none.
    """

    page: str
    page_key: int
    topic: bytes
    sync: int
    lease: float
    unix: str = ""


class OwnerRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An owner that entries of the same answer refer to by its index."""

    owner: str
    state: int
    producer: str


class ListingRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One listing.

    Attributes:
        names: Sorted.
        owners: For each, the index of its owner's row.
        places: For each, its place.
        more: Whether it goes on behind the last name; where the next page begins if not there.
        bucket: Which counter of the page tells of changes; -1: none does.
        version: That counter's value.
        gone: A ``Reason``, if there are no names, why.
    """

    names: list[str]
    owners: list[int]
    places: list[bytes]
    more: str = ""
    bucket: int = -1
    version: int = 0
    gone: int = 0


class Listings(_Body, frozen=True, tag=67):
    """Listings, in the order in which they were asked for; fewer than that if the answer would be too long.

    Attributes:
        owners: What the listings refer to.
        rows: The listings.
        ground: Value of the page's common counter.
    """

    owners: list[OwnerRow]
    rows: list[ListingRow]
    ground: int = 0


class Entries(_Body, frozen=True, tag=68):
    """For each name the index of its owner's row and its place; for what is not there -1 - reason, and no place."""

    owners: list[OwnerRow]
    which: list[int]
    places: list[bytes]


class Published(_Body, frozen=True, tag=69):
    """What became of each name: -1 taken, -1 - reason refused, else the index of the row of who holds it, and where.

    Attributes:
        owners: What ``which`` refers to.
        which: See above.
        places: Where those lie that exist; else empty.
        listing: The listing of the rollout if all names belong to one, and it is small.
        prefix: That rollout's prefix.
        ground: Value of the page's common counter.
    """

    owners: list[OwnerRow]
    which: list[int]
    places: list[bytes]
    prefix: str = ""
    listing: ListingRow | None = None
    ground: int = 0


class Deleted(_Body, frozen=True, tag=70):
    """How many names were removed, and whether there are more."""

    count: int
    more: bool = False


class OwnerIs(_Body, frozen=True, tag=71):
    """What an owner said about itself, and its state."""

    info: bytes
    state: int


class StatusIs(_Body, frozen=True, tag=72):
    """The service's figures, as msgpack."""

    figures: dict[str, Any]


class Done(_Body, frozen=True, tag=73):
    """It was done."""


class Dropped(_Body, frozen=True, tag=74):
    """Names that an owner must free: answer to its sign, or unasked. ``number`` goes into its next sign.

    Attributes:
        number: Of the last of these names.
        names: What to free; those that follow come when these are acknowledged.
        places: Where each lay: who published a name again meanwhile has it elsewhere.
    """

    number: int
    names: list[str]
    places: list[bytes]


class Unchanged(_Body, frozen=True, tag=75):
    """What was waited for did not come. ``poll``: nor can it be waited for, as the listing is too long."""

    poll: bool = False


Answer = (
    Refused
    | Prove
    | Welcome
    | Listings
    | Entries
    | Published
    | Deleted
    | OwnerIs
    | StatusIs
    | Done
    | Dropped
    | Unchanged
)  # fmt: skip
