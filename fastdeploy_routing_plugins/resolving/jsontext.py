"""JSON objects from text that people wrote, or from the file that the text names; errors say where the text breaks."""

from __future__ import annotations

import json
import os
import stat
from typing import Any, NoReturn

from ..errors import ConfigError

MAX_TEXT_BYTES = 1 << 20
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def parse_text(text: str, label: str) -> tuple[dict[str, Any], str]:
    """Parses JSON text, or the file that ``@path`` names; returns the object and a label that names the file too.

    Raises:
        ConfigError: the text is no JSON object; the message says where it breaks.
    """
    text = text.strip()
    if text.startswith("@"):
        path = os.path.expanduser(text[1:].strip())
        label = f"{label} (file {path!r})"
        text = _read_file(path, label)
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as err:
        hint = "" if text.startswith("{") else 'write {"key": value}, or @PATH to name a file'
        fail(f"{label} is no JSON: {err.msg} at line {err.lineno}, column {err.colno}", hint)
    except (ValueError, RecursionError) as err:
        fail(f"{label} is no usable JSON: {err}")
    if not isinstance(found, dict):
        fail(f"{label} must be a JSON object, got {kind_of(found)}", 'for example {"routing_store_type": "noop"}')
    return found, label


def _read_file(path: str, label: str) -> str:
    try:
        # Looked at before, since opening a device may set it off, and after, since it may have been exchanged.
        _check_regular(os.stat(path), label)
        with open(path, "rb", opener=_open_at_once) as file:
            _check_regular(os.fstat(file.fileno()), label)
            raw = file.read(MAX_TEXT_BYTES + 1)
    except (OSError, ValueError) as err:
        fail(f"{label} cannot be read: {err}", "@ is followed by the path of a file that holds JSON")
    if len(raw) > MAX_TEXT_BYTES:
        fail(f"{label} has more than {MAX_TEXT_BYTES} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        fail(f"{label} is not UTF-8: byte {err.start}")


def _check_regular(found: os.stat_result, label: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        fail(f"{label} cannot be read: it is {kind}", "write the JSON into a regular file")


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)  # a named pipe would wait for its writer


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found and found[key] != value:
            raise ValueError(f"key {key!r} stands there twice, with different values")
        found[key] = value
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def kind_of(value: Any) -> str:
    """Returns what JSON calls the type of a value."""
    names = {type(None): "null", bool: "true or false", dict: "an object", list: "a list", str: "a text"}
    return names.get(type(value), "a number" if isinstance(value, (int, float)) else type(value).__name__)


def fail(problem: str, hint: str = "") -> NoReturn:
    """Raises the error for a configuration that cannot be read at all."""
    raise ConfigError(problem, hint=hint, problems=(problem,))
