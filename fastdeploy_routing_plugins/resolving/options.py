"""The options that a config class declares: their names, types, defaults and documentation.

A config class is a plain dataclass whose fields have types that JSON can express. Metadata of a field is optional:
``field(metadata={"doc": "...", "secret": True})``.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass
from typing import Any

import msgspec

from ..errors import InvalidPluginError
from .faults import attempt, text_of

HIDDEN = "***"
_SCALARS = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """What is to be known about an option.

    Attributes:
        name: Its name.
        type: Its type as text, for example ``"int | None"``.
        default: Its default, None if it is required; hidden if it is secret.
        doc: One sentence.
        secret: Whether its value is hidden wherever it would be shown.
        required: Whether it has no default.
    """

    name: str
    type: str
    default: Any
    doc: str
    secret: bool
    required: bool


@dataclass(frozen=True, slots=True)
class Option:
    """A declared option: its name, its type as declared, and what is to be known about it."""

    name: str
    hint: Any
    info: OptionInfo

    def convert(self, value: Any, *, text: bool) -> Any:
        """Returns ``value`` as the option's type; ``text`` is read leniently. Raises msgspec.ValidationError."""
        return msgspec.convert(value, self.hint, strict=not text)


def describe(config_class: type[Any]) -> tuple[OptionInfo, ...]:
    """Returns the options of a config class, in the order in which it declares them.

    Raises:
        InvalidPluginError: it is no dataclass, or has a type that JSON cannot express.
    """
    return tuple(option.info for option in options_of(config_class))


def options_of(config_class: Any) -> tuple[Option, ...]:
    """Returns what ``describe`` describes."""
    if not isinstance(config_class, type) or not dataclasses.is_dataclass(config_class):
        raise InvalidPluginError(
            f"the config class must be a dataclass, got {config_class!r:.80}",
            hint="@dataclass(frozen=True, slots=True)",
        )
    try:
        hints = typing.get_type_hints(config_class, include_extras=True)
    except (NameError, TypeError, AttributeError) as err:
        raise InvalidPluginError(
            f"the types of {config_class.__qualname__} cannot be read: {err}",
            hint="import them at run time, not only for type checkers",
        ) from err
    return tuple(_option(config_class, f, hints[f.name]) for f in dataclasses.fields(config_class) if f.init)


def _option(config_class: type[Any], f: dataclasses.Field[Any], hint: Any) -> Option:
    what = f"option {f.name!r} of {config_class.__qualname__}"
    unfit = InvalidPluginError(
        f"{what} has the type {_type_text(hint)}, which JSON cannot express",
        hint="use str, int, float, bool, lists and tuples of these, dict[str, ...], Optional or Literal",
    )
    if not _is_json(hint):
        raise unfit
    try:
        msgspec.convert(None, hint)
    except msgspec.ValidationError:
        pass  # None does not fit, but the type is one that can be checked
    except TypeError as err:
        raise unfit from err
    required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    default = None if required else _default(what, f, hint)
    secret = bool(f.metadata.get("secret", False))
    shown = HIDDEN if secret and default else default
    doc = str(f.metadata.get("doc", ""))
    return Option(f.name, hint, OptionInfo(f.name, _type_text(hint), shown, doc, secret, required))


def _default(what: str, f: dataclasses.Field[Any], hint: Any) -> Any:
    factory = f.default_factory
    made, err = (f.default, None) if factory is dataclasses.MISSING else attempt(factory)
    plain = None
    if err is None:
        plain, err = attempt(lambda: msgspec.to_builtins(made))
    if err is None:
        _, err = attempt(lambda: msgspec.convert(plain, hint))
    if err is not None:
        raise InvalidPluginError(f"{what} has no usable default: {text_of(err)}") from err
    return plain


def _is_json(hint: Any) -> bool:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _is_json(args[0])
    if origin is typing.Literal:
        return all(type(value) in _SCALARS for value in args)
    if origin in (typing.Union, types.UnionType):
        return all(_is_json(arg) for arg in args)
    if origin in (list, tuple):
        return all(arg is Ellipsis or _is_json(arg) for arg in args)
    if origin is dict:
        return args[0] is str and _is_json(args[1])
    return hint in _SCALARS


def is_sequence(hint: Any) -> bool:
    """Tells whether several values fit a type: a list or tuple, optional or not."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Annotated, typing.Union, types.UnionType):
        return any(is_sequence(arg) for arg in args)
    return origin in (list, tuple)


def _type_text(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _type_text(args[0])
    if origin is typing.Literal:
        return " | ".join(repr(value) for value in args)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(_type_text(arg) for arg in args)
    if origin is not None and args:
        inner = ", ".join("..." if arg is Ellipsis else _type_text(arg) for arg in args)
        return f"{origin.__name__}[{inner}]"
    return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))
