"""The result of resolving, how it travels to other processes, and the steps that lead to it."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from ..backend import Backend, BlockingBackend
from ..config import default_producer, describe, effective, load, option_names
from ..discovery import scan
from ..errors import ConfigError, IncompatibleStoreError, InvalidPluginError
from ..keys import encode_namespace
from ..spec import API_VERSION, StoreContext, StoreSpec
from . import loading, lookup, sources
from .faults import invalid
from .sources import Request

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from ..discovery import Candidate

STEPS = ("allowed", "found", "import", "hook", "spec", "api", "config", "preflight")
_log = logging.getLogger("fastdeploy_routing_plugins")


@dataclass(frozen=True, slots=True, repr=False)
class ResolvedStore:
    """A store that was chosen, found, checked and configured; opens nothing by itself.

    It pickles (and has ``to_json``) as name, options and the expected distribution; the other process resolves again.

    Attributes:
        candidate: Where the plugin was found.
        spec: The plugin's declaration.
        options: The store's options as JSON has them, checked, defaults included.
        config: The same as an instance of the store's config class.
        namespace: Keeps runs apart.
        producer: Names the process that resolved the store first.
        only_last_turn: Whether a writer deletes a turn once the next one is complete.
        use_fused_put: Whether the host hands over all layers at once.
    """

    candidate: Candidate
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

    @property
    def name(self) -> str:
        """The store's name, the value of ``routing_store_type``."""
        return self.candidate.name

    @property
    def distribution(self) -> str:
        """The distribution that offers it, in normalised form."""
        return self.candidate.distribution

    @property
    def version(self) -> str:
        """That distribution's version."""
        return self.candidate.version

    def effective(self) -> dict[str, Any]:
        """Returns all options in force, the common ones included, with secrets hidden."""
        return {**effective(self.config), **self._common()}

    def described(self) -> str:
        """Returns one line for logs: store, distribution, versions, and the options in force, secrets hidden."""
        api = ".".join(map(str, self.spec.api_version))
        return f"store {self.name!r} from {self.distribution} {self.version} (store API {api}): {_text(self)}"

    def with_namespace(self, namespace: str) -> ResolvedStore:
        """Returns the same store for another namespace.

        Raises:
            InvalidKeyError: it is no namespace.
        """
        encode_namespace(namespace)
        return replace(self, namespace=namespace)

    def create_backend(self) -> Backend | BlockingBackend:
        """Makes the store's backend; it is not open yet.

        Raises:
            MissingDependencyError: the backend needs something that cannot be imported.
            InvalidPluginError: the plugin made something else.
            StoreLoadError: the plugin's own code failed.
            RoutingError: whatever else the plugin raises.
        """
        context = StoreContext(self.name, self.config, self.namespace, self.producer)
        backend = loading.create(self.candidate, self.spec, context)
        if not isinstance(backend, (Backend, BlockingBackend)):
            raise invalid(
                self.candidate, f"create returned a {type(backend).__name__}, expected a Backend or BlockingBackend"
            )
        return backend

    def to_json(self) -> str:
        """Returns what another process needs to resolve the same store; secrets are in it."""
        options = {**self.options, **self._common()}
        return msgspec.json.encode(_Wire(self.name, self.distribution, self.version, options)).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> ResolvedStore:
        """Resolves again what ``to_json`` described; only the administrator's variables are read from the environment.

        Raises:
            IncompatibleStoreError: this process finds another distribution, or another version of it.
            ConfigError: the text is not from ``to_json``.
            ResolveError: as ``resolve``.
        """
        try:
            wire = msgspec.json.decode(text, type=_Wire)
        except (msgspec.DecodeError, ValueError) as err:
            problem = f"this is no resolved store: {err}"
            raise ConfigError(problem, problems=(problem,)) from err
        return _again(wire)

    def _common(self) -> dict[str, Any]:
        return {
            "namespace": self.namespace,
            "producer": self.producer,
            "only_last_turn": self.only_last_turn,
            "use_fused_put": self.use_fused_put,
        }


class _Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A resolved store on its way to another process; ``options`` include the common ones."""

    store: str
    distribution: str
    version: str
    options: dict[str, Any]


def _again(wire: _Wire) -> ResolvedStore:
    offers = [candidate for candidate in scan().candidates if candidate.name == wire.store]
    if offers and all((offer.distribution, offer.version) != (wire.distribution, wire.version) for offer in offers):
        here = ", ".join(f"{offer.distribution} {offer.version}" for offer in offers)
        raise IncompatibleStoreError(
            f"store {wire.store!r} was resolved from {wire.distribution} {wire.version}, but this process has it from "
            f"{here}",
            hint="run all processes in the same environment, and restart them after an upgrade",
        )
    source = sources.Source("the resolved store", {sources.OPTIONS_KEY: wire.options}, whole=True)
    return finish(steps(Request(wire.store, wire.distribution, (source,)), API_VERSION, os.environ))


def steps(
    request: Request, host_api: tuple[int, int], environ: Mapping[str, str], *, checking: bool = False
) -> Generator[str, None, ResolvedStore | None]:
    """Takes the steps of ``STEPS``: yields what each found, then returns the store.

    Args:
        request: What is asked for.
        host_api: The store API that the host implements.
        environ: Where the administrator's variables are.
        checking: Whether a plugin is to be judged rather than used: its name is then the plugin's fault, and without
            any configuration there is no store but None.

    Raises:
        ResolveError: a step failed.
    """
    lookup.check_allowed(request.name, environ)
    yield "no variable forbids it"
    found = scan()
    if checking:
        lookup.check_name(request.name, found)
    candidate = lookup.find(request.name, request.distribution, found)
    yield f"{candidate.distribution} {candidate.version}"
    plugin = loading.import_plugin(candidate)
    yield candidate.target
    spec = loading.call_hook(candidate, plugin)
    yield loading.HOOK
    loading.check_spec(candidate, spec)
    yield spec.summary
    loading.check_api(candidate, spec, host_api)
    yield f"store API {spec.api_version[0]}.{spec.api_version[1]}"
    config_class = loading.load_config_class(candidate, spec)
    if checking and not request.sources and any(option.required for option in describe(config_class)):
        return None
    store = _configured(candidate, spec, config_class, request)
    yield _text(store)
    loading.preflight(candidate, spec, store.config)
    yield "everything that it needs can be imported"
    return store


def finish(taken: Generator[str, None, ResolvedStore | None]) -> ResolvedStore:
    """Takes all steps at once and says in the log what came out."""
    while True:
        try:
            next(taken)
        except StopIteration as end:
            store: ResolvedStore = end.value
            break
    _log.info("routing %s", store.described())
    return store


def _configured(candidate: Candidate, spec: StoreSpec, config_class: type[Any], request: Request) -> ResolvedStore:
    names = option_names(config_class)
    items, problems = sources.merge(request, host_keys=spec.host_keys, options=names)
    hint = f"fd-routing show {candidate.name} lists its options"
    try:
        loaded = load(config_class, items, owner=f"store {candidate.name!r}", problems=problems, hint=hint)
    except InvalidPluginError as err:
        raise invalid(candidate, err.message, err.hint) from err
    return ResolvedStore(
        candidate=candidate,
        spec=spec,
        options=loaded.options,
        config=loaded.config,
        namespace=loaded.common.namespace,
        producer=loaded.common.producer or default_producer(),
        only_last_turn=loaded.common.only_last_turn,
        use_fused_put=loaded.common.use_fused_put,
    )


def _text(store: ResolvedStore) -> str:
    return msgspec.json.encode(store.effective()).decode()
