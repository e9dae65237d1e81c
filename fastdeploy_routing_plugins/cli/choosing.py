"""Which store, and which of its rollouts, a command line means."""

from __future__ import annotations

import functools
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastdeploy_routing_plugins.cli.failures import UsageProblem
from fastdeploy_routing_plugins.cli.options import bare_store_options
from fastdeploy_routing_plugins.config import option_names
from fastdeploy_routing_plugins.errors import ConfigError, StoreUnavailableError
from fastdeploy_routing_plugins.opening import open_store
from fastdeploy_routing_plugins.resolver import ResolvedStore, resolve
from fastdeploy_routing_plugins.resolving.jsontext import parse_text
from fastdeploy_routing_plugins.resolving.sources import (
    CONFIG_VARIABLE,
    HOST_KEYS,
    HOST_OPTIONS,
    NAMESPACE_VARIABLE,
    OPTIONS_KEY,
    STORE_KEY,
    merge,
    read,
    request_for,
    split_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastdeploy_routing_plugins.cli.output import Output
    from fastdeploy_routing_plugins.store.sync import SyncStore

_LOOK = 0.8  # s for each look at why a metadata service does not answer


@dataclass(frozen=True, slots=True)
class StoreChoice:
    """Which store the command line asks for.

    Attributes:
        store: ``--store``.
        config: ``--config``: JSON text or ``@file``.
        directory: ``--dir``.
        namespace: ``--namespace``.
        alone: Whether ``--config`` and ``--dir`` say everything; otherwise the environment is merged, as everywhere.
    """

    store: str | None = None
    config: str | None = None
    directory: str | None = None
    namespace: str | None = None
    alone: bool = False

    def sources(self) -> tuple[dict[str, Any] | None, dict[str, str]]:
        """Returns the configuration that the command line states, if any, and the environment that counts beside it.

        ``--config`` and ``--dir`` are to ``resolve`` what the configuration handed to ``open_store`` is. ``--store``
        alone leaves the environment's configuration in force if it is about that store.

        Raises:
            ConfigError: ``--config`` or the variable is no JSON object, or options contradict each other.
        """
        environ = dict(os.environ)
        if self.config is None and self.directory is None:
            if self.store is None:
                return None, environ
            if not request_for(self.store, None, environ).sources:
                environ.pop(CONFIG_VARIABLE, None)
            return {STORE_KEY: self.store}, environ
        if self.alone:
            environ.pop(CONFIG_VARIABLE, None)
        elif self.directory is not None:
            _forget_folder(environ)
        options = {} if self.config is None else parse_text(self.config, "--config")[0]
        whole = not {STORE_KEY, OPTIONS_KEY, *HOST_KEYS}.difference(HOST_OPTIONS).isdisjoint(options)
        name = self.store or ("local" if self.directory is not None else None)
        if self.directory is not None and (whole or split_name(name or "")[0] != "local"):
            raise ConfigError("--dir is for the store local with options of its own", hint="use --config alone")
        if whole:
            stated = options.get(STORE_KEY, name)
            if name not in (None, stated):
                raise ConfigError(f"--store {name} contradicts {STORE_KEY} {stated!r} in --config")
            return {**options, STORE_KEY: stated}, environ
        if name is None:
            raise ConfigError(
                "--config holds a store's own options, but no store is named",
                hint=f'add --store NAME, or "{STORE_KEY}" to the JSON',
            )
        if self.directory is not None:
            options = {**options, "store_dir": self.directory}
        return {STORE_KEY: name, OPTIONS_KEY: options}, environ

    def resolve(self) -> ResolvedStore:
        """Chooses and checks the store.

        Raises:
            ResolveError: there is no such store, or its configuration is wrong.
            InvalidKeyError: the namespace cannot be stored.
        """
        config, environ = self.sources()
        if self.namespace is not None:
            environ.pop(NAMESPACE_VARIABLE, None)
        resolved = resolve(config, environ=environ)
        return resolved if self.namespace is None else resolved.with_namespace(self.namespace)

    def overruled(self, resolved: ResolvedStore) -> list[str]:
        """Returns what the command line says and what of the environment that takes the place of, each as a note."""
        if self.alone:
            return []
        notes = []
        folder = None if self.directory is None else _forget_folder(dict(os.environ))
        if folder is not None and _real(folder) != _real(resolved.options.get("store_dir", "")):
            notes.append(f"--dir {self.directory} instead of {folder} from {CONFIG_VARIABLE}")
        if namespaces := self._other_namespaces(resolved):
            notes.append(f"--namespace {self.namespace} instead of {' and '.join(namespaces)}")
        return notes

    def _other_namespaces(self, resolved: ResolvedStore) -> list[str]:
        """Returns ``NAMESPACE from SOURCE`` for each other namespace that ``--namespace`` takes the place of."""
        if self.namespace is None:
            return []
        config, environ = self.sources()
        names = option_names(type(resolved.config))
        items, _ = merge(read(config, environ), host_keys=resolved.spec.host_keys, options=names)
        said = {item.source: item.value[-1] if item.text else item.value for item in items if item.key == "namespace"}
        return [f"{value} from {source}" for source, value in said.items() if value not in (self.namespace, None)]

    @contextmanager
    def open(self, out: Output, *, existing: bool = True) -> Iterator[SyncStore]:
        """Opens the store for a ``with`` block.

        Args:
            out: Where it is said that another namespace or folder was configured.
            existing: Whether the folder of a store ``local`` must exist; otherwise it would be made, and be empty.

        Raises:
            RoutingError: the store cannot be chosen or opened.
            UsageProblem: there is no such folder.
        """
        resolved = self.resolve()
        if existing and resolved.name == "local":
            folder = resolved.config.store_dir
            if not os.path.isdir(os.path.expanduser(folder)):
                raise UsageProblem(f"there is no folder {folder!r}", "--dir takes the store_dir of the engine")
        for note in self.overruled(resolved):
            out.note(f"note: {note}")
        try:
            store = open_store(resolved)
        except StoreUnavailableError as err:
            raise _explained(resolved, err) from err
        with store:
            yield store


def _real(folder: str) -> str:
    return os.path.realpath(os.path.expanduser(folder))


def _forget_folder(environ: dict[str, str]) -> str | None:
    """Takes the folder of a store ``local`` out of the environment's configuration; returns which it was.

    A configuration of another store goes as a whole, as if ``--store local`` was said.
    """
    try:
        request = request_for("local", None, environ)
    except ConfigError:
        return None  # to be told by who uses it
    if not request.sources:
        environ.pop(CONFIG_VARIABLE, None)
        return None
    content = dict(request.sources[0].content)
    options = content.get(OPTIONS_KEY)
    flat = [content.pop(key, None) for key in ("local_store_dir", "store_dir")]
    folder = next(filter(None, flat), None)
    if isinstance(options, dict):
        content[OPTIONS_KEY] = {key: value for key, value in options.items() if key != "store_dir"}
        folder = options.get("store_dir", folder)
    if not isinstance(folder, str):
        return None
    environ[CONFIG_VARIABLE] = json.dumps(content)
    return folder


def _explained(resolved: ResolvedStore, err: StoreUnavailableError) -> StoreUnavailableError:
    """Returns the error with what can be found out about why a metadata service does not answer."""
    address: Any = getattr(resolved.config, "address", None)
    if address is None:
        return err
    from fastdeploy_routing_plugins.stores.rdma.metadata.reaching import why_silent  # noqa: PLC0415 - ZeroMQ
    from fastdeploy_routing_plugins.stores.rdma.metadata.security import Security  # noqa: PLC0415

    config: Any = resolved.config
    why = why_silent(address, resolved.namespace, Security(config.keys, config.secret), _LOOK)
    return err if why is None else StoreUnavailableError(f"{err.message}: {why[0]}", hint=why[1], **err.facts)


def store_options(function: Callable[..., int]) -> Callable[..., int]:
    """Adds the options that choose a store; the command gets them as ``choose``, a ``StoreChoice``."""
    return _store_options(function, alone=False)


def own_namespace_store_options(function: Callable[..., int]) -> Callable[..., int]:
    """Adds the same options without ``--namespace``, for commands that work in one of their own."""
    return _store_options(function, alone=True)


def _store_options(function: Callable[..., int], *, alone: bool) -> Callable[..., int]:
    merged = f"{CONFIG_VARIABLE} counts without it." if alone else f"Merged with {CONFIG_VARIABLE}."

    @functools.wraps(function)
    def wrapped(
        *args: Any,
        store: str | None,
        config: str | None,
        directory: str | None,
        namespace: str | None = None,
        **kwargs: Any,
    ) -> int:
        return function(*args, choose=StoreChoice(store, config, directory, namespace, alone), **kwargs)

    return bare_store_options(merged, namespace=not alone)(wrapped)
