"""A batch of rollouts that are there, read in plain code.

Each is checked, and copied to its place in the batch, while others are still on their way and its bytes are still in
the processor's cache. What is not like that, and whatever goes wrong, is left to the general way of ``gathering``,
which tells why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..backend import GetRequest
from ..errors import RoutingError
from ..store.guarding import is_sound
from .wanting import Wanted, decoded, wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..backend import Blob
    from ..store.sync import SyncStore
    from .asking import Ask, Reading
    from .places import Places


def read_at_once(store: SyncStore, asks: Sequence[tuple[int, Ask]], places: Places) -> dict[int, Reading]:
    """Returns, by index, what is there in one part.

    Args:
        store: Where to read.
        asks: What to read, by index.
        places: Where in the batch each may lie.
    """
    schema = store.schema
    assert schema is not None
    some: dict[int, Wanted] = {}
    came: dict[int, list[Blob]] = {}
    found: dict[int, Reading] = {}
    namespace = store.namespace
    prefixes = [ask.key.prefix(namespace) for _, ask in asks]

    def choose(listed: Sequence[Sequence[str]]) -> list[Sequence[GetRequest]]:
        for at, names in enumerate(listed):
            index, ask = asks[at]
            each = wanted(index, ask, namespace, prefixes[at], names, schema)
            if each is not None:
                some[at] = each
        places.know(some.values())
        return [request(some[at]) if at in some else () for at in range(len(listed))]

    def request(each: Wanted) -> Sequence[GetRequest]:
        if not each.single:
            return [piece.request() for piece in each.flat]
        piece = each.pieces[0][0]
        return (GetRequest(piece.name, None if piece.whole else piece.ranges(), places.room(each)),)

    def deliver(at: int, blob: Blob) -> None:
        if not is_sound(blob):
            return  # the general way says so
        each = some[at]
        if each.single:
            blobs = [blob]
        else:
            blobs = came.setdefault(at, [])
            blobs.append(blob)
            if len(blobs) < each.count:
                return
        try:  # noqa: SIM105 - a context costs more
            found[each.index] = decoded(each, blobs, places)
        except RoutingError:
            pass  # the general way meets it again

    store.collect(prefixes, choose, deliver)
    return found
