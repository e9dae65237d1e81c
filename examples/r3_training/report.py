"""What the runs amount to: the gate that they must pass, the table that people read, the document for --json."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import fmean

from train import Figures

LEAST_DISAGREEMENT = 0.005  # share of router decisions; less would leave replay nothing to cure
LEAST_RATIO = 5.0
LEAST_KL = 1e-12  # nats; instead of dividing by zero


@dataclass(frozen=True)
class Run:
    """One seed: the same training twice.

    Attributes:
        seed: Of weights, prompts and sampling.
        plain: Figures of the logged steps without replay.
        replay: The same steps with replay.
        seconds: How long both took.
    """

    seed: int
    plain: list[Figures]
    replay: list[Figures]
    seconds: float

    @property
    def disagreement(self) -> float:
        """Mean share of router decisions that disagree without replay."""
        return fmean(each.disagreement for each in self.plain)

    @property
    def ratio(self) -> float:
        """How many times lower the KL is with replay, means over the logged steps."""
        return fmean(each.kl for each in self.plain) / max(fmean(each.kl for each in self.replay), LEAST_KL)


def problems(runs: list[Run]) -> list[str]:
    """Returns what the runs should show and do not."""
    found = []
    for run in runs:
        if run.disagreement <= LEAST_DISAGREEMENT:
            found.append(
                f"seed {run.seed}: without replay {run.disagreement:.2%} of the router decisions disagree, "
                f"not more than {LEAST_DISAGREEMENT:.1%}"
            )
        higher = [str(a.step) for a, b in zip(run.plain, run.replay, strict=True) if not b.kl < a.kl]
        if higher:
            found.append(f"seed {run.seed}: with replay the KL is not lower at step {', '.join(higher)}")
        if not run.ratio >= LEAST_RATIO:
            found.append(f"seed {run.seed}: with replay the KL is {run.ratio:.1f} times lower, not {LEAST_RATIO:.0f}")
    return found


def document(runs: list[Run]) -> dict[str, object]:
    """Returns the runs and the verdict as values for JSON."""
    return {
        "seeds": [{**asdict(run), "disagreement": run.disagreement, "kl_ratio": run.ratio} for run in runs],
        "problems": problems(runs),
    }


def lines(run: Run) -> Iterator[str]:
    """Yields the table of one seed."""
    yield f"seed {run.seed}        disagreement          KL(engine || trainer)        reward"
    yield "  step    plain   replay       plain    replay   ratio   plain  replay"
    for a, b in zip(run.plain, run.replay, strict=True):
        ratio = a.kl / max(b.kl, LEAST_KL)
        yield (
            f"{a.step:6d}  {a.disagreement:7.2%}  {b.disagreement:7.2%}   {a.kl:9.2e} {b.kl:9.2e}  {ratio:5.0f}x"
            f"   {a.reward:5.2f}   {b.reward:5.2f}"
        )
    yield (
        f"  mean  {run.disagreement:7.2%}  {fmean(b.disagreement for b in run.replay):7.2%}   "
        f"{fmean(a.kl for a in run.plain):9.2e} {fmean(b.kl for b in run.replay):9.2e}  {run.ratio:5.0f}x"
        f"   (both in {run.seconds:.0f} s)"
    )
