"""What a run found, as a document, as Markdown and as rows of tables."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fastdeploy_routing_plugins.bench.figures import ORIGINAL
from fastdeploy_routing_plugins.bench.stream import KIND
from fastdeploy_routing_plugins.wording import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastdeploy_routing_plugins.bench.figures import Figures
    from fastdeploy_routing_plugins.bench.presets import Work

_HEADERS = ("what", "files", "mean", "min", "max", "total", "p50", "p99", "bytes/s")
_ROLLOUT_HEADERS = ("a rollout end to end", "mean", "min", "max", "p50", "p99", "moved")
_ORIGINAL = "FastDeploy#5467"


@dataclass(frozen=True, slots=True)
class Table:
    """Text under headers.

    Attributes:
        headers: One for each column; the first is about the rows.
        rows: Cells.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def right(self) -> str:
        """How columns are aligned, as ``Output.table`` takes it."""
        return " " + "r" * (len(self.headers) - 1)

    def markdown(self) -> str:
        """Returns it as Markdown."""
        lines = [self.headers, ("---", *["---:"] * (len(self.headers) - 1)), *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


@dataclass(frozen=True, slots=True)
class Report:
    """A run's result.

    Attributes:
        work: What was moved.
        rounds: How often.
        warm_up: Rounds before, that do not count.
        files: Figures of the arrays.
        rollouts: Figures of the rollout end to end.
        left_out: Why something was not measured, by its name.
        failed: Why a candidate was given up in the middle, by its name.
        machine: On what.
        versions: Of what is installed.
    """

    work: Work
    rounds: int
    warm_up: int
    files: Sequence[Figures]
    rollouts: Sequence[Figures]
    left_out: dict[str, str]
    failed: dict[str, str]
    machine: dict[str, str]
    versions: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as a JSON document; seconds and bytes."""
        names = ("name", "count", "mean", "min", "max", "total")
        work = {**asdict(self.work), "bytes": self.work.nbytes, "padded_bytes": self.work.padded_bytes}
        return {
            "ok": not self.failed,
            "preset": self.work.name,
            "work": {**work, "rollout_bytes": self.work.rollout_bytes},
            "rounds": self.rounds,
            "warm_up": self.warm_up,
            "files": [asdict(each) for each in self.files],
            "rollouts": [asdict(each) for each in self.rollouts],
            "shares": [{"of": what, "share": share} for what, share in self.shares()],
            "original": [dict(zip(names, line, strict=True)) for line in ORIGINAL] if self.is_paper else [],
            "left_out": self.left_out,
            "failed": self.failed,
            "machine": self.machine,
            "versions": self.versions,
        }

    @property
    def is_paper(self) -> bool:
        """Whether what the original change measured stands beside."""
        return self.work.name == "paper"

    def tables(self) -> list[Table]:
        """Returns what was measured, and beside it what the original change says of itself."""
        rows = [_row(each) for each in self.files]
        if self.is_paper:
            rows += [
                (f"{_ORIGINAL}: {name}", f"{count}/{count}", *map(show_ms, times), "", "", "")
                for name, count, *times in ORIGINAL
            ]
        tables = [Table(_HEADERS, rows)]
        if self.rollouts:
            tables.append(Table(_ROLLOUT_HEADERS, [_rollout_row(each) for each in self.rollouts]))
        return tables

    def shares(self) -> list[tuple[str, float]]:
        """Returns the rate of each batch as a share of the plain stream's."""
        batches = [
            each for each in self.files if each.kind == "batch" and (each.candidate == KIND.name or "tcp" in each.name)
        ]
        stream = next((each.rate for each in batches if each.candidate == KIND.name), 0.0)
        return [(each.name, each.rate / stream) for each in batches if stream and each.candidate != KIND.name]

    def notes(self) -> list[str]:
        """Returns lines about what the tables do not say."""
        work = self.work
        lines = [
            f"{counted(work.files, 'array')} of {work.layers} x {work.tokens:,} x {work.top_k} uint8 "
            f"({work.nbytes:,} bytes), {counted(self.rounds, 'round')} after {self.warm_up} to warm up; two "
            "processes; every byte compared, outside the clock; total: of a round, median of the rounds",
            *self._rollout_notes(),
            *(f"{name} has {share:.0%} of the plain stream's rate" for name, share in self.shares()),
            *(f"not measured: {name}: {why}" for name, why in self.left_out.items()),
            *(f"failed: {name}: {why}" for name, why in self.failed.items()),
        ]
        lines += [f"{name}: {text}" for name, text in self.machine.items()]
        lines.append("versions: " + ", ".join(f"{name} {number}" for name, number in self.versions.items()))
        return lines

    def markdown(self) -> str:
        """Returns everything as Markdown."""
        return "\n\n".join(
            [*(table.markdown() for table in self.tables()), "\n".join(f"* {line}" for line in self.notes())]
        )

    def _rollout_notes(self) -> list[str]:
        work = self.work
        if not self.rollouts:
            return []
        return [
            f"end to end: {work.rollout_layers} layers x {work.rollout_tokens:,} tokens of an engine's table, "
            f"{work.table_dtype} with room for {work.max_model_len:,}. FastDeploy's way: the whole table by layer, "
            "put together by the reader; ours: the tokens that there are, as uint8, at once, with digests"
        ]


def _row(each: Figures) -> tuple[str, ...]:
    times = (each.mean, each.min, each.max, each.total, each.p50, each.p99)
    name = f"{each.name} (blocks the engine)" if each.kind == "blocked" else each.name
    return name, f"{each.count}/{each.wanted}", *map(show_ms, times), f"{each.rate / 1e9:.2f} GB/s"


def _rollout_row(each: Figures) -> tuple[str, ...]:
    times = (each.mean, each.min, each.max, each.p50, each.p99)
    return each.name, *map(show_ms, times), f"{each.nbytes / 2**20:.1f} MiB"


def show_ms(seconds: float) -> str:
    """Returns a time in milliseconds, three digits of it."""
    ms = seconds * 1e3
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.3g} ms" if ms >= 1 else f"{ms:.2g} ms"
