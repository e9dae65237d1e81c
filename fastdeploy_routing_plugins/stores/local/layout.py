"""Where an object lives in the store's folder, and back: ``namespace / rollout / file``.

The file is ``<choice>.<kind>.<attempt>.<object>.safetensors``, or has another suffix. Names are taken apart strictly:
components come from ``keys.encode_component`` and ``names``, so none can be ``..``, a hidden file of ours, or contain
a ``/``.
"""

from __future__ import annotations

import re

from ...errors import InvalidKeyError

SUFFIX = ".safetensors"
# What ``encode_component`` can yield. Its escape of ``.`` is ``.2e``, so no component is ``.``, ``..`` or ``.tmp``.
_ESCAPED = r"(?:[-0-9_a-z]|%[0-2][0-9a-f]|\.2[ef]|=[345][0-9a-f]|`60|~[6-9a-f][0-9a-f]){1,128}"
_COMPONENT = rf"(?:{_ESCAPED}|~x[0-9a-f]{{40}})"
_REST = r"([0-9]{6})%s([a-z][a-z0-9_]{0,31})%s([0-9]{19})%s([0-9a-z_-]{1,80})"
_NAME = re.compile(rf"({_COMPONENT})/({_COMPONENT})/{_REST % ('/', '/', '/')}", re.ASCII)
_FILE = re.compile(_REST % (r"\.", r"\.", r"\."), re.ASCII)  # without the suffix; its parts contain no dot
_WITHIN = re.compile(rf"({_COMPONENT}/{_COMPONENT})/(.*)", re.ASCII | re.DOTALL)
_FOLDER = re.compile(_COMPONENT, re.ASCII)


def place(name: str, suffix: str = SUFFIX) -> str:
    """Returns the path below the store's folder: namespace, rollout and file, joined by ``/``.

    Raises:
        InvalidKeyError: ``name`` is not six components as this package composes them.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise InvalidKeyError(f"{name[:700]!r} is no stored name", hint="names are made by RoutingKey and object_name")
    namespace, rollout, choice, kind, attempt, what = match.groups()
    return f"{namespace}/{rollout}/{choice}.{kind}.{attempt}.{what}{suffix}"


def object_of(file: str, suffix: str = SUFFIX) -> str | None:
    """Returns the last four components of the name behind a file's name, or None if the file is not ours."""
    stem = file.removesuffix(suffix)
    return stem.replace(".", "/") if stem != file and _FILE.fullmatch(stem) else None


def is_folder(name: str) -> bool:
    """Whether a namespace or rollout folder of ours can be called ``name``."""
    return _FOLDER.fullmatch(name) is not None


def within_rollout(prefix: str) -> tuple[str, str] | None:
    """Splits the beginning of a name into the path of the rollout's folder and what follows.

    Returns:
        None if it ends before that, or if no name begins so.
    """
    match = _WITHIN.fullmatch(prefix)
    return None if match is None else (match[1], match[2])
