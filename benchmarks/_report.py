"""What was measured, what is claimed of it, and how both are shown."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Measure:
    """One candidate.

    Attributes:
        group: What it took turns within.
        what: The candidate.
        unit: Of the numbers.
        median: Over rounds, of each round's median.
        best: The least time, or the highest rate.
        better: How many times better than what the group is compared with (1), by medians.
    """

    group: str
    what: str
    unit: str
    median: float
    best: float
    better: float


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that must hold (``gate``), or is expected.

    Attributes:
        what: In words.
        value: What was measured.
        relation: ``"<="`` or ``">="``.
        limit: What it is compared with.
        unit: Of both.
        gate: Whether the benchmark fails if it does not hold.
    """

    what: str
    value: float
    relation: str
    limit: float
    unit: str
    gate: bool = True

    @property
    def holds(self) -> bool:
        """Whether it does."""
        return self.value <= self.limit if self.relation == "<=" else self.value >= self.limit

    @property
    def verdict(self) -> str:
        """What the table says."""
        return "ok" if self.holds else "MISSED" if self.gate else "expected more"


@dataclass(slots=True)
class Samples:
    """What a group's rounds gave: a list of values per round and candidate."""

    rounds: dict[str, list[list[float]]]

    @classmethod
    def of(cls, names: Iterable[str]) -> Samples:
        """Returns an empty one; tables list the candidates in this order."""
        return cls({name: [] for name in names})

    def add(self, what: str, values: list[float]) -> None:
        """Takes one round's values."""
        self.rounds[what].append(values)

    def median(self, what: str) -> float:
        """Returns the median of the rounds' medians."""
        return statistics.median([statistics.median(values) for values in self.rounds[what]])

    def measures(self, group: str, unit: str, beside: str, *, rate: bool = False) -> Iterable[Measure]:
        """Yields a line for each candidate."""
        base = self.median(beside)
        for what, rounds in self.rounds.items():
            values = [value for values in rounds for value in values]
            middle = self.median(what)
            factor = middle / base if rate else base / middle
            yield Measure(group, what, unit, middle, max(values) if rate else min(values), factor)


def show(measures: list[Measure], claims: list[Claim], facts: dict[str, Any], *, as_json: bool) -> None:
    """Prints everything, as tables or as JSON."""
    if as_json:
        lines = [{**asdict(claim), "holds": claim.holds} for claim in claims]
        print(json.dumps({**facts, "measures": [asdict(measure) for measure in measures], "claims": lines}, indent=1))
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    table = Table(title=", ".join(f"{name} {value}" for name, value in facts.items()))
    for name in ("", "candidate", "median", "best", "better"):
        table.add_column(name, justify="right" if name in ("median", "best", "better") else "left")
    last = ""
    for measure in measures:
        if measure.group != last and last:
            table.add_section()
        group, last = "" if measure.group == last else measure.group, measure.group
        numbers = [f"{value:,.0f} {measure.unit}" for value in (measure.median, measure.best)]
        table.add_row(group, measure.what, *numbers, f"{_number(measure.better)} x")
    console.print(table)
    verdicts = Table(title="gates and expectations (medians)")
    for name in ("", "what", "measured", "wanted", "verdict"):
        verdicts.add_column(name, justify="right" if name in ("measured", "wanted") else "left")
    for claim in claims:
        style = None if claim.holds else "bold red" if claim.gate else "yellow"
        wanted = f"{'≤' if claim.relation == '<=' else '≥'} {_number(claim.limit)} {claim.unit}"
        kind = "gate" if claim.gate else "expected"
        verdicts.add_row(kind, claim.what, f"{_number(claim.value)} {claim.unit}", wanted, claim.verdict, style=style)
    console.print(verdicts)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 10 else f"{value:.3g}"
