"""Which rollouts a command line means, and what is said if there are none."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from fastdeploy_routing_plugins.cli.failures import UsageProblem
from fastdeploy_routing_plugins.config import telling
from fastdeploy_routing_plugins.errors import InvalidKeyError, NotFoundError
from fastdeploy_routing_plugins.keys import RoutingKey, decode_component

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fastdeploy_routing_plugins.cli.output import Output
    from fastdeploy_routing_plugins.resolver import ResolvedStore
    from fastdeploy_routing_plugins.status import RolloutStatus
    from fastdeploy_routing_plugins.store.sync import SyncStore

_SHOWN: Final = 8  # how many of something a note names


@contextmanager
def other_choices(store: SyncStore, key: RoutingKey) -> Iterator[None]:
    """Says which other choices of an id are stored, if the one that is looked for in a ``with`` block is not."""
    try:
        yield
    except NotFoundError as err:
        if not (there := _other_choices(store, key)):
            raise
        raise NotFoundError(err.message, hint=there, **err.facts) from None


def _other_choices(store: SyncStore, key: RoutingKey) -> str:
    rollouts = store.list(key.rollout_id)
    found = sorted({each.key.choice for each in rollouts if each.key.rollout_id == key.rollout_id} - {key.choice})
    there = ", ".join(map(str, found[:_SHOWN])) + (", …" if len(found) > _SHOWN else "")
    return f"of this id there is choice {there}: --choice" if found else ""


def _beside(store: SyncStore, key: RoutingKey) -> str:
    there = _other_choices(store, key)
    return there and f" ({there})"


def pick(
    out: Output, store: SyncStore, ids: Sequence[str], prefix: str | None, everything: bool, choice: int
) -> tuple[list[RolloutStatus], list[RoutingKey]]:
    """Returns the rollouts that the selection options mean, and the keys named that do not exist.

    Where there is nothing to select from, or an id has other choices than the one meant, ``out`` notes it.

    Raises:
        UsageProblem: not exactly one way of selecting is used.
    """
    ways = sum([bool(ids), prefix is not None, everything])
    if ways > 1:
        raise UsageProblem("rollout ids, --prefix and --all exclude each other: use one of them")
    if not ways:
        raise UsageProblem("name rollout ids, or use --prefix, or --all")
    if not ids:
        listed = store.list(prefix)
        if not listed:
            note_empty(out, store, prefix)
        return listed, []
    found, absent = [], []
    for key in dict.fromkeys(RoutingKey(text, choice) for text in ids):
        try:
            found.append(store.status(key))
        except NotFoundError:
            absent.append(key)
            out.note(f"not found: {key}{_beside(store, key)}")
    return found, absent


def note_empty(out: Output, store: SyncStore, prefix: str | None) -> None:
    """Notes that nothing is under a prefix of the store's namespace, and where else something is, if that is known."""
    under = f" under {prefix!r}" if prefix else ""
    place = ", ".join(f"{name}={value!r}" for name, value in telling(store.resolved.config).items())
    out.note(f"no rollouts{under} in namespace {store.namespace!r} of store {store.resolved.name!r} ({place})")
    if prefix and (longer := _longer(store, prefix)):
        out.note(f"a prefix ends before a colon of the ids, or where they end; there is {longer}")
    others = [each for each in namespaces(store.resolved) if each != store.namespace]
    if others:
        more = f", and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        out.note(f"its folder has the {_named(others[:_SHOWN])}{more}: --namespace")


def _longer(store: SyncStore, prefix: str) -> str:
    """Returns an id that begins with a prefix, and goes on otherwise than with a colon."""
    return next((repr(each.key.rollout_id) for each in store.list() if each.key.rollout_id.startswith(prefix)), "")


def _named(names: Sequence[str]) -> str:
    """Returns ``namespace 'a'`` or ``namespaces 'a', 'b'``."""
    return f"namespace{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"


def namespaces(resolved: ResolvedStore) -> list[str]:
    """Returns the namespaces that have a folder in a store ``local``; of other stores nothing is known."""
    if resolved.name != "local":
        return []
    found = []
    with suppress(OSError), os.scandir(os.path.expanduser(resolved.config.store_dir)) as entries:
        for entry in entries:
            with suppress(InvalidKeyError):
                text = decode_component(entry.name)
                if text is not None and entry.is_dir():
                    found.append(text)
    return sorted(found)
