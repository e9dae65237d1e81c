"""What a check says: ``Line``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["good", "info", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Line:
    """One finding.

    Attributes:
        subject: What it is about.
        kind: ``good``: as it should be. ``info``: neither good nor bad. ``warn``: works, but not as well as it could,
            or not for everybody. ``bad``: does not work.
        text: What was found.
        cure: What to do about it; empty if nothing needs to be done.
    """

    subject: str
    kind: Kind
    text: str
    cure: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns the line as JSON has it."""
        return asdict(self)
