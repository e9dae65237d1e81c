"""Where configuration comes from, and how several sources become one list of options.

One normal form::

    {"routing_store_type": NAME, "routing_store_config": {OPTION: VALUE, ...}}

and the host's flat form, whose keys may stand beside those two. FastDeploy always sends every key that it knows, so
its keys that mean nothing to the selected store are passed over, and an empty text means "not set". Sources are the
configuration handed in, ``FD_ROUTING_STORE_CONFIG``, ``FD_ROUTING_NAMESPACE`` and the query of a host key's URL.
Nothing is checked against types here; ``config.load`` does that, so that all problems are reported at once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote

from ..discovery import normalise
from ..errors import ConfigError
from .jsontext import fail, kind_of, parse_text
from .suggest import did_you_mean, nearest

STORE_KEY = "routing_store_type"
OPTIONS_KEY = "routing_store_config"
CONFIG_VARIABLE = "FD_ROUTING_STORE_CONFIG"
NAMESPACE_VARIABLE = "FD_ROUTING_NAMESPACE"
HOST_OPTIONS = ("only_last_turn", "use_fused_put")  # host keys that are options of every store
HOST_KEYS = frozenset(
    [
        *HOST_OPTIONS,
        "enable_routing_replay",
        "local_store_dir",
        "rdma_store_server",
        "debug_mode",
        "routing_dtype",
        "num_moe_layers",
        "moe_top_k",
    ]
)
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Item:
    """One option from one source.

    Attributes:
        key: The option's name.
        value: Its value as JSON has it; with ``text``, a tuple of texts from a URL's query.
        source: Where it was said, for messages.
        text: Whether the value is text whose type is still to be found out.
    """

    key: str
    value: Any
    source: str
    text: bool = False

    def __repr__(self) -> str:
        return f"Item({self.key!r} from {self.source})"


@dataclass(frozen=True, slots=True)
class Source:
    """One configuration object.

    Attributes:
        label: Where it came from, for messages.
        content: Its keys and values.
        whole: Whether it must be a whole configuration; otherwise its keys decide.
    """

    label: str
    content: Mapping[str, Any]
    whole: bool

    def __repr__(self) -> str:
        return f"Source({self.label}, keys {sorted(self.content)})"


@dataclass(frozen=True, slots=True)
class Request:
    """What all sources together ask for, before the store's own options are known.

    Attributes:
        name: The store's name.
        distribution: The distribution that must offer it, in normalised form, or None.
        sources: The configuration objects.
        namespace: The namespace from the environment, or None.
    """

    name: str
    distribution: str | None
    sources: tuple[Source, ...]
    namespace: Item | None = None


def read(config: Mapping[str, Any] | str | None, environ: Mapping[str, str], store: str | None = None) -> Request:
    """Reads every source and finds out which store is meant.

    Args:
        config: The configuration handed in.
        environ: The environment.
        store: The store's name, if it is stated apart; ``config`` may then hold its options alone.

    Raises:
        ConfigError: a source is malformed, or no store, or more than one, is named.
    """
    sources = _gather(config, environ, whole=store is None)
    if store is not None:
        sources = (Source("the call", {STORE_KEY: store}, whole=True), *sources)
    name, distribution = _chosen(sources)
    return Request(name, distribution, sources, _namespace(environ))


def request_for(name: str, config: Mapping[str, Any] | str | None, environ: Mapping[str, str]) -> Request:
    """Reads the sources for a store that is named apart from them; those that name another store do not count.

    Raises:
        ConfigError: a source is malformed.
    """
    sources = _gather(config, environ, whole=False)
    short, distribution = split_name(name)
    mine = [source for source in sources if _chosen_by(source) in (None, short)]
    return Request(short, distribution, tuple(mine), _namespace(environ))


def split_name(text: str) -> tuple[str, str | None]:
    """Takes ``name`` or ``name@distribution`` apart."""
    name, mark, distribution = text.partition("@")
    return name.strip(), normalise(distribution.strip()) if mark else None


def merge(
    request: Request, *, host_keys: Mapping[str, str], options: Collection[str]
) -> tuple[tuple[Item, ...], tuple[str, ...]]:
    """Lists what every source says about every option.

    Args:
        request: The sources.
        host_keys: The store's flat keys and the options that they stand for.
        options: Names of all options of the store, common ones included.

    Returns:
        The items, which may still repeat or contradict one another, and the problems found on the way.
    """
    items: list[Item] = [] if request.namespace is None else [request.namespace]
    problems: list[str] = []
    flat = (HOST_KEYS | set(host_keys)) - set(options)
    for source in request.sources:
        keys = source.content.keys()
        if source.whole or STORE_KEY in keys or OPTIONS_KEY in keys or not flat.isdisjoint(keys):
            found, wrong = _read_whole(source, host_keys, options)
            items += found
            problems += wrong
        else:
            items += [Item(key, value, source.label) for key, value in source.content.items()]
    return tuple(items), tuple(problems)


def _gather(config: Mapping[str, Any] | str | None, environ: Mapping[str, str], *, whole: bool) -> tuple[Source, ...]:
    sources = []
    if config is not None:
        sources.append(_source("the configuration", config, whole=whole))
    text = environ.get(CONFIG_VARIABLE, "")
    if text.strip():
        sources.append(_source(CONFIG_VARIABLE, text, whole=False))
    return tuple(sources)


def _chosen_by(source: Source) -> str | None:
    value = source.content.get(STORE_KEY)
    return split_name(value)[0] if isinstance(value, str) and value else None


def _source(label: str, given: Mapping[Any, Any] | str, *, whole: bool) -> Source:
    if isinstance(given, str):
        content, label = parse_text(given, label)
        return Source(label, content, whole)
    if not isinstance(given, Mapping):
        fail(f"{label} must be a mapping or JSON text, got {type(given).__name__}")
    strange = [key for key in given if not isinstance(key, str)]
    if strange:
        fail(f"{label} has a key that is no text: {strange[0]!r}")
    return Source(label, given, whole)


def _chosen(sources: tuple[Source, ...]) -> tuple[str, str | None]:
    said: dict[tuple[str, str | None], str] = {}
    for source in sources:
        value = source.content.get(STORE_KEY)
        if value is not None and not isinstance(value, str):
            fail(f"{STORE_KEY} must be a text, got {kind_of(value)} (from {source.label})")
        if value:
            said.setdefault(split_name(value), source.label)
    names = {name for name, _ in said}
    exact = {distribution for _, distribution in said if distribution is not None}
    if not names:
        where = " and ".join(source.label for source in sources) or "no configuration was given, and the environment"
        known = [STORE_KEY, OPTIONS_KEY, *HOST_KEYS]
        keys = [key for source in sources for key in source.content if key not in known]
        typo = "".join(f", but {key!r} stands there" for key in keys if nearest(key, known) == STORE_KEY)
        hint = f'write {{"{STORE_KEY}": NAME, "{OPTIONS_KEY}": {{...}}}}, or set {CONFIG_VARIABLE} to it'
        hint += " (commands: --store NAME, --dir, --config)"
        fail(f"{where} names no store: {STORE_KEY} is missing{typo}", hint)
    if len(names) > 1 or len(exact) > 1:
        both = ", ".join(f"{'@'.join(filter(None, value))!r} from {label}" for value, label in said.items())
        fail(f"{STORE_KEY} has two values: {both}", "state the store once, or the same one everywhere")
    return names.pop(), exact.pop() if exact else None


def _namespace(environ: Mapping[str, str]) -> Item | None:
    namespace = environ.get(NAMESPACE_VARIABLE, "")
    return Item("namespace", namespace, NAMESPACE_VARIABLE) if namespace else None


def _read_whole(
    source: Source, host_keys: Mapping[str, str], options: Collection[str]
) -> tuple[list[Item], list[str]]:
    items: list[Item] = []
    problems: list[str] = []
    for key, value in source.content.items():
        where = f"{key} of {source.label}"
        if key == STORE_KEY:
            continue
        if key == OPTIONS_KEY:
            found, wrong = _options(value, where)
        elif key in host_keys or key in HOST_OPTIONS:
            found, wrong = _host_item(host_keys.get(key, key), value, where)
        elif key in HOST_KEYS:
            continue
        elif key in options:
            found, wrong = [], [f"{key!r} is an option of the store, write it into {OPTIONS_KEY} ({source.label})"]
        else:
            near = did_you_mean(key, [STORE_KEY, OPTIONS_KEY, *HOST_KEYS, *host_keys])
            found, wrong = [], [f"unknown key {key!r} in {source.label}" + (f", {near}" if near else "")]
        items += found
        problems += wrong
    return items, problems


def _options(value: Any, where: str) -> tuple[list[Item], list[str]]:
    if value is None or value == "":
        return [], []
    if isinstance(value, str):
        try:
            value, where = parse_text(value, where)
        except ConfigError as err:
            return [], list(err.problems)
    if not isinstance(value, Mapping):
        return [], [f"{where} must be an object, got {kind_of(value)}"]
    strange = [f"{where} has a key that is no text: {key!r}" for key in value if not isinstance(key, str)]
    return [Item(key, item, where) for key, item in value.items() if isinstance(key, str)], strange


def _host_item(option: str, value: Any, where: str) -> tuple[list[Item], list[str]]:
    """Reads a flat key that the store understands; a URL's query holds further options."""
    if value is None or value == "":
        return [], []
    match = _URL.match(value) if isinstance(value, str) else None
    if match is None:
        return [Item(option, value, where)], []
    rest, _, query = value.partition("?")
    found: dict[str, list[str]] = {}
    try:
        if match[1].lower() == "file":
            host, slash, path = rest[match.end() :].partition("/")
            if host not in ("", "localhost") or not slash:
                return [], [f"{where} is no file URL of this machine, write file:///absolute/path"]
            rest = unquote(slash + path, errors="strict")
        for key, text in parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict"):
            found.setdefault(key, []).append(text)
    except ValueError:
        return [], [f"the URL in {where} is malformed, write KEY=VALUE&KEY=VALUE after the question mark"]
    texts = [Item(key, tuple(values), f"the query of {where}", text=True) for key, values in found.items()]
    return [Item(option, rest, where), *texts], []
