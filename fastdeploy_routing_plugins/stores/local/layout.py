"""Where an object lives in the store's folder, and back: ``namespace / rollout / file``.

The file is ``<choice>.<kind>.<attempt>.<object>.safetensors``. Names are taken apart strictly: components come from
``keys.encode_component`` and ``names``, so none can be ``..``, a hidden file of ours, or contain a ``/``.
"""

from __future__ import annotations

import re

from ...errors import InvalidKeyError

_SUFFIX = ".safetensors"
# What ``encode_component`` can yield. Its escape of ``.`` is ``.2e``, so no component is ``.``, ``..`` or ``.tmp``.
_ESCAPED = r"(?:[-0-9_a-z]|%[0-2][0-9a-f]|\.2[ef]|=[345][0-9a-f]|`60|~[6-9a-f][0-9a-f]){1,128}"
_COMPONENT = rf"(?:{_ESCAPED}|~x[0-9a-f]{{40}})"
_REST = r"([0-9]{6})%s([a-z][a-z0-9_]{0,31})%s([0-9]{19})%s([0-9a-z_-]{1,80})"
_NAME = re.compile(rf"({_COMPONENT})/({_COMPONENT})/{_REST % ('/', '/', '/')}", re.ASCII)
_FILE = re.compile(_REST % (r"\.", r"\.", r"\.") + re.escape(_SUFFIX), re.ASCII)
_FOLDER = re.compile(_COMPONENT, re.ASCII)


def place(name: str) -> str:
    """Returns the path below the store's folder: namespace, rollout and file, joined by ``/``.

    Raises:
        InvalidKeyError: ``name`` is not six components as this package composes them.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise InvalidKeyError(f"{name[:700]!r} is no stored name", hint="names are made by RoutingKey and object_name")
    namespace, rollout, choice, kind, attempt, what = match.groups()
    return f"{namespace}/{rollout}/{choice}.{kind}.{attempt}.{what}{_SUFFIX}"


def object_of(file: str) -> str | None:
    """Returns the last four components of the name behind a file's name, or None if the file is not ours."""
    match = _FILE.fullmatch(file)
    return None if match is None else "/".join(match.groups())


def is_folder(name: str) -> bool:
    """Whether a namespace or rollout folder of ours can be called ``name``."""
    return _FOLDER.fullmatch(name) is not None


def split_prefix(prefix: str) -> tuple[str, str | None, str | None]:
    """Splits the beginning of a name into the namespace, the rollout, and the rest.

    Returns:
        The last one that is not None may be the beginning of a component; the ones before it are whole.
    """
    namespace, *more = prefix.split("/", 2)
    return namespace, more[0] if more else None, more[1] if len(more) > 1 else None
