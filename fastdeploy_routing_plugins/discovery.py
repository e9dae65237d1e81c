"""Which stores are installed, from the metadata of distributions alone: nothing of a plugin is imported.

Only distributions that declare our entry point group are looked at closely, so a scan of a large environment stays
cheap. What cannot be read is noted and never stops the rest.
"""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import importlib_metadata

from .spec import ENTRY_POINT_GROUP

if TYPE_CHECKING:
    from collections.abc import Iterator

Dist = Any  # a distribution; its type's name differs between the supported versions of importlib_metadata

# What unreadable or nonsensical metadata raises, depending on the file and on the version of importlib_metadata.
_UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError)


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A store that some installed distribution offers.

    Attributes:
        name: The entry point's name, the value of ``routing_store_type``.
        target: Where its plugin is, ``module`` or ``module:attribute``.
        distribution: The distribution's name in normalised form, for example ``fd-routing-sqlite``.
        version: The distribution's version.
        location: The folder (or file) that holds the distribution's metadata.
    """

    name: str
    target: str
    distribution: str
    version: str
    location: str

    def __str__(self) -> str:
        return f"{self.target} of {self.distribution} {self.version}"


@dataclass(frozen=True, slots=True)
class Hidden:
    """A store that is installed but out of sight: other metadata of its package comes first on the path.

    Attributes:
        candidate: What would be offered.
        by_version: The version that the metadata in front states.
        by_location: The folder of the metadata in front.
    """

    candidate: Candidate
    by_version: str
    by_location: str


@dataclass(frozen=True, slots=True)
class Scan:
    """Everything one look at the installed distributions found.

    Attributes:
        candidates: What is offered, sorted.
        hidden: What stale metadata hides.
        problems: One sentence for each distribution that could not be read.
    """

    candidates: tuple[Candidate, ...]
    hidden: tuple[Hidden, ...]
    problems: tuple[str, ...]


def discover(*, refresh: bool = False) -> tuple[Candidate, ...]:
    """Returns the stores that are installed, sorted by name; no plugin is imported.

    Args:
        refresh: Look again, instead of returning what this process saw before on the same ``sys.path``.
    """
    return scan(refresh=refresh).candidates


def scan(*, refresh: bool = False) -> Scan:
    """Returns what is installed, what is hidden and what could not be read; see ``discover``."""
    if refresh:
        _scan.cache_clear()
        importlib.invalidate_caches()
    return _scan(tuple(sys.path))


def normalise(distribution: str) -> str:
    """Returns a distribution's name in the form in which names are compared (lower case, ``-`` between words)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


@lru_cache(maxsize=1)
def _scan(path: tuple[str, ...]) -> Scan:
    offered: dict[tuple[str, str, str], Candidate] = {}
    hidden: dict[tuple[str, str, str], Hidden] = {}
    problems: list[str] = []
    for dist in importlib_metadata.distributions(path=list(path)):
        try:
            mine = _declared(dist)
            if not mine:
                continue
            front = _in_front(mine[0].distribution, path)
            theirs = mine if front is None or _location(front) == mine[0].location else _declared(front)
        except _UNREADABLE as err:
            problems.append(f"the metadata in {_location(dist)} cannot be read: {type(err).__name__}: {err}")
            continue
        for found in theirs:
            offered.setdefault((found.name, found.distribution, found.target), found)
        known = {found.name for found in theirs}
        for found in mine:
            if front is not None and found.name not in known:
                key = found.name, found.distribution, found.target
                hidden.setdefault(key, Hidden(found, _version(front), _location(front)))
    return Scan(tuple(sorted(offered.values())), tuple(hidden.values()), tuple(dict.fromkeys(problems)))


def _declared(dist: Dist) -> list[Candidate]:
    text = dist.read_text("entry_points.txt")
    if not text or ENTRY_POINT_GROUP not in text:
        return []
    entries = _entries(text)
    if not entries:
        return []
    name, version, location = normalise(_name(dist)), _version(dist), _location(dist)
    return [Candidate(entry, _target(value), name, version, location) for entry, value in entries]


def _entries(text: str) -> list[tuple[str, str]]:
    """Returns the names and values of our group, malformed ones too: some versions of the library refuse them all."""
    group = ""
    found = []
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif group == ENTRY_POINT_GROUP and line and not line.startswith(("#", ";")):
            name, mark, value = line.partition("=")
            if not mark:
                raise ValueError(f"entry point {line!r} has no value")
            found.append((name.strip(), value.strip()))
    return found


def _target(value: str) -> str:
    return re.sub(r"\[.*\]$", "", "".join(value.split()))  # extras of an entry point mean nothing any more


def _in_front(distribution: str, path: tuple[str, ...]) -> Dist | None:
    """Returns the first distribution of this name on the path; remains without metadata do not count."""
    return next(_readable(distribution, path), None)


def _readable(distribution: str, path: tuple[str, ...]) -> Iterator[Dist]:
    for dist in importlib_metadata.distributions(name=distribution, path=list(path)):
        try:
            if normalise(_name(dist)) == distribution and _version(dist):
                yield dist
        except _UNREADABLE:
            continue


def _name(dist: Dist) -> str:
    return _field(dist, "Name")


def _version(dist: Dist) -> str:
    return _field(dist, "Version")


def _field(dist: Dist, field: str) -> str:
    for file in ("METADATA", "PKG-INFO", ""):
        text = dist.read_text(file)
        if text:
            head = re.split(r"\r?\n\r?\n", text, maxsplit=1)[0]
            match = re.search(rf"^{field}:[ \t]*(\S+)", head, re.MULTILINE | re.IGNORECASE)
            if match:
                return match[1]
            break
    raise ValueError(f"it states no {field.lower()}")


def _location(dist: Dist) -> str:
    return str(getattr(dist, "_path", None) or dist.locate_file(""))
