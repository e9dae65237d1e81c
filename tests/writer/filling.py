"""Writers over a store that is away, so that their arenas fill up and stay full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastdeploy_routing_plugins import RoutingWriter
from fastdeploy_routing_plugins.errors import ArenaFullError

from .helpers import BIG, Place, routing

MANY = 8192
PART = routing(MANY, schema=BIG)
"""One MiB."""


@contextmanager
def stuck(place: Place, **limits: Any) -> Iterator[RoutingWriter]:
    """Opens a writer whose store takes nothing before ``place.flag`` is removed; at the end it is."""
    place.flag.touch()
    with place.writer("unavailable", schema=BIG, limits={"on_full_wait": 0.0, **limits}) as writer:
        try:
            yield writer
        finally:
            place.flag.unlink(missing_ok=True)


@contextmanager
def used_again(writer: RoutingWriter, place: Place) -> Iterator[None]:
    """Makes the store of a writer that several tests use be away; at the end the two are empty again."""
    place.flag.touch()
    try:
        yield
    finally:
        place.flag.unlink(missing_ok=True)
        writer.clear(everything=True)
        writer.flush()


def fill(writer: RoutingWriter, rows: int = MANY) -> list[str]:
    """Submits parts, of one MiB unless stated, until one is refused; returns the ids that were taken."""
    taken: list[str] = []
    try:
        while len(taken) < 10_000:
            writer.submit(f"x:{rows}:{len(taken)}", PART[:, :rows])
            taken.append(f"x:{rows}:{len(taken)}")
    except ArenaFullError:
        return taken
    raise AssertionError("the arena has no end")
