"""The usual case of a batch: every rollout is there, in one part. Read with one listing and one fetch for all of them.

What is not like that, and whatever goes wrong, is left to the general way of ``gathering``, which tells why.
``at_once`` does the same in plain code.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from ..errors import RoutingError
from .wanting import decoded, wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..store.routing_store import RoutingStore
    from .asking import Ask, Reading
    from .wanting import Wanted

_AT_ONCE = 16 << 20  # bytes of one fetch; what is larger takes its own
_LISTED = 256  # rollouts of one listing
_FETCHES = 4  # under way at the same time


async def read_what_is_there(
    store: RoutingStore, asks: Sequence[tuple[int, Ask]], lanes: int, done: Callable[[int, Reading], None]
) -> None:
    """Reads the rollouts that are there in one part; tells ``done`` of each that was read, and of no other.

    Args:
        store: Where to read.
        asks: What to read, by index.
        lanes: How many fetches the store makes at the same time, if each of them moves one object after the other.
        done: Told the index and what was read.
    """
    found: list[Wanted] = []
    for at in range(0, len(asks), _LISTED):
        found += await _listed(store, asks[at : at + _LISTED])
    gate = asyncio.Semaphore(max(_FETCHES, lanes))

    async def fetch(some: list[Wanted]) -> None:
        async with gate:
            with contextlib.suppress(RoutingError):  # the general way meets it again, rollout by rollout
                await _fetch(store, some, done)

    await asyncio.gather(*[fetch(some) for some in _portions(found, -(-len(found) // lanes))])


async def _listed(store: RoutingStore, asks: Sequence[tuple[int, Ask]]) -> list[Wanted]:
    """Returns what can be read in one go."""
    prefixes = [ask.key.prefix(store.namespace) for _, ask in asks]
    schema = store.schema
    assert schema is not None
    try:
        listed = await store._objects.names_of(prefixes)
    except RoutingError:
        return []
    found = [
        wanted(index, ask, store.namespace, prefix, names, schema)
        for (index, ask), prefix, names in zip(asks, prefixes, listed, strict=True)
    ]
    return [each for each in found if each is not None]


def _portions(found: Sequence[Wanted], most: int) -> Iterator[list[Wanted]]:
    """Yields portions of at most so many rollouts, and of not too many bytes."""
    portion: list[Wanted] = []
    size = 0
    for each in found:
        if portion and (len(portion) >= most or size + each.nbytes > _AT_ONCE):
            yield portion
            portion, size = [], 0
        portion.append(each)
        size += each.nbytes
    if portion:
        yield portion


async def _fetch(store: RoutingStore, some: Sequence[Wanted], done: Callable[[int, Reading], None]) -> None:
    objects = store._objects
    requests = [piece.request() for each in some for piece in each.flat]
    blobs = iter(await objects.get_many(requests, view=some[0].ask.view))
    for each in some:
        mine = [next(blobs) for _ in each.flat]
        with contextlib.suppress(RoutingError):
            done(each.index, await objects.offload(each.nbytes if each.ask.verify else 0, decoded, each, mine))
