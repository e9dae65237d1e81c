"""From a configuration to a store that can be opened: ``resolve``; every failure has an error of its own.

The steps, in order: the configuration names a store; the administrator allows it; exactly one installed distribution
offers it; its plugin is imported, and no other; its hook, its specification, its API version, the configuration and its
dependencies are checked. There is no fallback to another store: losing routing quietly is worse than not starting.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from . import loading, lookup, sources
from .backend import Backend, BlockingBackend
from .config import Loaded, default_producer, describe, effective, load, option_names
from .discovery import Candidate, scan
from .errors import ConfigError, IncompatibleStoreError, InvalidPluginError, RoutingError
from .sources import Item, Request
from .spec import API_VERSION, StoreContext, StoreSpec

STEPS = ("allowed", "found", "import", "hook", "spec", "api", "config", "preflight")
_log = logging.getLogger("fastdeploy_routing_plugins")


@dataclass(frozen=True, slots=True, repr=False)
class ResolvedStore:
    """A store that was chosen, found, checked and configured; opens nothing by itself.

    It pickles (and has ``to_json``) as name, options and the expected distribution; the other process resolves again.

    Attributes:
        name: The store's name.
        distribution: The distribution that offers it, in normalised form.
        version: That distribution's version.
        spec: The plugin's declaration.
        options: The store's options as JSON has them, checked, defaults included.
        config: The same as an instance of the store's config class.
        namespace: Keeps runs apart.
        producer: Names the process that resolved the store first.
        only_last_turn: Whether a turn is deleted once the next one is complete.
        use_fused_put: Whether the host hands over all layers at once.
    """

    name: str
    distribution: str
    version: str
    spec: StoreSpec
    options: dict[str, Any]
    config: Any
    namespace: str
    producer: str
    only_last_turn: bool = False
    use_fused_put: bool = False

    def __repr__(self) -> str:
        return f"ResolvedStore({self.name!r} of {self.distribution} {self.version}, {self.effective()})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ResolvedStore.from_json, (self.to_json(),)

    def effective(self) -> dict[str, Any]:
        """Returns all options in force, common ones included, with secrets hidden."""
        common = {name: getattr(self, name) for name in ("namespace", "producer", "only_last_turn", "use_fused_put")}
        return {**effective(self.config), **common}

    def with_namespace(self, namespace: str) -> ResolvedStore:
        """Returns the same store for another namespace.

        Raises:
            InvalidKeyError: it is no namespace.
        """
        sources.check_namespace(namespace)
        return replace(self, namespace=namespace)

    def create_backend(self) -> Backend | BlockingBackend:
        """Makes the store's backend; it is not open yet.

        Raises:
            MissingDependencyError: the backend needs a module that is not installed.
            InvalidPluginError: the plugin made something else.
        """
        candidate = Candidate(self.name, "its plugin", self.distribution, self.version, "")
        context = StoreContext(self.name, self.config, self.namespace, self.producer)
        try:
            backend = self.spec.create(context)
        except ImportError as err:
            raise loading.missing_dependency(candidate, self.spec, err) from err
        if isinstance(backend, (Backend, BlockingBackend)):
            return backend
        raise InvalidPluginError(
            f"store {self.name!r} of {self.distribution} {self.version} does not follow the contract: create returned "
            f"a {type(backend).__name__}, not a Backend or BlockingBackend",
            name=self.name,
        )

    def to_json(self) -> str:
        """Returns everything that another process needs to resolve the same store; contains secrets."""
        return msgspec.json.encode(_Wire.of(self)).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> ResolvedStore:
        """Resolves again what ``to_json`` described.

        Raises:
            IncompatibleStoreError: this process finds another distribution, or another version of it.
            ConfigError: the text is not from ``to_json``.
            ResolveError: as ``resolve``.
        """
        try:
            wire = msgspec.json.decode(text, type=_Wire)
        except (msgspec.DecodeError, UnicodeDecodeError) as err:
            raise ConfigError(f"this is no resolved store: {err}", problems=(str(err),)) from err
        return wire.resolve()


class _Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A resolved store on its way to another process."""

    name: str
    distribution: str
    version: str
    options: dict[str, Any]
    namespace: str
    producer: str
    only_last_turn: bool
    use_fused_put: bool

    @classmethod
    def of(cls, store: ResolvedStore) -> _Wire:
        return cls(**{field: getattr(store, field) for field in cls.__struct_fields__})

    def resolve(self) -> ResolvedStore:
        found = scan().candidates
        same = [candidate for candidate in found if candidate.name == self.name]
        if same and all((one.distribution, one.version) != (self.distribution, self.version) for one in same):
            here = ", ".join(f"{one.distribution} {one.version}" for one in same)
            raise IncompatibleStoreError(
                f"store {self.name!r} was resolved from {self.distribution} {self.version}, this process has it from "
                f"{here}",
                hint="run both processes in the same environment",
            )
        common = {"namespace": self.namespace, "producer": self.producer}
        flags = {"only_last_turn": self.only_last_turn, "use_fused_put": self.use_fused_put}
        content = {sources.OPTIONS_KEY: {**self.options, **common, **flags}}
        source = sources.Source("the resolved store", content, whole=True)
        return _finish(_pipeline(Request(self.name, self.distribution, (source,)), API_VERSION, os.environ))


@dataclass(frozen=True, slots=True)
class Step:
    """One step of ``check``.

    Attributes:
        name: One of ``STEPS``, or ``"backend"``.
        state: How it went; ``"skipped"`` if an earlier step failed, or nothing was given that could be checked.
        detail: What was found, or the error's message.
        error: The error, if it failed.
    """

    name: str
    state: Literal["ok", "failed", "skipped"]
    detail: str = ""
    error: RoutingError | None = None


def resolve(
    config: Mapping[str, Any] | str | None = None,
    *,
    host_api: tuple[int, int] = API_VERSION,
    environ: Mapping[str, str] | None = None,
) -> ResolvedStore:
    """Finds, checks and configures the store that the configuration names.

    Args:
        config: A mapping, JSON text, or ``@path`` of a JSON file, in the normal or in FastDeploy's flat form; None
            leaves it to the environment.
        host_api: The store API that the caller implements.
        environ: The environment; ``os.environ`` unless given. ``FD_ROUTING_STORE_CONFIG`` and
            ``FD_ROUTING_NAMESPACE`` are merged in; the same option with two values is an error.

    Raises:
        ResolveError: the subclass says why.
    """
    environ = os.environ if environ is None else environ
    return _finish(_pipeline(sources.read(config, environ), host_api, environ))


def check(
    name: str,
    config: Mapping[str, Any] | str | None = None,
    *,
    host_api: tuple[int, int] = API_VERSION,
    environ: Mapping[str, str] | None = None,
) -> tuple[Step, ...]:
    """Takes every step of ``resolve`` for one store, makes its backend, and tells how each step went.

    Args:
        name: A store's name, or ``name@distribution``; also one that could never be used.
        config: As in ``resolve``; need not name the store. Without one, required options cannot be checked, and what
            depends on them is skipped.
        host_api: As in ``resolve``.
        environ: As in ``resolve``; its configuration counts if it is for this store.
    """
    environ = os.environ if environ is None else environ
    steps: list[Step] = []
    try:
        pipeline = _pipeline(_request(name, config, environ), host_api, environ, checking=True)
        while True:
            steps.append(Step(STEPS[len(steps)], "ok", next(pipeline)))
    except StopIteration as end:
        store: ResolvedStore | None = end.value
    except RoutingError as err:
        steps.append(Step(STEPS[len(steps)], "failed", str(err), err))
        store = None
    failed = bool(steps) and steps[-1].state == "failed"
    reason = "an earlier step failed" if failed else "required options are not given"
    steps += [Step(step, "skipped", reason) for step in STEPS[len(steps) :]]
    steps.append(_check_backend(store, reason))
    return tuple(steps)


def _request(name: str, config: Mapping[str, Any] | str | None, environ: Mapping[str, str]) -> Request:
    found = sources.gather(config, environ)
    short, distribution = sources.split_name(name)
    found = tuple(source for source in found if sources.named((source,)) <= {short})
    return sources.request_for(short, distribution, found, environ)


def _check_backend(store: ResolvedStore | None, reason: str) -> Step:
    if store is None:
        return Step("backend", "skipped", reason)
    try:
        return Step("backend", "ok", type(store.create_backend()).__name__)
    except RoutingError as err:
        return Step("backend", "failed", str(err), err)


def _pipeline(
    request: Request, host_api: tuple[int, int], environ: Mapping[str, str], *, checking: bool = False
) -> Generator[str, None, ResolvedStore | None]:
    """Takes the steps of ``STEPS``; yields a detail after each, and returns the store."""
    lookup.check_allowed(request.name, environ)
    yield "not forbidden by the environment"
    if checking:
        for candidate in scan().candidates:
            if candidate.name == request.name:
                lookup.check_name(candidate)
    candidate = lookup.find(request.name, request.distribution, scan())
    yield str(candidate)
    plugin = loading.import_plugin(candidate)
    yield candidate.target
    spec = loading.call_hook(candidate, plugin)
    yield loading.HOOK
    loading.check_spec(candidate, spec)
    yield spec.summary
    loading.check_api(candidate, spec, host_api)
    yield f"{spec.api_version[0]}.{spec.api_version[1]}"
    loaded = _configure(request, candidate, spec, checking=checking)
    if loaded is None:
        return None
    store = _store(candidate, spec, loaded)
    yield _shown(store)
    loading.preflight(candidate, spec, store.config)
    yield "everything that it needs can be imported"
    return store
