"""From a configuration to a store that can be opened: ``resolve``; every failure has an error of its own.

The steps, in order: the configuration names a store; the administrator allows it; exactly one installed distribution
offers it; its plugin is imported, and no other; its hook, specification, API version, configuration and dependencies
are checked. There is no fallback to another store: losing routing quietly is worse than not starting.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .errors import ConfigError, RoutingError
from .resolving import resolved, sources
from .resolving.resolved import STEPS, ResolvedStore
from .spec import API_VERSION

__all__ = ["STEPS", "ResolvedStore", "Step", "check", "resolve"]

Config = Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class Step:
    """One step of ``check``.

    Attributes:
        name: One of ``STEPS``, or ``"backend"``.
        state: How it went. ``"skipped"``: an earlier step failed, or a required option was not given.
        detail: What was found, or what went wrong.
        error: The error, if it failed.
    """

    name: str
    state: Literal["ok", "failed", "skipped"]
    detail: str = ""
    error: RoutingError | None = None


def resolve(
    config: Config | None = None,
    *,
    store: str | None = None,
    host_api: tuple[int, int] = API_VERSION,
    environ: Mapping[str, str] | None = None,
) -> ResolvedStore:
    """Finds, checks and configures the store that the configuration names.

    Args:
        config: A mapping, JSON text, or ``@path`` of a JSON file, in the normal or in FastDeploy's flat form; None
            leaves it to the environment.
        store: The store's name or ``name@distribution``, if ``config`` does not state it; ``config`` may then be the
            store's options alone.
        host_api: The store API that the caller implements.
        environ: The environment, ``os.environ`` unless given. ``FD_ROUTING_STORE_CONFIG`` and
            ``FD_ROUTING_NAMESPACE`` in it are merged in; one option with two values is an error.

    Raises:
        ResolveError: the subclass says why.
    """
    environ = os.environ if environ is None else environ
    return resolved.finish(resolved.steps(sources.read(config, environ, store), host_api, environ))


def check(
    name: str,
    config: Config | None = None,
    *,
    host_api: tuple[int, int] = API_VERSION,
    environ: Mapping[str, str] | None = None,
) -> tuple[Step, ...]:
    """Takes the steps of ``resolve`` for one store, makes its backend (unopened), and tells how each step went.

    Args:
        name: A store's name or ``name@distribution``; also one that no store can have.
        config: As in ``resolve``; it need not name the store, and may be its options alone. Where none is given and
            the store has required options, the steps from ``config`` on are skipped.
        host_api: As in ``resolve``.
        environ: As in ``resolve``. Configuration in it counts unless it names another store.

    Returns:
        One step for each of ``STEPS``, and ``"backend"``.
    """
    environ = os.environ if environ is None else environ
    done: list[Step] = []
    store: ResolvedStore | None = None
    reason = "an earlier step failed"
    try:
        request = sources.request_for(name, config, environ)
    except ConfigError as err:
        return tuple(
            Step(step, "failed", str(err), err) if step == "config" else Step(step, "skipped", "nothing could be read")
            for step in (*STEPS, "backend")
        )
    try:
        steps = resolved.steps(request, host_api, environ, checking=True)
        while True:
            detail = next(steps)
            done.append(Step(STEPS[len(done)], "ok", detail))
    except StopIteration as end:
        store = end.value
        reason = "it has required options, and no configuration was given"
    except RoutingError as err:
        done.append(Step(STEPS[len(done)], "failed", str(err), err))
    done += [Step(step, "skipped", reason) for step in STEPS[len(done) :]]
    return (*done, Step("backend", "skipped", reason) if store is None else _check_backend(store))


def _check_backend(store: ResolvedStore) -> Step:
    try:
        return Step("backend", "ok", type(store.create_backend()).__name__)
    except RoutingError as err:
        return Step("backend", "failed", str(err), err)
