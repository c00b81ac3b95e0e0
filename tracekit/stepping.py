"""Model passes as rows: how long each took, what it was spent on, which stand out.

A step is one model pass of one worker. Its time is the self time of all cost in it (views and waits left out).
"""

import statistics
from collections.abc import Iterator, Sequence
from typing import Protocol

import polars as pl

from tracekit import rules
from tracekit.columns import condition, natural
from tracekit.frame import EVENTS, STEPS, Batch, conform, empty
from tracekit.passes.warmup import bench_warm_up

#: A step stands out when it deviates from the median of its phase and worker by this many robust standard
#: deviations (1.4826 x the median deviation: the usual estimate for a normal distribution) ...
_DEVIATIONS = 5.0
#: ... and by this part of the median.
_PART = 0.10

#: A leading step that takes so many times the median of the later ones, per row of its batch, looks like warm-up.
_WARM_UP_TIMES = 4.0
#: With fewer steps there is nothing to compare.
_FEW_STEPS = 6

_KEYS = ("dialect", "stream", "worker", "rank", "run", "step", "phase", "tokens")


class Readable(Protocol):
    """What steps are made from: see `reading.Run`."""

    def packed(self) -> Iterator[Batch]:
        """Yield events, packed."""

    @property
    def printed_steps(self) -> pl.DataFrame:
        """Steps that the engine itself printed."""


def steps(run: Readable, *, where: Sequence[str] = ()) -> pl.DataFrame:
    """Return one row per worker and step, in natural order; see `frame.STEPS`, and ``stands_out``.

    ``stands_out`` is the step's time relative to the median of its worker and phase where that is unusual, else
    null.
    """
    only = condition(where)
    parts = [_spent(batch, only) for batch in run.packed()]
    spent = pl.concat([p for p in parts if p.height] or [_nothing()])
    spent = spent.group_by(*_KEYS, "category").agg(pl.col("self_ns").sum(), pl.col("line").min())
    counted = (
        spent.with_columns(pl.col("category").cast(pl.String))
        .sort("self_ns", "category", descending=[True, False])
        .group_by(_KEYS)
        .agg(
            pl.col("line").min(),
            pl.col("self_ns").sum().alias("dur_ns"),
            pl.struct("category", "self_ns").alias("categories"),
        )
    )
    both = pl.concat(_once(conform(counted, STEPS), run.printed_steps.filter(_on(only))))
    return mark(both.sort(natural("worker"), "run", "step"))


def _once(counted: pl.DataFrame, printed: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """List a pass once whose calls and whose step line were both printed: its line tells the batch, its calls the cost.

    It is one pass if it stands at the same place (a process counts its step lines from 1) and took the same time, to
    the nanosecond. Else both are listed.
    """
    same = ["stream", "worker", "run", "step", "dur_ns"]
    counted = counted.with_columns(pl.col("step") + 1)
    spent = counted.select(*same, pl.col("categories").alias("spent"))
    told = printed.join(spent, on=same, how="left", maintain_order="left")
    told = told.with_columns(pl.coalesce("spent", "categories").alias("categories")).drop("spent")
    rest = counted.join(printed.select(same), on=same, how="anti", maintain_order="left")
    return rest.with_columns(pl.col("step") - 1), told


def _on(only: pl.Expr) -> pl.Expr:
    """Apply a filter to steps where it asks for columns that they have."""
    return only if set(only.meta.root_names()) <= set(STEPS) else pl.lit(value=True)


def _nothing() -> pl.DataFrame:
    return empty({c: EVENTS[c] for c in (*_KEYS, "category", "self_ns", "line")})


def _spent(batch: Batch, only: pl.Expr) -> pl.DataFrame:
    """Sum one batch's self time per step and category."""
    if "step" not in batch.rows.columns:
        return _nothing()
    columns = dict.fromkeys((*_KEYS, "category", "self_ns", "line", *only.meta.root_names()))
    frame = batch.frame({c: EVENTS[c] for c in columns})
    is_cost = ~pl.col("category").cast(pl.String).is_in(rules.NOT_COST)
    frame = frame.filter(pl.col("step").is_not_null() & is_cost & only)
    return frame.group_by(*_KEYS, "category").agg(pl.col("self_ns").sum(), pl.col("line").min())


def mark(frame: pl.DataFrame) -> pl.DataFrame:
    """Add ``stands_out`` to steps: see `steps`.

    Args:
        frame: stream, worker, run, phase, dur_ns.
    """
    groups = ["stream", "worker", "run", "phase"]
    middle = pl.col("dur_ns").median().over(groups)
    off = (pl.col("dur_ns") - middle).abs()
    unusual = (off > _DEVIATIONS * 1.4826 * off.median().over(groups)) & (off > _PART * middle)
    return frame.with_columns(pl.when(unusual).then(pl.col("dur_ns") / middle).alias("stands_out"))


def suggest_skip(spent: pl.DataFrame) -> tuple[int, str] | None:
    """Return how many leading steps look like warm-up, by their time or by their batches, and why; None if none do.

    The time of a row of the batch is compared with the median of the later steps: a prompt's step takes longer than a
    decode step, and one of its rows does not.

    Args:
        spent: worker, run, step, tokens (nullable), dur_ns: one row per step.
    """
    found = [_leading(part) for _, part in spent.sort("step").group_by("stream", "worker", "run", maintain_order=True)]
    slow = [f for f in found if f[0]]
    return max(slow) if slow else None


def _leading(steps: pl.DataFrame) -> tuple[int, str]:
    if steps.height < _FEW_STEPS:
        return 0, ""
    per_row = (steps["dur_ns"] / steps["tokens"].fill_null(1).clip(1)).to_list()
    middle = statistics.median(per_row[steps.height // 2 :])
    count = next((i for i, ns in enumerate(per_row) if ns <= _WARM_UP_TIMES * middle), 0)
    worker = steps["worker"][0]
    if not count or middle == 0:
        known = bench_warm_up(steps["tokens"].fill_null(0).to_list())
        return (known[0], f"{worker}: {known[1]}") if known else (0, "")
    leading = "the first step" if count == 1 else f"the first {count} steps"
    why = (
        f"{leading} of {worker}: warm-up? (step 0 takes {per_row[0] / middle:.0f} times the "
        f"median of the later ones, per row of the batch): --skip-steps {count} leaves out so many"
    )
    return count, why
