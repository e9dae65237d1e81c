"""Runs checks one after the other; none of them can hang the command, or end it."""

from __future__ import annotations

import logging
import threading
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastdeploy_routing_plugins.doctor.lines import Line
from fastdeploy_routing_plugins.errors import MissingDependencyError, RoutingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fastdeploy_routing_plugins.doctor.case import Case

    Check = Callable[[Case], Iterator[Line]]

_FAREWELL = 2.0  # s that a check gets to clean up when people interrupt
_log = logging.getLogger("fastdeploy_routing_plugins.doctor")


@dataclass(slots=True)
class Examination:
    """What the checks found.

    Attributes:
        lines: In the order of the checks.
        hung: Whether a check did not end in its time. Its thread is left behind.
    """

    lines: list[Line] = field(default_factory=list)
    hung: bool = False

    @property
    def healthy(self) -> bool:
        """Whether nothing is bad."""
        return all(line.kind != "bad" for line in self.lines)


def examine(
    case: Case, checks: Sequence[tuple[str, Check]], progress: Callable[[int], None] = lambda done: None
) -> Examination:
    """Runs checks.

    Args:
        case: What is looked at.
        checks: Subjects, for a check that fails, and the checks.
        progress: Called with the number of checks done.
    """
    result = Examination()
    for number, (subject, check) in enumerate(checks, 1):
        result.hung |= _bounded(subject, check, case, result.lines)
        progress(number)
    return result


def _bounded(subject: str, check: Check, case: Case, lines: list[Line]) -> bool:
    """Adds what a check yields within its time; returns whether it goes on."""
    found: list[Line] = []
    thread = threading.Thread(target=_run, args=(subject, check, case, found), daemon=True)
    thread.start()
    try:
        thread.join(case.timeout)
    except BaseException:
        thread.join(_FAREWELL)
        raise
    hung = thread.is_alive()
    lines += list(found)
    if hung:
        lines.append(Line(subject, "bad", f"no answer within {case.timeout:g} s", "--timeout gives it longer"))
    return hung


def _run(subject: str, check: Check, case: Case, found: list[Line]) -> None:
    try:
        for line in check(case):
            found.append(line)
    except RoutingError as err:
        found.append(failed(subject, err))
    except ImportError as err:
        found.append(Line(subject, "bad", f"cannot be looked at: {err}", _missing(err)))
    except Exception as err:  # noqa: BLE001 - a check that fails is a finding
        _log.debug("%s: %s", subject, traceback.format_exc())
        text = " ".join(str(err).split())[:200]
        found.append(
            Line(subject, "bad", f"the check itself failed: {type(err).__name__}: {text}", "run with --debug")
        )


def failed(subject: str, err: RoutingError) -> Line:
    """Returns the line for an error."""
    if isinstance(err, MissingDependencyError) and not err.hint:
        return Line(subject, "bad", err.message, "install what is missing")
    return Line(subject, "bad", err.message, err.hint)


def _missing(err: ImportError) -> str:
    name = (err.name or "").partition(".")[0]
    return f"install {name or 'what is missing'} again: pip install --force-reinstall fastdeploy-routing-plugins"
