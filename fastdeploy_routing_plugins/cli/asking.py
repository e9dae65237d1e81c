"""Asking people before something is deleted."""

from __future__ import annotations

import sys

from fastdeploy_routing_plugins.cli.failures import UsageProblem
from fastdeploy_routing_plugins.cli.output import clean


def confirmed(question: str, verb: str) -> bool:
    """Asks on stderr and returns whether the answer is yes.

    Args:
        question: What is to be done.
        verb: What ``--yes`` does without asking, for the hint.

    Raises:
        UsageProblem: nobody answered.
    """
    print(f"{clean(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline() if sys.stdin is not None else ""
    if not answer:
        print(file=sys.stderr)
        raise UsageProblem("nobody answered", f"--yes {verb} without asking")
    return answer.strip().lower() in ("y", "yes")
