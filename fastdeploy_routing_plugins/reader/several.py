"""Several rollouts: their ids as callers write them, and what becomes of them as it comes."""

from __future__ import annotations

import queue
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import InvalidKeyError, InvalidRecordError, RoutingError, StoreClosedError
from ..keys import RoutingKey, as_key, shown
from . import gathering

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..errors import StoreError
    from ..store.fetching import Clock
    from .asking import Ask, Reading
    from .opened import Concurrent

    Key = str | RoutingKey
    Result = tuple[int, Reading | RoutingError]

_LOOK = 1.0  # s between looks whether the reader was closed under an iteration


def some(ids: Iterable[Key]) -> Iterable[Key]:
    """Returns ids that are several: one text is one id, not its characters."""
    if isinstance(ids, (str, RoutingKey)) or not isinstance(ids, Iterable):
        raise InvalidKeyError(f"ids must be a list of rollout ids, got {shown(ids)}", hint="[id] for a single one")
    return ids


def keys(ids: Iterable[Key]) -> list[RoutingKey]:
    """Returns the keys of several ids."""
    return [as_key(key) for key in some(ids)]


def masks(on_missing: object) -> bool:
    """Whether a rollout that cannot be had is masked; raises InvalidRecordError for what is no such word."""
    if on_missing not in ("raise", "mask"):
        raise InvalidRecordError(f"on_missing must be raise or mask, got {shown(on_missing)}")
    return on_missing == "mask"


def as_asked(err: RoutingError, once: Sequence[object], asked: Sequence[object]) -> RoutingError:
    """Returns an error whose fact ``failed`` counts as the caller does, who named some rollouts several times.

    Args:
        err: What went wrong.
        once: What was asked for, each once; its indices are those of the error.
        asked: What was asked for, as often as it was.
    """
    failed = err.facts.get("failed")
    if not isinstance(failed, dict):
        return err
    by_what = {once[index]: each for index, each in failed.items()}
    return err.with_facts(failed={index: by_what[what] for index, what in enumerate(asked) if what in by_what})


def completed(
    reader: object, concurrent: Concurrent, given: Sequence[Key], asks: Sequence[Ask], clock: Clock, *, mask: bool
) -> Iterator[tuple[Key, Reading | StoreError]]:
    """Begins to read, and yields each rollout as it comes, the failures of single ones last.

    Args:
        reader: Who reads them; kept until the iterator is done with, since a reader that is dropped is closed.
        concurrent: Where they are read.
        given: The ids as the caller wrote them.
        asks: What is read, in the same order.
        clock: When waiting ends.
        mask: Whether failures of single rollouts are yielded; otherwise the first one is raised in the end.
    """
    results: queue.SimpleQueue[Result] = queue.SimpleQueue()
    end = concurrent.begin(asks, clock, lambda index, result: results.put((index, result)))
    found = _yielded(reader, concurrent, given, asks, results, end, mask=mask)
    next(found)  # from here on, whoever drops the iterator ends it
    return found  # type: ignore[return-value]


def _yielded(
    reader: object,
    concurrent: Concurrent,
    given: Sequence[Key],
    asks: Sequence[Ask],
    results: queue.SimpleQueue[Result],
    end: Callable[[], None],
    *,
    mask: bool,
) -> Iterator[tuple[Key, Reading | StoreError] | None]:
    """Yields nothing once, then results; ends what is under way when it is left."""
    failed: dict[int, StoreError] = {}
    try:
        yield None
        for _ in asks:
            index, result = _next(concurrent, results)
            if not isinstance(result, RoutingError):
                yield given[index], result
            elif not gathering.about_one(result):
                raise result
            elif mask:
                yield given[index], result
            else:
                failed[index] = result
        gathering.raise_together(failed, asks)
    finally:
        end()
        del reader


def _next(concurrent: Concurrent, results: queue.SimpleQueue[Result]) -> Result:
    while True:
        try:
            return results.get(timeout=_LOOK)
        except queue.Empty:
            if not concurrent.loop.alive:
                raise StoreClosedError("the reader was closed during the iteration") from None
