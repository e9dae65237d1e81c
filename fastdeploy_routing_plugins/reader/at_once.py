"""A batch of rollouts that are there, read in plain code.

Each is checked, and copied to its place in the batch, while others are still on their way and its bytes are still in
the processor's cache. What is not like that, and whatever goes wrong, is left to the general way of ``gathering``,
which tells why.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import RoutingError
from ..store.guarding import is_sound
from .wanting import Wanted, decoded, wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..backend import Blob, GetRequest
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
    prefixes = [ask.key.prefix(store.namespace) for _, ask in asks]

    def choose(at: int, names: Sequence[str]) -> Sequence[GetRequest]:
        index, ask = asks[at]
        each = wanted(index, ask, prefixes[at], names, schema)
        if each is None:
            return ()
        some[at] = each
        return [piece.request() for piece in each.flat]

    def deliver(at: int, blob: Blob) -> None:
        if not is_sound(blob):
            return  # the general way says so
        each = some[at]
        if each.count == 1:
            blobs = [blob]
        else:
            blobs = came.setdefault(at, [])
            blobs.append(blob)
            if len(blobs) < each.count:
                return
        places.know(some)
        with suppress(RoutingError):  # the general way meets it again
            found[each.index] = decoded(each, blobs, places.settler(each))

    store.collect(prefixes, choose, deliver)
    return found
