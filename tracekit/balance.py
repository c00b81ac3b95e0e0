"""Workers side by side, step by step: how unlike they are, who is slowest, and what the others would wait.

Ranks of tensor parallel meet at every collective, so the slowest one sets the pace. Workers of a pipeline run in turn:
unlike times are unlike shares of the model there, and nobody waits for them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.columns import GROUPS, check_columns
from tracekit.diff.costs import RunCosts, costs, dense
from tracekit.errors import TracekitError, UsageError
from tracekit.grid import Grid
from tracekit.reading import Run
from tracekit.table import CLOCKS, DIAGNOSTIC, counts_text, ms
from tracekit.topology import Topology

FORMATS = ("table", "markdown", "csv", "json", "jsonl")

#: Version of the JSON.
SCHEMA = 1

#: What tells workers apart cannot group what they have in common, and a step is what is compared.
_APART = ("worker", "stream", "rank", "device", "step", "run")

#: Worker columns that a table for people has room for.
_MOST_WORKERS = 8

_TOTAL = "total"


@dataclass(frozen=True, slots=True)
class Balance:
    """The workers of one run, family and clock.

    Attributes:
        label: what the logs are called.
        per: step, or call where nothing tells how many steps there were: then there is no total.
        steps: how many steps all workers have; 0 where single steps are not known, and means are compared.
        frame: the groups; mean_ns (over workers and steps), spread_ns (mean over the steps of longest less shortest),
            spread (its part of the mean), slowest (worker that most often is), slowest_share (of the steps, as a part
            of 1), wait_ns (per step, what all others would wait for the slowest), missing_calls (over all steps,
            against the worker with most), workers (worker, per_step_ns, calls); the most wait first. In a pipeline
            wait_ns and missing_calls are null, and the largest spread stands first.
        total: the same of the whole step, one row.
        notes: why a number may not be what it seems.
    """

    label: str
    family: str
    clock: str
    by: tuple[str, ...]
    topology: Topology
    workers: tuple[str, ...]
    per: str
    steps: int
    frame: pl.DataFrame
    total: pl.DataFrame
    notes: tuple[str, ...]


def balance(
    run: Run, by: Sequence[str] = ("op",), *, where: Sequence[str] = (), arrangement: str | None = None
) -> list[Balance]:
    """Set the workers of each run, family and clock side by side.

    Args:
        run: what `tracekit.read` returned.
        by: what labels are made of: of `columns.GROUPS`, but none that tells workers or steps apart.
        where, arrangement: as in `bucketing.buckets`.

    Raises:
        UsageError: a column that does not exist or cannot be used here.
        TracekitError: there are no two workers of one engine.
    """
    by = tuple(dict.fromkeys(by))
    check_columns(by)
    if unfit := [c for c in by if c in _APART]:
        fit = ", ".join(c for c in GROUPS if c not in _APART)
        raise UsageError(f"workers cannot be compared by {unfit[0]}, which tells them or their steps apart; take {fit}")
    found = costs(run, run.label, by, where, arrangement)
    several = [one for one in found if one.counts.height > 1]
    if not several:
        seen = sorted({w for one in found for w in one.workers})
        raise TracekitError(
            f"there is nothing to balance: {'only ' + ', '.join(seen) if seen else 'no worker'} has cost in what was "
            "selected; give the logs of all workers or ranks"
        )
    return [_balance(one, by, one.topology) for one in several]


def _balance(run: RunCosts, by: tuple[str, ...], how: Topology) -> Balance:
    steps, notes = _shared(run)
    if run.per == "step" and not run.steps.height:
        steps = pl.DataFrame({"step": [None], "place": [0]}, schema={"step": pl.UInt32, "place": pl.UInt32})
    if not run.steps.height:
        notes.append("single steps are not known: means are compared, and how often a worker is slowest is not")
    whole = run.cells.with_columns(pl.lit(_TOTAL).alias(_TOTAL))
    frame, total = (_rows(run, whole, keys, steps, how) for keys in (by, (_TOTAL,)))
    if how == "pipeline":
        notes.append(
            "workers run in turn (--topology): their times add to the step, and unlike times are unlike shares of the "
            "model; nobody waits for the slowest unless several requests are under way at once"
        )
    elif (run.cells["category"] == "collective").any():
        notes.append("a collective ends when the slowest rank arrives: the late rank is short in it, the others long")
    if run.per == "call":
        total = total.clear()
    order = "spread_ns" if how == "pipeline" else "wait_ns"
    frame = frame.sort(pl.col(order), *by, descending=[True, *[False] * len(by)])
    counted = steps.height if run.steps.height else 0
    return Balance(
        run.label,
        run.family,
        run.clock,
        by,
        how,
        tuple(run.workers),
        run.per,
        counted,
        frame,
        total,
        (*run.notes, *notes),
    )


def _shared(run: RunCosts) -> tuple[pl.DataFrame, list[str]]:
    """Return the steps that all workers have: step, place."""
    there = run.steps.group_by("step").agg(pl.col("worker").n_unique().alias("n"))
    shared = there.filter(pl.col("n") == run.counts.height).select("step").sort("step").with_row_index("place")
    if run.steps.height and shared.is_empty():
        raise TracekitError(f"{run.label}: no step is there in all of {', '.join(run.workers)}; see `tracekit steps`")
    lost = there.height - shared.height
    return shared, [f"{lost} steps that not all workers have are left out"] if lost else []


def _rows(
    run: RunCosts, cells: pl.DataFrame, keys: tuple[str, ...], steps: pl.DataFrame, how: Topology
) -> pl.DataFrame:
    labels = cells.select(keys).unique(maintain_order=True).sort(keys)
    times, calls = _arrays(run, cells, keys, labels, steps)
    most, least = times.max(axis=0), times.min(axis=0)
    mean = times.mean(axis=(0, 2))
    spread = (most - least).mean(axis=1)
    first = times.argmax(axis=0)
    unlike = most > least
    often = np.stack([((first == w) & unlike).sum(axis=1) for w in range(len(times))])
    slowest = often.argmax(axis=0)
    known = unlike.any(axis=1)
    share = often.max(axis=0) / times.shape[2] if run.steps.height else np.full(len(mean), np.nan)
    wait = (most - times).sum(axis=0).mean(axis=1)
    missing = (calls.max(axis=0) - calls).sum(axis=0)
    names = run.workers
    per_worker = [
        [{"worker": w, "per_step_ns": round(float(times[i, k].mean())), "calls": int(calls[i, k])}
         for i, w in enumerate(names)]
        for k in range(labels.height)
    ]  # fmt: skip
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.where(mean > 0, spread / mean, np.nan)
    kind = pl.List(pl.Struct({"worker": pl.String, "per_step_ns": pl.Int64, "calls": pl.Int64}))
    return labels.with_columns(
        pl.Series("mean_ns", np.rint(mean).astype(np.int64)),
        pl.Series("spread_ns", np.rint(spread).astype(np.int64)),
        pl.Series("spread", part, nan_to_null=True),
        pl.Series("slowest", [names[w] if k else None for w, k in zip(slowest, known, strict=True)], dtype=pl.String),
        pl.Series("slowest_share", np.where(known, share, np.nan), nan_to_null=True),
        pl.Series("wait_ns", np.rint(wait).astype(np.int64) if how == "parallel" else [None] * len(wait), pl.Int64),
        pl.Series("missing_calls", missing if how == "parallel" else [None] * len(missing), pl.Int64),
        pl.Series("workers", per_worker, dtype=kind),
    )


def _arrays(
    run: RunCosts, cells: pl.DataFrame, keys: tuple[str, ...], labels: pl.DataFrame, steps: pl.DataFrame
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return the times [workers, labels, steps] and the calls [workers, labels] in those steps."""
    times, calls = [], []
    for worker, count in run.counts.sort(pl.col("worker").replace_strict(_places(run))).iter_rows():
        mine = cells.filter(pl.col("worker") == worker).group_by(*keys, "step").agg(pl.col("self_ns", "calls").sum())
        if run.steps.height:
            mine, per = mine.join(steps, on="step"), 1.0
        else:  # one mean per worker
            mine = mine.group_by(keys).agg(pl.col("self_ns", "calls").sum()).with_columns(pl.lit(0).alias("place"))
            per = count
        width = max(1, steps.height)
        if run.per == "call":
            mine = mine.with_columns(pl.col("self_ns") / pl.col("calls"))
        times.append(dense(mine, labels, keys, "place", "self_ns", width) / per)
        calls.append(dense(mine, labels, keys, "place", "calls", width).sum(axis=1).astype(np.int64))
    return np.stack(times), np.stack(calls)


def _places(run: RunCosts) -> dict[str, int]:
    return {worker: place for place, worker in enumerate(run.workers)}


def render(found: Sequence[Balance], ledger: Mapping[str, Any], form: str, limit: int | None) -> str:
    """Return balances in one of `FORMATS`; CSV carries the workers as JSON.

    Args:
        found: what `balance` returned.
        ledger: the coverage, as `table.ledger_json` returns it.
        limit: rows of each, None for all.
    """
    if form in ("table", "markdown"):
        markdown = form == "markdown"
        return "\n".join([*(text(b, limit, markdown=markdown) for b in found), counts_text(ledger, markdown=markdown)])
    heads = [(b, b.frame if limit is None else b.frame.head(limit)) for b in found]
    if form == "json":
        about = [
            {"label": b.label, "family": b.family, "clock": b.clock, "topology": b.topology, "by": list(b.by),
             "workers": list(b.workers), "per": b.per, "steps": b.steps, "notes": list(b.notes),
             "total": next(iter(b.total.drop(_TOTAL).to_dicts()), None), "rows": frame.to_dicts()}
            for b, frame in heads
        ]  # fmt: skip
        return json.dumps({"schema": SCHEMA, "balances": about, "coverage": ledger}) + "\n"
    rows = [{"label": b.label, "family": b.family, "clock": b.clock, **row} for b, f in heads for row in f.to_dicts()]
    if form == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows)
    frames = []
    for b, frame in heads:
        packed = pl.Series("workers", [json.dumps(w) for w in frame["workers"].to_list()], dtype=pl.String)
        about_logs = [pl.lit(v).alias(c) for c, v in (("label", b.label), ("family", b.family), ("clock", b.clock))]
        frames.append(frame.with_columns(packed).select(*about_logs, pl.all()))
    return pl.concat(frames).write_csv()


def text(found: Balance, limit: int | None, *, markdown: bool) -> str:
    """Return one balance for people: labels down, workers across in ms per step."""
    return grid(found, limit).text(markdown=markdown)


def grid(found: Balance, limit: int | None) -> Grid:
    """Return one balance as words."""
    shown = found.frame if limit is None else found.frame.head(limit)
    wide = len(found.workers) <= _MOST_WORKERS
    headers = [*found.by, *(f"{w} ms" for w in found.workers if wide), *(["mean ms"] if not wide else []), "spread %",
               "slowest", "in % of steps", "others wait ms", "missing calls"]  # fmt: skip
    rows = [_cells(row, found.by, wide=wide) for row in shown.iter_rows(named=True)]
    for row in found.total.iter_rows(named=True):
        whole = dict.fromkeys(found.by, "") | {found.by[0]: _TOTAL}
        rows.append(_cells(whole | row, found.by, wide=wide))
    steps = f"mean of {found.steps} steps" if found.steps else f"means per {found.per}"
    heading = f"{found.family}, balance of {len(found.workers)} workers ({found.topology}; {steps}; {DIAGNOSTIC})"
    footer = [CLOCKS.get(found.clock, found.clock)]
    if found.frame.height > shown.height:
        footer.append(f"{found.frame.height - shown.height} more rows (--limit 0 shows all)")
    return Grid(heading, headers, rows, (*found.by, "slowest"), (*footer, *found.notes), sums=found.total.height)


def _cells(row: Mapping[str, Any], by: Sequence[str], *, wide: bool) -> list[str]:
    groups = ["-" if row[c] is None else str(row[c]) for c in by]
    times = [ms(w["per_step_ns"]) for w in row["workers"]] if wide else [ms(row["mean_ns"])]
    spread = "-" if row["spread"] is None else f"{100 * row['spread']:.1f}"
    often = "-" if row["slowest_share"] is None else f"{100 * row['slowest_share']:.0f}"
    most = max(w["calls"] for w in row["workers"])
    lost = [f"{w['worker']} {most - w['calls']}" for w in row["workers"] if w["calls"] < most]
    missing = "-" if row["missing_calls"] is None else ", ".join(lost) or "0"
    return [*groups, *times, spread, row["slowest"] or "-", often, ms(row["wait_ns"]), missing]
