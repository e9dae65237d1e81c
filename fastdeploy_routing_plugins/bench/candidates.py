"""Candidates out of what a user names: stores with their options and transports, and peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from fastdeploy_routing_plugins.bench.job import Candidate, Way
from fastdeploy_routing_plugins.bench.peers import find
from fastdeploy_routing_plugins.bench.stream import KIND
from fastdeploy_routing_plugins.errors import ConfigError
from fastdeploy_routing_plugins.resolver import resolve
from fastdeploy_routing_plugins.resolving.sources import OPTIONS_KEY, STORE_KEY
from fastdeploy_routing_plugins.spec import Capability

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastdeploy_routing_plugins.bench.peers import PeerKind
    from fastdeploy_routing_plugins.bench.presets import Work
    from fastdeploy_routing_plugins.resolver import ResolvedStore

Gets = Literal["each", "batch", "both"]
RDMA = "rdma"
_OURS, _THEIRS = "ours, {}", "FastDeploy's way, {}"


def store_of(name: str, options: Mapping[str, Any], namespace: str) -> ResolvedStore:
    """Chooses and checks a store.

    Raises:
        ResolveError: there is no such store, or its options are wrong.
    """
    return resolve({STORE_KEY: name, OPTIONS_KEY: {**options, "namespace": namespace}}, environ={})


def by_redis(store: ResolvedStore) -> bool:
    """Whether a store is p2pstore."""
    return store.name == RDMA and bool(getattr(store.config, "redis", False))


def exposes(store: ResolvedStore, transports: Sequence[str]) -> bool:
    """Whether a store listens on every interface, whatever it is told."""
    engine = store.name == RDMA and "rdma" in transports and bool(getattr(store.config, "allow_tcp", False))
    return by_redis(store) or engine


def of_store(
    store: ResolvedStore, work: Work, transports: Sequence[str], gets: Gets, defaults: Mapping[str, Any]
) -> list[Candidate]:
    """Returns the candidates of a store: one, but for ``rdma``, which has another one for Mooncake.

    Args:
        store: The store.
        work: What is moved.
        transports: Of ``rdma``.
        gets: Which ways to get.
        defaults: Options that hold unless the store has been given others.
    """
    empty = {name: value for name, value in defaults.items() if name not in store.options}
    options = {**store.options, **empty, "namespace": store.namespace}
    if store.name != RDMA or by_redis(store):
        ways = _ways(store.name, {}, gets, view=False)
        return [_store_candidate(store, store.name, options, ways, work)]
    found = []
    local = [each for each in transports if each != "rdma"]
    if local:
        ways = []
        for each in local:
            ways += _ways(f"{store.name} {each}", {"transport": each}, gets, view=each != "tcp")
        found.append(_store_candidate(store, store.name, options, ways, work))
    if "rdma" in transports:
        both = {"transport": "rdma"}
        ways = _ways(f"{store.name} by Mooncake", both, gets, view=False)
        found.append(_store_candidate(store, "rdma by Mooncake", {**options, **both}, ways, work))
    return found


def _ways(name: str, options: dict[str, Any], gets: Gets, *, view: bool) -> list[Way]:
    ways = []
    if gets != "batch":
        ways.append(Way(f"{name}: get", "get", options))
    if view and gets != "batch":
        ways.append(Way(f"{name}: get, waited for", "waited", options))
        ways.append(Way(f"{name}: view, waited for", "view", options))
    if gets != "each":
        ways.append(Way(f"{name}: one get_batch", "batch", options))
    return ways


def _store_candidate(
    store: ResolvedStore, name: str, options: dict[str, Any], ways: list[Way], work: Work
) -> Candidate:
    readable = Capability.READ in store.spec.capabilities
    rollout = _OURS.format(name)
    return Candidate(
        name=name,
        put_name=f"{name}: put",
        gets=tuple(ways) if readable else (),
        store={STORE_KEY: f"{store.name}@{store.distribution}", OPTIONS_KEY: options},
        submits=True,
        rollout=rollout if readable and work.rollout_layers and any(way.mode != "batch" for way in ways) else "",
    )


def of_peer(kind: PeerKind, work: Work, name: str) -> Candidate:
    """Returns the candidate of a peer."""
    rollout = _THEIRS.format(kind.name)
    wanted = kind.fastdeploy and work.rollout_layers
    return Candidate(name, kind.put_name, (Way(kind.get_name),), peer=name, rollout=rollout if wanted else "")


def bounds(gets: Gets) -> Candidate:
    """Returns the candidate that nobody can beat."""
    ways = [Way(KIND.get_name)]
    if gets != "each":
        ways.append(Way(f"{KIND.get_name}, all at once", "batch"))
    return Candidate(KIND.name, KIND.put_name, tuple(ways), peer=KIND.name)


def peer_of(name: str) -> PeerKind:
    """Returns a kind of peer.

    Raises:
        ConfigError: there is none of this name.
    """
    kind = find(name)
    if kind is None:
        hint = "built in are paddle, numpy, p2pstore and redis; your own are module:ATTRIBUTE"
        raise ConfigError(f"there is no peer {name!r}", hint=hint)
    return kind
