"""One message of each kind, for the golden file and for damage."""

from __future__ import annotations

from typing import Any

from fastdeploy_routing_plugins.stores.rdma import place
from fastdeploy_routing_plugins.stores.rdma.metadata import changes, framing
from fastdeploy_routing_plugins.stores.rdma.metadata import messages as m

from .helpers import name, prefix

OWNER, HEIR = "0123456789abcdef" * 2, "f" * 32
PLACE = place.encode(place.Place(3, 7, 512, 1 << 20, 1, 256, 9, 1 << 21))
INFO = place.encode(
    place.OwnerInfo(
        OWNER, "boot", "node", 42, "engine-0", (place.ArenaInfo("/dev/shm/a", 1 << 24, 2**63, 4096),), "h:1", "s", 2
    )
)
ROW = m.OwnerRow(OWNER, int(m.State.SUSPECT), "engine-0")
LISTING = m.ListingRow([name(), name(what="s-0000000012")], [0, 0], [PLACE, b""], "", 77, 2**63, 0)
EPOCH = 2**55 + 1
TOPIC = bytes(range(changes.TOPIC_BYTES))

QUESTIONS: dict[str, Any] = {
    "hello": m.Hello("ns", bytes(range(16)), b"\x01" * 32, "node:42"),
    "listings": m.AskListings([prefix(), "ns/"], ["", name()]),
    "entries": m.AskEntries([name(), name("y")]),
    "change": m.AskChange(prefix(), 1, 2**64 - 1),
    "publish": m.Publish(OWNER, [name()], [PLACE], True),
    "delete": m.Delete([name()], int(m.Reason.SUPERSEDED), [OWNER]),
    "delete prefix": m.DeletePrefix(prefix(), [OWNER]),
    "owner": m.AskOwner(OWNER, 3),
    "status": m.AskStatus(),
    "register": m.Register(INFO, [HEIR]),
    "inventory": m.Inventory(OWNER),
    "sign": m.Sign(OWNER, 12),
    "unregister": m.Unregister(OWNER),
}
ANSWERS: dict[str, Any] = {
    "refused": m.Refused(int(m.Refusal.UNREGISTERED), "owner is not registered"),
    "prove": m.Prove(bytes(range(16))),
    "welcome": m.Welcome(
        "/dev/shm/fd-routing-0-0123456789abcdef.versions", 2**64 - 1, bytes(16), 5765, 10.0, "fd-routing-0123"
    ),
    "listings": m.Listings([ROW], [LISTING, m.ListingRow([], [], [], gone=int(m.Reason.LOST))], 9),
    "entries": m.Entries([ROW], [0, -1 - m.Reason.DELETED], [PLACE, b""]),
    "published": m.Published([ROW], [-1, 0], [b"", PLACE], prefix(), LISTING, 9),
    "deleted": m.Deleted(1000, True),
    "owner": m.OwnerIs(INFO, int(m.State.ALIVE)),
    "status": m.StatusIs({"names": 3, "owners": [{"state": "alive"}]}),
    "done": m.Done(),
    "dropped": m.Dropped(12, [name()], [PLACE]),
    "unchanged": m.Unchanged(True),
}
STREAM: dict[str, Any] = {
    "here": changes.Here(2**40),
    "delta": changes.Delta(2**40 + 1, [name(), name("y")], [OWNER, ""], [PLACE, b""]),
    "owner died": changes.OwnerDied(2**40, OWNER),
}


def frames() -> dict[str, bytes]:
    """Returns every sample as the frame that carries it."""
    asked = {f"ask {k}": framing.encode_question(v, 2**40, 5000, 1) for k, v in QUESTIONS.items()}
    said = {f"say {k}": framing.encode_answer(v, 2**40, EPOCH, 1) for k, v in ANSWERS.items()}
    told = {f"tell {k}": changes.encode_told(TOPIC, EPOCH, v) for k, v in STREAM.items()}
    return {**asked, **said, **told}
