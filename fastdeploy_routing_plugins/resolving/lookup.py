"""From a store's name to the one candidate that offers it, or to an error that says what to do."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from ..errors import DuplicateStoreError, InvalidPluginError, StoreDisabledError, UnknownStoreError
from .suggest import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..discovery import Candidate, Scan

DISABLED_VARIABLE = "FD_ROUTING_STORE_DISABLED"
ALLOWED_VARIABLE = "FD_ROUTING_STORES_ALLOWED"
RESERVED = "response"
NAME_RULE = "[a-z][a-z0-9_]*"


def check_allowed(name: str, environ: Mapping[str, str]) -> None:
    """Obeys the administrator's variables.

    Raises:
        StoreDisabledError: one of them forbids the store.
    """
    disabled = environ.get(DISABLED_VARIABLE, "")
    if name in _listed(disabled):
        raise StoreDisabledError(
            f"store {name!r} is disabled by {DISABLED_VARIABLE}={disabled!r}",
            hint="choose another store, or take the name off the list",
            name=name,
            variable=DISABLED_VARIABLE,
        )
    allowed = environ.get(ALLOWED_VARIABLE)
    if allowed is not None and name not in _listed(allowed):
        raise StoreDisabledError(
            f"store {name!r} is not allowed: {ALLOWED_VARIABLE}={allowed!r} does not list it",
            hint=f"add {name!r} to {ALLOWED_VARIABLE}",
            name=name,
            variable=ALLOWED_VARIABLE,
        )


def find(name: str, distribution: str | None, scan: Scan) -> Candidate:
    """Returns the candidate that ``name`` or ``name@distribution`` means.

    Args:
        name: The store's name.
        distribution: The distribution that must offer it, in normalised form, or None for the only one that does.
        scan: What is installed.

    Raises:
        UnknownStoreError: nobody offers it, or not that distribution.
        DuplicateStoreError: more than one distribution offers it.
    """
    if name == RESERVED:
        raise UnknownStoreError(
            f"{RESERVED!r} is reserved by the engine: routing then travels in the HTTP reply and no store is used",
            hint="choose a store to have one",
            name=name,
        )
    offers = [candidate for candidate in scan.candidates if candidate.name == name]
    if not is_valid_name(name) or not offers:
        raise _unknown(name, scan)
    if distribution is not None:
        others, offers = offers, [candidate for candidate in offers if candidate.distribution == distribution]
        if not offers:
            raise UnknownStoreError(
                f"distribution {distribution!r} offers no store {name!r}; it is offered by {_list(others)}",
                hint=f"write {name}@{others[0].distribution}, or just {name}" if len(others) == 1 else "",
                name=name,
            )
    if len(offers) > 1:
        raise _duplicate(name, offers)
    return offers[0]


def check_name(name: str, scan: Scan) -> None:
    """Blames the plugin for a name that no store can have; ``find`` blames whoever asks for it.

    Raises:
        InvalidPluginError: an installed distribution offers a store of such a name.
    """
    offers = [candidate for candidate in scan.candidates if candidate.name == name]
    if offers and not is_valid_name(name):
        raise InvalidPluginError(
            f"{_list(offers)} offers a store named {name!r}, but a store's name must match {NAME_RULE}",
            hint="its author must rename the entry point",
            name=name,
        )


def is_valid_name(name: str) -> bool:
    """Tells whether ``name`` can be a store's name."""
    return re.fullmatch(NAME_RULE, name) is not None


def _listed(text: str) -> set[str]:
    return {name.strip() for name in text.split(",")}


def _list(candidates: Sequence[Candidate]) -> str:
    return ", ".join(f"{candidate.distribution} {candidate.version}" for candidate in candidates)


def _unknown(name: str, scan: Scan) -> UnknownStoreError:
    installed = tuple(sorted({candidate.name for candidate in scan.candidates if is_valid_name(candidate.name)}))
    listing = f"installed stores: {', '.join(installed) or 'none'}"
    offers = [candidate for candidate in scan.candidates if candidate.name == name]
    hidden = [other for other in scan.hidden if other.candidate.name == name]
    suggestion = None if hidden else nearest(name, installed)
    if offers:
        message = f"store {name!r} of {_list(offers)} cannot be used: a store's name must match {NAME_RULE}; {listing}"
        hint = "its author must rename the entry point"
    elif hidden:
        it, front, front_version = hidden[0].candidate, hidden[0].by_location, hidden[0].by_version
        message = (
            f"store {name!r} is hidden: {it.distribution} {it.version} in {it.location} declares it, but metadata of "
            f"{it.distribution} {front_version} in {front} comes first on the path and does not; {listing}"
        )
        hint = (
            f"remove {front} if it is left over, or uninstall {it.distribution} until it is gone and install it anew"
        )
    else:
        message = f"unknown store {name!r}; {listing}"
        hint = f"is the package that offers it installed in this environment, {sys.executable}?"
        if suggestion:
            hint = f"did you mean {suggestion!r}?"
        if not is_valid_name(name):
            message += f"; a store's name matches {NAME_RULE}"
        if scan.problems:
            message += f"; {'; '.join(scan.problems)}"
    return UnknownStoreError(message, hint=hint, name=name, installed=installed, suggestion=suggestion)


def _duplicate(name: str, offers: Sequence[Candidate]) -> DuplicateStoreError:
    distributions = sorted({candidate.distribution for candidate in offers})
    if len(distributions) > 1:
        hint = f"uninstall one, or write {' or '.join(f'{name}@{distribution}' for distribution in distributions)}"
    else:
        hint = f"its author must declare the name once; reinstall {distributions[0]} if an update went wrong"
    return DuplicateStoreError(
        f"store {name!r} is offered more than once: {', '.join(str(candidate) for candidate in offers)}",
        hint=hint,
        name=name,
        targets=tuple(str(candidate) for candidate in offers),
    )
