"""The budget of a step: what was timed, by category and worker, against what a throughput implies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl

from tracekit import stepping
from tracekit.errors import TracekitError
from tracekit.topology import Topology, topology


@dataclass(frozen=True, slots=True)
class Budget:
    """Milliseconds of one step.

    Attributes:
        family, topology: whose workers, and how they share a step.
        workers, steps: how many there are; the means are of so many steps a worker.
        tokens: rows of the batch in a step (1 where not known).
        frame: worker, category, per_step_ns (mean over the steps): what counts.
        per_step_ns: their sum: all workers in a pipeline, the slowest in parallel.
        median_step_ns: the median over the steps, beside the mean.
        implied_ns: what the throughput implies for a step; None if none was given.
    """

    family: str
    topology: Topology
    workers: int
    steps: int
    tokens: float
    frame: pl.DataFrame
    per_step_ns: int
    median_step_ns: int
    implied_ns: int | None

    @property
    def outside_ns(self) -> int | None:
        """Time of the step that no timed operation holds; None where timing made the step longer than it is."""
        if self.implied_ns is None or self.implied_ns < self.per_step_ns:
            return None
        return self.implied_ns - self.per_step_ns

    @property
    def inflation(self) -> float | None:
        """How many times longer the timed step is than the clean one; None where it is not."""
        if self.implied_ns is None or self.implied_ns >= self.per_step_ns:
            return None
        return self.per_step_ns / self.implied_ns

    def as_json(self) -> dict[str, Any]:
        """Return the budget as JSON values, durations in integer nanoseconds."""
        return {
            "family": self.family,
            "topology": self.topology,
            "steps": self.steps,
            "tokens_per_step": self.tokens,
            "per_step_ns": self.per_step_ns,
            "median_step_ns": self.median_step_ns,
            "implied_ns": self.implied_ns,
            "outside_ns": self.outside_ns,
            "inflation": self.inflation,
            "rows": self.frame.to_dicts(),
        }


class Readable(stepping.Readable, Protocol):
    """What budgets are made from: see `reading.Run`."""

    @property
    def families(self) -> dict[str, str]:
        """The family of each dialect."""

    @property
    def topology(self) -> str | None:
        """How workers share a step, if the logs' capture tells."""


def budgets(
    run: Readable,
    *,
    where: Sequence[str] = (),
    arrangement: str | None = None,
    tok_s: float | None = None,
    decoding: bool = False,
) -> list[Budget]:
    """Return a budget per family; none where no step was found.

    Args:
        run: what `tracekit.read` returned.
        where: filters as in `bucketing.buckets`.
        arrangement: how workers share a step; if not given, as the logs' capture says, else by family.
        tok_s: see `budget`.
        decoding: of decode steps only, where phases are known.
    """
    found = stepping.steps(run, where=where)
    if decoding:
        found = _decoding(found)
    named = found.with_columns(
        pl.col("dialect").cast(pl.String).replace_strict(run.families, default="").alias("family")
    )
    return [
        budget(part.drop("family"), str(family), topology(str(family), arrangement or run.topology), tok_s)
        for (family,), part in named.group_by("family", maintain_order=True)
    ]


def budget(steps: pl.DataFrame, family: str, topology: Topology, tok_s: float | None) -> Budget:
    """Make the budget of a mean step.

    Args:
        steps: of one family and phase, as `stepping.steps` returns them.
        family, topology: see `Budget`.
        tok_s: tokens per second of a run of the same work.

    Raises:
        TracekitError: there are no steps.
    """
    if steps.is_empty():
        raise TracekitError("no step was found in these logs, so there is no budget of one; see `tracekit steps`")
    counts = steps.group_by("worker").agg(pl.len().alias("n"), pl.col("dur_ns").sum())
    spent = pl.concat([_spent(steps), _untold(steps)]).join(counts.select("worker", "n"), on="worker")
    spent = spent.select(
        "worker", "category", (pl.col("self_ns") / pl.col("n")).round().cast(pl.Int64).alias("per_step_ns")
    ).sort("per_step_ns", "worker", "category", descending=[True, False, False])
    totals = counts.with_columns((pl.col("dur_ns") / pl.col("n")).alias("mean"))
    middle = steps.group_by("worker").agg(pl.col("dur_ns").median().alias("median"))
    workers = totals.join(middle, on="worker")
    if topology == "parallel":
        workers = workers.sort("mean", "worker", descending=[True, False]).head(1)
        spent = spent.join(workers, on="worker", how="semi")
    per_step, median = (round(float(workers[c].sum())) for c in ("mean", "median"))
    tokens = _tokens(steps)
    implied = None if tok_s is None else round(1e9 * tokens / tok_s)
    return Budget(family, topology, counts.height, max(counts["n"].to_list()), tokens, spent, per_step, median, implied)


def _decoding(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the decode steps, if phases are known."""
    decode = steps.filter(pl.col("phase").cast(pl.String) == "decode")
    return steps if decode.is_empty() else decode


def _spent(steps: pl.DataFrame) -> pl.DataFrame:
    """Return worker, category, self_ns: what is known."""
    rows = steps.explode("categories").select("worker", pl.col("categories").struct.unnest())
    return rows.group_by("worker", "category").agg(pl.col("self_ns").sum()).filter(pl.col("self_ns") != 0)


def _untold(steps: pl.DataFrame) -> pl.DataFrame:
    """Return per worker the time whose category is not known (summaries do not always tell)."""
    known = pl.col("categories").list.eval(pl.element().struct.field("self_ns")).list.sum()
    rest = steps.group_by("worker").agg((pl.col("dur_ns") - known.fill_null(0)).sum().alias("self_ns"))
    return rest.filter(pl.col("self_ns") != 0).select("worker", pl.lit("not told").alias("category"), "self_ns")


def _tokens(steps: pl.DataFrame) -> float:
    mean = steps["tokens"].mean()
    return float(mean) if isinstance(mean, int | float) else 1.0


def sentences(budget: Budget) -> list[str]:
    """Return what the budget comes to, in sentences."""
    pipeline = budget.topology == "pipeline"
    how = "added along the pipeline" if pipeline else "the slowest counts: they run side by side"
    timed, clean = budget.per_step_ns / 1e6, (budget.implied_ns or 0) / 1e6
    said = [f"timed {timed:.3f} ms per step ({budget.workers} workers, {how}; mean of {budget.steps} steps)"]
    if budget.inflation is not None:
        ratio = f"timed {timed:.1f} ms, clean {clean:.1f} ms: {budget.inflation:.1f} times"
        said.append(f"{ratio}; use the shares, not the times")
    elif budget.outside_ns is not None:
        outside = budget.outside_ns / 1e6
        said.append(f"the throughput implies {clean:.3f} ms per step: {outside:.3f} ms outside of the timed operations")
    return said
