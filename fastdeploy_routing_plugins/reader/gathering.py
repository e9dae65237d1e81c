"""Many rollouts at once: every ask is settled by one deadline, in any order. Runs in an event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeGuard

from ..errors import (
    AbortedError,
    AbsentError,
    ConflictError,
    CorruptDataError,
    IncompleteError,
    NotFoundError,
    PendingError,
    ProducerLostError,
    RoutingError,
    StoreError,
    StoreUnavailableError,
)
from . import asking, bulk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ..keys import RoutingKey
    from ..store.fetching import Clock
    from ..store.inspection import RolloutStat
    from ..store.routing_store import RoutingStore
    from .asking import Ask, Reading
    from .prefetch import Prefetcher

_SILENT = 0.25  # s between looks at what a producer holds that gives no sign
_AGAIN = 0.05  # s after which what was cancelled and goes on is cancelled again
AT_ONCE = 32  # reads under way; waiting for what is absent is not counted, so nothing absent holds others up

ABOUT_ONE = (AbsentError, ConflictError, CorruptDataError, ProducerLostError)
"""What can be wrong with one rollout and leaves the others alone."""


def without_frames(err: RoutingError) -> RoutingError:
    """Returns an error that is to be kept: the frames that it came through would keep what else was read, and pins."""
    each: BaseException | None = err
    while each is not None:
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
    return err


def about_one(err: object) -> TypeGuard[StoreError]:
    """Whether one rollout has this error and leaves the others alone; everything else is wrong with all of them."""
    return isinstance(err, ABOUT_ONE) or (isinstance(err, StoreUnavailableError) and "owner" in err.facts)


async def settle(
    store: RoutingStore, prefetched: Prefetcher, ask: Ask, clock: Clock, gate: asyncio.Semaphore
) -> Reading:
    """Reads one rollout: what was prefetched, or what is there, or what comes before the deadline."""
    taken = await prefetched.take(ask)
    if taken is not None:
        return ask.checked(taken)
    while True:
        try:
            return await _read(store, ask, clock, gate)
        except StoreUnavailableError as err:  # its holder may be starting again; soon it is known whether it is lost
            if not about_one(err) or clock.over:
                raise err.with_facts(waited=clock.waited) from None
        await asyncio.sleep(min(_SILENT, asking.left(clock)))


async def _read(store: RoutingStore, ask: Ask, clock: Clock, gate: asyncio.Semaphore) -> Reading:
    try:
        async with gate:
            return await asking.read(store, ask, 0.0)
    except (NotFoundError, PendingError, IncompleteError) as err:
        if clock.over:
            raise err.with_facts(waited=clock.waited) from None
    try:
        await asking.wait(store, ask, asking.left(clock))
        async with gate:
            return await asking.read(store, ask, asking.left(clock))
    except AbsentError as err:
        raise err.with_facts(waited=clock.waited) from None


async def settle_all(
    store: RoutingStore,
    prefetched: Prefetcher,
    asks: Sequence[Ask],
    clock: Clock,
    lanes: int,
    done: Callable[[int, Reading | RoutingError], None],
    have: Iterable[int] = (),
) -> None:
    """Settles asks; tells ``done`` of each as it is settled, with its index.

    What ``done`` raises ends everything and is raised here.

    Args:
        store: Where to read.
        prefetched: What was read already.
        asks: What to read.
        clock: When waiting ends.
        lanes: See ``bulk.read_what_is_there``.
        done: Told the index and what became of it.
        have: Indices of those that are settled already.
    """
    settled = set(have)

    def read(index: int, result: Reading) -> None:
        settled.add(index)
        done(index, result)

    several = [(index, ask) for index, ask in enumerate(asks) if index not in settled and ask not in prefetched]
    if len(several) > 1:
        await bulk.read_what_is_there(store, several, lanes, read)
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(index: int, ask: Ask) -> None:
        try:
            result: Reading | RoutingError = await settle(store, prefetched, ask, clock, gate)
        except RoutingError as err:
            result = without_frames(err)
        done(index, result)

    tasks = [asyncio.ensure_future(one(index, ask)) for index, ask in enumerate(asks) if index not in settled]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await ended(tasks)
    errors = [task.exception() for task in tasks if not task.cancelled()]
    for error in errors:
        if error is not None:
            raise error


async def ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancels tasks until they have ended. Once is not enough: before Python 3.12, ``wait_for`` may lose it."""
    every = list(tasks)
    pending = {task for task in every if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_AGAIN)
    for task in every:
        if not task.cancelled():
            task.exception()  # asked for, so that the loop does not print it


async def all_of(
    store: RoutingStore,
    prefetched: Prefetcher,
    asks: Sequence[Ask],
    clock: Clock,
    lanes: int,
    have: Mapping[int, Reading],
    *,
    mask: bool,
) -> list[Reading | StoreError]:
    """Returns what became of each ask, in their order.

    Args:
        store: Where to read.
        prefetched: What was read already.
        asks: What to read.
        clock: When waiting ends.
        lanes: See ``bulk.read_what_is_there``.
        have: What was read already, by index.
        mask: Whether an error that is about one rollout stands in its place. Otherwise the first one that waiting
            cannot cure is raised at once; absences, when the time is over, together.
    """
    results: dict[int, Reading | StoreError] = {**have}

    def done(index: int, result: Reading | RoutingError) -> None:
        if isinstance(result, RoutingError):
            curable = isinstance(result, (AbsentError, StoreUnavailableError)) and not isinstance(result, AbortedError)
            if not about_one(result) or not (mask or curable):
                raise result.with_facts(failed={index: result})
        results[index] = result

    await settle_all(store, prefetched, asks, clock, lanes, done, have)
    if not mask:
        raise_together({index: result for index, result in results.items() if isinstance(result, StoreError)}, asks)
    return [results[index] for index in range(len(asks))]


def raise_together(failed: dict[int, StoreError], asks: Sequence[Ask]) -> None:
    """Raises the first of some failures, in the order of the asks; its fact ``failed`` has all, by index."""
    if not failed:
        return
    first = min(failed)
    error = failed[first]
    if len(failed) == 1:
        raise error.with_facts(failed=failed)
    others = ", ".join(str(asks[index].key) for index in sorted(failed)[1:4]) + (" …" if len(failed) > 4 else "")
    message = f"{len(failed)} of {len(asks)} rollouts cannot be had: {error.message}; nor can {others}"
    raise type(error)(message, hint=error.hint, **{**error.facts, "failed": failed})


async def release(store: RoutingStore, prefetched: Prefetcher, keys: Sequence[RoutingKey]) -> None:
    """Forgets what was read ahead of some rollouts, and tells the backend that this reader is done with them."""
    await prefetched.release(keys)
    await asking.release(store, keys)


async def stats(store: RoutingStore, keys: Sequence[RoutingKey]) -> list[RolloutStat]:
    """Returns what names and headers say of each rollout."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(key: RoutingKey) -> RolloutStat:
        async with gate:
            return await store.stat(key)

    return list(await asyncio.gather(*[one(key) for key in keys]))
