"""Options of stores: what there is (``describe``), strict loading, and a form to show with secrets hidden.

A store's config class is a plain dataclass. Every option is converted on its own, so that one ``ConfigError`` names
every problem: unknown options, wrong types, missing ones, two values for one, and what the class itself refuses.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from .errors import ConfigError, InvalidPluginError
from .keys import DEFAULT_NAMESPACE, encode_namespace
from .resolving.faults import attempt, text_of
from .resolving.options import HIDDEN, Option, OptionInfo, describe, is_sequence, options_of
from .resolving.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .resolving.sources import Item

__all__ = [
    "CommonOptions",
    "Loaded",
    "OptionInfo",
    "default_producer",
    "describe",
    "effective",
    "load",
    "option_names",
]

MAX_PRODUCER = 200
_PASSWORD = re.compile(r"((?:://|,)[^\s/?#:@,]*:)[^\s@]{1,200}?@")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """Options that every store has, whatever its own are."""

    namespace: str = field(
        default=DEFAULT_NAMESPACE,
        metadata={"doc": "Keeps runs apart; also FD_ROUTING_NAMESPACE. Set one per run."},
    )
    producer: str = field(
        default="",
        metadata={"doc": "Names the writing process; made from host name, process id and a random number if empty."},
    )
    only_last_turn: bool = field(
        default=False,
        metadata={"doc": "Whether a writer deletes a turn of a trajectory once its next turn is complete."},
    )
    use_fused_put: bool = field(
        default=False,
        metadata={
            "doc": "Whether an engine stores whole rollouts where layers could be files of their own, as with "
            "`layout: pdtensor`; elsewhere it makes no difference."
        },
    )

    def __post_init__(self) -> None:
        encode_namespace(self.namespace)
        if len(self.producer) > MAX_PRODUCER or not self.producer.isprintable():
            raise ValueError(f"option 'producer' must be at most {MAX_PRODUCER} printable characters")


@dataclass(frozen=True, slots=True)
class Loaded:
    """Checked options.

    Attributes:
        config: An instance of the store's config class.
        options: The store's options as JSON has them, defaults included.
        common: The common options.
    """

    config: Any
    options: dict[str, Any]
    common: CommonOptions


def option_names(config_class: type[Any]) -> tuple[str, ...]:
    """Returns the names of a store's options, the common ones included.

    Raises:
        InvalidPluginError: as ``describe``; or an option has the name of a common one.
    """
    own = [option.name for option in options_of(config_class)]
    common = [info.name for info in describe(CommonOptions)]
    if taken := sorted(set(own) & set(common)):
        raise InvalidPluginError(
            f"{config_class.__qualname__} declares {taken[0]!r}, which is an option of every store",
            hint="give it another name",
        )
    return (*own, *common)


def effective(config: Any) -> dict[str, Any]:
    """Returns a config instance's options to show to people: secrets and passwords in URLs are hidden."""
    shown = {}
    for option in options_of(type(config)):
        value = _plain(option, getattr(config, option.name))
        shown[option.name] = HIDDEN if option.info.secret and value else _mask(value)
    return shown


def telling(config: Any) -> dict[str, Any]:
    """Returns the first option of a config instance, which says where its store is, and those that are not usual."""
    shown = effective(config)
    return {
        option.name: shown[option.name]
        for index, option in enumerate(options_of(type(config)))
        if index == 0 or option.info.required or shown[option.name] != option.info.default
    }


def load(
    config_class: type[Any], items: Iterable[Item], *, owner: str, problems: Sequence[str] = (), hint: str = ""
) -> Loaded:
    """Checks everything that was said about a store's options.

    Args:
        config_class: The store's config class.
        items: From ``sources.merge``.
        owner: Whose configuration it is, for messages, for example ``store 'local'``.
        problems: What is known to be wrong already.
        hint: Where to look options up.

    Raises:
        ConfigError: something is wrong; names every problem.
        InvalidPluginError: the config class does not follow the contract.
    """
    found = list(problems)
    said = _sorted_out(items, option_names(config_class), found)
    config = _build(config_class, said, found)
    common = _build(CommonOptions, said, found)
    if found or config is None or common is None:
        raise _config_error(owner, found, hint)
    options = {option.name: _plain(option, getattr(config, option.name)) for option in options_of(config_class)}
    return Loaded(config, options, common)


def load_alone(config_class: type[T], items: Iterable[Item], *, owner: str, hint: str = "") -> T:
    """Checks everything that was said about options that belong to no store.

    Args:
        config_class: A config class, as those of stores.
        items: What was said, and where.
        owner: Whose configuration it is, for messages.
        hint: Where to look options up.

    Raises:
        ConfigError: something is wrong; names every problem.
    """
    found: list[str] = []
    said = _sorted_out(items, tuple(option.name for option in options_of(config_class)), found)
    config = _build(config_class, said, found)
    if found or config is None:
        raise _config_error(owner, found, hint)
    return config


def _sorted_out(items: Iterable[Item], names: Sequence[str], problems: list[str]) -> dict[str, list[Item]]:
    said: dict[str, list[Item]] = {name: [] for name in names}
    for item in items:
        if item.key in said:
            said[item.key].append(item)
        else:
            near = did_you_mean(item.key, names)
            problems.append(
                f"unknown option {item.key!r} (from {item.source}), {near or 'there are ' + ', '.join(names)}"
            )
    return said


def _config_error(owner: str, problems: Sequence[str], hint: str) -> ConfigError:
    count = f"{len(problems)} problems: " if len(problems) > 1 else ""
    return ConfigError(f"configuration of {owner}: {count}{'; '.join(problems)}", hint=hint, problems=tuple(problems))


def _build(config_class: type[T], said: Mapping[str, list[Item]], problems: list[str]) -> T | None:
    values: dict[str, Any] = {}
    complete = True
    for option in options_of(config_class):
        heard, wrong = _hear(option, said[option.name])
        if not said[option.name] and option.info.required:
            wrong.append(f"option {option.name!r} is required" + (f": {option.info.doc}" if option.info.doc else ""))
        if heard:
            values[option.name] = heard[0]
        complete = complete and not wrong
        problems += wrong
    if not complete:
        return None
    config, err = attempt(lambda: config_class(**values))
    if isinstance(err, ConfigError):
        problems += err.facts.get("problems", (err.message,))
    elif isinstance(err, ValueError):
        problems.append(str(err))
    elif err is not None:
        raise InvalidPluginError(f"{config_class.__qualname__} cannot be built: {text_of(err)}") from err
    return config


def _hear(option: Option, items: list[Item]) -> tuple[list[Any], list[str]]:
    """Converts what was said about one option; returns the distinct values and the problems."""
    heard: list[tuple[Any, str]] = []
    problems = []
    for item in items:
        values = (
            [list(item.value)] if item.text and is_sequence(option.hint) else item.value if item.text else [item.value]
        )
        for value in values:
            try:
                typed = option.convert(os.fspath(value) if isinstance(value, os.PathLike) else value, text=item.text)
                _check_value(typed)
            except (msgspec.ValidationError, ValueError, TypeError) as err:  # TypeError: of a strange PathLike
                problems.append(f"option {option.name!r}: {_reason(option, err, value)} (from {item.source})")
                continue
            if all(typed != other for other, _ in heard):
                heard.append((typed, item.source))
    if len(heard) > 1:
        both = ", ".join(
            f"{HIDDEN if option.info.secret else _mask(value)!r} from {source}" for value, source in heard
        )
        problems.append(f"option {option.name!r} has two values: {both}")
    return [value for value, _ in heard], problems


def _check_value(value: Any) -> None:
    """Refuses what has a type of JSON and yet no place in it."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("expected a finite number")
    if isinstance(value, str) and not value.isascii() and value.encode("utf-8", "replace").decode() != value:
        raise ValueError("expected text without lone surrogates")
    if isinstance(value, (list, tuple)):
        for item in value:
            _check_value(item)
    if isinstance(value, dict):
        for key, item in value.items():
            _check_value(key)
            _check_value(item)


def _plain(option: Option, value: Any) -> Any:
    """Returns a checked value as JSON has it; the config class may have changed it, but not into something else."""
    try:
        plain = msgspec.to_builtins(value)
        option.convert(plain, text=False)
    except (msgspec.ValidationError, TypeError, RecursionError) as err:
        raise InvalidPluginError(
            f"the config class turned option {option.name!r} into something that its type does not allow: {err}",
            hint="an option must survive a journey to another process",
        ) from err
    return plain


def _reason(option: Option, err: Exception, value: Any) -> str:
    if option.info.secret:
        return f"expected {option.info.type}, got something else, which is not shown because it is secret"
    shown, failed = attempt(lambda: repr(_mask(_beginning(value))))
    if shown is None or failed is not None:
        shown = f"a {type(value).__name__}"
    reason = str(err).replace("`", "")
    if reason.startswith("Invalid enum value"):
        reason = f"expected {option.info.type}, got"
    return f"{reason[:1].lower()}{reason[1:]}: {shown if len(shown) <= 80 else shown[:77] + '...'}"


def _mask(value: Any) -> Any:
    if isinstance(value, str):
        return _PASSWORD.sub(rf"\1{HIDDEN}@", value)
    if isinstance(value, (list, tuple)):
        return [_mask(item) for item in value]
    if isinstance(value, dict):
        return {key: _mask(item) for key, item in value.items()}
    return value


def _beginning(value: Any, depth: int = 4, items: int = 16) -> Any:
    """Returns a small part of a value that may be huge, deep, or contain itself."""
    if not isinstance(value, (list, tuple, dict)):
        return value
    if depth == 0:
        return "..."
    if isinstance(value, dict):
        return {key: _beginning(item, depth - 1) for key, item in islice(value.items(), items)}
    return [_beginning(item, depth - 1) for item in islice(value, items)]


def default_producer() -> str:
    """Returns a name for this process that no other process has."""
    return f"{os.uname().nodename}:{os.getpid()}:{os.urandom(4).hex()}"
