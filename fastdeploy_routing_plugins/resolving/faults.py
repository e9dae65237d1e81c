"""What goes wrong in a plugin's code, and the error that says whose fault it is."""

from __future__ import annotations

import importlib
import os
import traceback
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import InvalidPluginError, MissingDependencyError, ResolveError, StoreLoadError
from ..spec import StoreSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..discovery import Candidate

T = TypeVar("T")


def attempt(action: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Runs a plugin's code; everything that goes wrong in it comes back, but for the user's own interrupt."""
    try:
        return action(), None
    except KeyboardInterrupt:
        raise
    except BaseException as err:  # noqa: BLE001 - a plugin may raise anything, SystemExit included
        return None, err


def import_error(candidate: Candidate, module: str, err: BaseException) -> ResolveError:
    """Returns the error for a plugin module whose import fails: its own fault, its packaging's, or a dependency's."""
    if isinstance(err, ModuleNotFoundError) and err.name:
        package = module.rpartition(".")[0] or module
        if err.name == module or module.startswith(f"{err.name}.") or err.name.startswith(f"{package}."):
            return packaging_fault(candidate, f"module {err.name!r} is not there")
        return missing_dependency(candidate, err, "its plugin module")
    return plugin_fault(candidate, f"import of {module!r}", err)


def missing_dependency(
    candidate: Candidate, err: ImportError, what: str, install_hint: str = ""
) -> MissingDependencyError:
    """Returns the error for something that a plugin could not import.

    Args:
        candidate: The plugin.
        err: What the import raised.
        what: What was being done, for example ``"create"``.
        install_hint: The spec's, if it got that far.
    """
    if isinstance(err, ModuleNotFoundError) and err.name:
        reason = f"module {err.name!r}, which is not installed"
    else:
        reason = f"something that cannot be imported: {text_of(err)}"
    hint = install_hint or f"install what {candidate.distribution} {candidate.version} needs"
    if (err.name or "").startswith("fastdeploy_routing_plugins"):
        hint = f"{candidate.distribution} {candidate.version} is written for another fastdeploy-routing-plugins"
    return MissingDependencyError(
        f"store {candidate.name!r} cannot be used: {what} needs {reason}",
        hint=hint,
        module=err.name or "",
        name=candidate.name,
    )


def plugin_fault(candidate: Candidate, what: str, err: BaseException) -> StoreLoadError:
    """Returns the error for a plugin whose code fails."""
    whose = f"{candidate.distribution} {candidate.version} ({candidate.location})"
    ours = candidate.distribution == "fastdeploy-routing-plugins"
    return StoreLoadError(
        f"store {candidate.name!r} cannot be loaded: {what} failed with {text_of(err)}{_place(err)}",
        hint=f"the fault is in {whose}" + ("" if ours else ", not in fastdeploy-routing-plugins"),
        name=candidate.name,
    )


def packaging_fault(candidate: Candidate, reason: str) -> StoreLoadError:
    """Returns the error for metadata that promises what is not there."""
    return StoreLoadError(
        f"store {candidate.name!r} cannot be loaded: {reason}",
        hint=f"{candidate.distribution} {candidate.version} ({candidate.location}) is packaged wrongly or only partly "
        "installed; reinstall it or tell its author",
        name=candidate.name,
    )


def invalid(candidate: Candidate, reason: str, hint: str = "") -> InvalidPluginError:
    """Returns the error for a plugin that does something else than the contract says."""
    return InvalidPluginError(
        f"store {candidate.name!r} of {candidate.distribution} {candidate.version} ({candidate.target}) does not "
        f"follow the contract: {reason}",
        hint=hint,
        name=candidate.name,
    )


def short(value: Any) -> str:
    """Returns a short description of any value that a plugin came up with."""
    if isinstance(value, StoreSpec):
        return repr(value)
    if isinstance(value, (list, tuple)) and any(isinstance(item, StoreSpec) for item in value):
        return f"a {type(value).__name__} of {len(value)}: {', '.join(map(short, value))}"
    text = repr(value) if isinstance(value, (str, int, float, tuple, type(None))) else ""
    return text if text and len(text) <= 60 else f"a {type(value).__name__}"


def text_of(err: BaseException) -> str:
    """Returns an exception's type and the first line of its text."""
    lines = str(err).strip().splitlines()
    return f"{type(err).__name__}: {lines[0][:300]}" if lines else type(err).__name__


def _place(err: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(err.__traceback__) if not frame.filename.startswith("<")]
    ours = os.path.dirname(__file__)
    mine = [f for f in frames if f.filename != importlib.__file__ and os.path.dirname(f.filename) != ours]
    return f" at {mine[-1].filename}, line {mine[-1].lineno}" if mine else ""
