"""What a report holds: sections of sentences, tables and charts. Nothing here knows what it will be written as."""

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import polars as pl

from tracekit import __version__, source
from tracekit.balance import balance
from tracekit.balance import grid as balance_grid
from tracekit.bucketing import Table, buckets
from tracekit.budget import budgets
from tracekit.columns import condition
from tracekit.counting import count
from tracekit.errors import TracekitError
from tracekit.grid import Grid
from tracekit.layering import layers
from tracekit.manifest import Manifest
from tracekit.reading import Run, Selection
from tracekit.report import charts
from tracekit.stepping import steps, suggest_skip
from tracekit.table import (
    DIAGNOSTIC,
    budget_grid,
    counts_text,
    layers_grid,
    ledger_of,
    ms,
    steps_grid,
    top_grid,
    us,
)

#: Rows of the longer tables; the command that prints all is named below each.
_ROWS = 25
_STEPS = 40
_FINDINGS = 50
#: Operations whose distribution is drawn, and bins in which each factor of ten is cut.
_DRAWN = 12
_BINS = 16


@dataclass(frozen=True, slots=True)
class Chart:
    """A Vega-Lite specification and what it shows."""

    caption: str
    spec: charts.Spec


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report, in the order: sentences, command lines, charts, tables."""

    name: str
    title: str
    said: Sequence[str] = ()
    commands: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    grids: Sequence[Grid] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report; `empty` if nothing is left of what was read."""

    title: str
    sections: Sequence[Section]
    empty: bool = False


def gather(
    run: Run,
    given: Sequence[str],
    *,
    title: str | None = None,
    tok_s: float | None = None,
    where: Sequence[str] = (),
    arrangement: str | None = None,
    decoding: bool = True,
) -> Report:
    """Return the report of some logs.

    Args:
        run: what `tracekit.read` returned.
        given: the logs as the user named them.
        title: of the page; the logs' label, if not given.
        tok_s: tokens per second of a run of the same work, for the budget.
        where, arrangement: as in `bucketing.buckets`.
        decoding: whether the budget is of decode steps alone where there are several phases.
    """
    tables = buckets(run, ["op"], where=where, arrangement=arrangement)
    run.require_records()
    passes = steps(run, where=where)
    return Report(
        title or f"tracekit: {', '.join(given)}",
        [
            _identity(run, tables, where),
            _budget(run, passes, tok_s, where, arrangement, decoding=decoding),
            _top(tables, given),
            _layers(run, where),
            _steps(passes, given),
            _distributions(run, tables, where),
            _balance(run, passes, where, arrangement),
            _ledger(run),
            _trace(given),
        ],
        empty=not tables,
    )


def _identity(run: Run, tables: Sequence[Table], where: Sequence[str]) -> Section:
    captures = [(one.folder, one.manifest) for one in run.captures if one.manifest is not None]
    said = [f"Timed runs are {DIAGNOSTIC}. Use the shares, and measure speed in a run without timing."]
    if kept_only := [*where, *([run.selection.said] if run.selection else [])]:
        said.append(f"Only what matches {' and '.join(kept_only)} is in the tables.")
    if not captures:
        said.append("The logs lie in no capture directory, so what ran is not known: `tracekit run` keeps it.")
    if len(captures) > 1:
        said.append(f"{len(captures)} captures are put together here: totals add them.")
    families = ", ".join(dict.fromkeys(f"{t.family} ({t.clock})" for t in tables)) or "none in what was selected"
    logs = [[s.path, s.worker, str(source.size(s))] for s in run.streams]
    grids = [Grid("What was read", ["log", "called", "bytes"], logs, ["log", "called"], [f"engines: {families}"])]
    for folder, kept in captures:
        rows = [[key, value] for key, value in _ran(kept) if value]
        grids.append(Grid(f"What ran: {folder}", ["what", "value"], rows, ["what", "value"]))
    return Section("identity", "What this is", said, grids=grids)


def _ran(kept: Manifest) -> Iterator[tuple[str, str]]:
    """Yield what a manifest tells, as pairs of words."""
    yield "started", datetime.fromtimestamp(kept.started.wall_ns / 1e9, UTC).isoformat(" ", "seconds")
    if kept.outcome is not None:
        yield "ended", f"{kept.outcome.name}: {kept.outcome.evidence}"
    yield "capture", "whole" if kept.complete else f"not whole: {kept.capture.stopped or 'the run did not end well'}"
    yield "presets", ", ".join(kept.presets)
    yield "topology", kept.topology or ""
    for process in kept.processes:
        yield f"process {process.name}", shlex.join(process.argv)
        yield f"environment of {process.name}", " ".join(f"{k}={v}" for k, v in process.env.items())
        yield f"commit of {process.name}", process.git_commit or ""
    for key, value in kept.host.items():
        yield f"host: {key}", _words(value)
    for caveat in kept.caveats:
        yield "caveat", caveat
    yield "tracekit", kept.tracekit if kept.tracekit == __version__ else f"{kept.tracekit} (report: {__version__})"


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_words(v)}" for k, v in value.items() if v not in (None, "", [], {}))
    if isinstance(value, list):
        return "; ".join(_words(v) for v in value)
    return "" if value is None else str(value)


def _budget(
    run: Run,
    passes: pl.DataFrame,
    tok_s: float | None,
    where: Sequence[str],
    arrangement: str | None,
    *,
    decoding: bool,
) -> Section:
    """Return the budget; of decode alone where that is asked for, since a benchmark's throughput is one of decode."""
    chosen, said = _of_decode(run, passes)
    if not decoding:
        said = ["Of all steps that were selected; --phase decode leaves the others out."] if said else []
        chosen = run
    found = budgets(chosen, where=where, arrangement=arrangement, tok_s=tok_s)
    if not found:
        said.append("No step was found in these logs, so there is no budget of one.")
    if found and tok_s is None:
        said.append("With a throughput (--bench or --tok-s) the budget also tells what lies outside of what was timed.")
    drawn = [Chart(f"A mean step of {b.family} by worker and category", charts.budget_bars(b)) for b in found]
    return Section("budget", "Budget of a step", said, charts=drawn, grids=[budget_grid(b) for b in found])


def _of_decode(run: Run, passes: pl.DataFrame) -> tuple[Run, list[str]]:
    """Return the run's decode steps, and say so, where there are others too: a mean over both tells of neither."""
    phases = set(passes["phase"].cast(pl.String))
    if len(phases) < 2 or "decode" not in phases:
        return run, []
    selection = replace(run.selection or Selection(), phase="decode")
    return replace(run, selection=selection), ["Of the decode steps alone; --phase prefill asks for the others."]


def _top(tables: Sequence[Table], given: Sequence[str]) -> Section:
    said = ["Where the time goes. Shares are of self time; one table per engine and clock."]
    commands = [f"tracekit top {shlex.join(given)} --by op --limit 0"] if any(_longer(t) for t in tables) else []
    return Section("top", "Top operations", said, commands, grids=[top_grid(t, _ROWS) for t in tables])


def _longer(table: Table) -> bool:
    return table.frame.height > _ROWS


def _layers(run: Run, where: Sequence[str]) -> Section:
    found = [t for t in layers(run, where=where) if t.frame["layer"].null_count() < t.frame.height]
    said = [] if found else ["No operation in these logs names its layer."]
    drawn = [Chart(f"{t.family} ({t.clock}): self time per layer and category", charts.heat_map(t)) for t in found]
    return Section("layers", "Layers and categories", said, charts=drawn, grids=[layers_grid(t) for t in found])


def _steps(found: pl.DataFrame, given: Sequence[str]) -> Section:
    if found.is_empty():
        return Section("steps", "Steps", ["No step was found in these logs."])
    warm_up, why = suggest_skip(found) or (0, "No leading step looks like warm-up.")
    spec, left_out = charts.step_times(found, warm_up)
    said = [why, *([f"In the chart {left_out}."] if left_out else [])]
    groups = found.group_by("worker", "phase", maintain_order=True).agg(
        pl.len().alias("n"), *(getattr(pl.col("dur_ns"), f)().alias(f) for f in ("mean", "median", "min", "max"))
    )
    rows = [
        [str(r["worker"]), str(r["phase"] or "-"), str(r["n"]), *(ms(r[c]) for c in ("mean", "median", "min", "max"))]
        for r in groups.to_dicts()
    ]
    headers = ["worker", "phase", "steps", "mean ms", "median ms", "min ms", "max ms"]
    odd = found.filter(pl.col("stands_out").is_not_null()).sort("dur_ns", descending=True)
    footer = [f"{odd.height - _STEPS} more stand out"] if odd.height > _STEPS else []
    grids = [Grid("Steps by phase", headers, rows, ["worker", "phase"])]
    if odd.height:
        grids.append(replace(steps_grid(odd.head(_STEPS)), heading="Steps that stand out", footer=footer))
    commands = [f"tracekit steps {shlex.join(given)} --limit 0"]
    return Section("steps", "Steps", said, commands, [Chart("Time of each step, in order", spec)], grids)


def _distributions(run: Run, tables: Sequence[Table], where: Sequence[str]) -> Section:
    counts = count(run, ["op"], condition(where)).durations
    family = pl.col("dialect").cast(pl.String).replace_strict(run.families, default="")
    drawn, grids = [], []
    for table in tables:
        top = table.frame.filter((pl.col("basis") == "events") & pl.col("share").is_not_null()).head(_DRAWN)
        if top.is_empty():
            continue
        mine = counts.filter((family == table.family) & (pl.col("clock").cast(pl.String) == table.clock))
        spec = charts.distributions(_bins(top, mine, table.resolution_ns))
        drawn.append(
            Chart(f"{table.family} ({table.clock}): durations of the calls, median (line), mean (dashes)", spec)
        )
        rows = [
            [str(r["op"]), str(r["calls"]), *(us(r[f"{c}_ns"]) for c in ("mean", "p50", "p95", "max")), _times(r)]
            for r in top.to_dicts()
        ]
        headers = ["op", "calls", "mean us", "p50 us", "p95 us", "max us", "mean / p50"]
        grids.append(Grid(f"{table.family} ({table.clock})", headers, rows, ["op"]))
    if not drawn:
        return Section("kernels", "Kernels", ["No call was printed singly, so there is no distribution."])
    said = ["A mean far above the median rests on few slow calls. Each histogram is as high as its fullest bin."]
    if any(t.resolution_ns > 1 for t in tables):
        said.append("Calls that are printed as 0 stand at half of the printed resolution.")
    return Section("kernels", "Kernels", said, charts=drawn, grids=grids)


def _times(row: dict[str, Any]) -> str:
    return f"{row['mean_ns'] / row['p50_ns']:.2f}" if row["p50_ns"] else "-"


def _bins(top: pl.DataFrame, counts: pl.DataFrame, resolution_ns: int) -> pl.DataFrame:
    """Return how many calls of the top operations fall into each bin; see `charts.distributions`."""
    least = max(resolution_ns / 2, 0.5)
    place = (pl.col("dur_ns").cast(pl.Float64).clip(least).log10() * _BINS + 1e-9).floor()
    binned = (
        top.select("op", "p50_ns", "mean_ns", pl.int_range(pl.len()).alias("rank"))
        .with_columns(pl.col("p50_ns", "mean_ns").cast(pl.Float64).clip(least))
        .join(counts.select("op", "dur_ns", "n"), on="op")
        .group_by("rank", "op", "p50_ns", "mean_ns", place.alias("place"))
        .agg(pl.col("n").sum().alias("calls"))
        .sort("rank", "place")
    )
    base = math.log(10) / _BINS
    edges = ((pl.col("place") * base).exp().alias("low_ns"), ((pl.col("place") + 1) * base).exp().alias("high_ns"))
    return binned.select(pl.col("op").cast(pl.String), *edges, "calls", "p50_ns", "mean_ns")


def _balance(run: Run, passes: pl.DataFrame, where: Sequence[str], arrangement: str | None) -> Section:
    """Set the workers side by side; in decode alone where there are several phases."""
    decode, said = _of_decode(run, passes)
    try:
        found = balance(decode, where=where, arrangement=arrangement)
    except TracekitError as why:
        return Section("balance", "Balance of workers", [f"{why}."[:1].upper() + f"{why}."[1:]])
    grids = [balance_grid(b, _ROWS) for b in found]
    drawn = [Chart(f"{b.family}: a mean step of each worker by operation", charts.balance_bars(b)) for b in found]
    return Section("balance", "Balance of workers", said, charts=drawn, grids=grids)


def _ledger(run: Run) -> Section:
    ledger = ledger_of(run)
    numbers = ["lines", "records", "recovered", "rejected", "quoted"]
    rows = [[str(r["stream"]), str(r["dialect"]), *(str(r[c]) for c in numbers)] for r in ledger["streams"]]
    found = [(kind, item) for kind in ("fault", "note") for item in ledger[f"{kind}s"]]
    told = [[kind, _place(f), str(f["count"]), f["message"], f["code"]] for kind, f in found[:_FINDINGS]]
    grids = [Grid("What was read", ["log", "dialect", *numbers], rows, ["log", "dialect"])]
    if found:
        rest = len(found) - len(told)
        footer = [f"{rest} more: see the ledger of `tracekit top`"] if rest else []
        words = ["kind", "where", "what it means", "code"]
        headers = ["kind", "where", "times", "what it means", "code"]
        grids.append(Grid("Faults and notes", headers, told, words, footer))
    said = [counts_text(ledger).strip() + "."]
    return Section("ledger", "What was read, refused and lost", said, grids=grids)


def _place(finding: dict[str, Any]) -> str:
    return (finding["stream"] or "all logs") + (f":{finding['line']}" if finding["line"] else "")


def _trace(given: Sequence[str]) -> Section:
    said = ["A timeline of the same logs, for Perfetto. `tracekit open` shows it in the browser without an upload."]
    logs = shlex.join(given)
    commands = [f"tracekit convert {logs} -o run.pftrace", "tracekit open run.pftrace"]
    return Section("trace", "How to see it as a timeline", said, commands)
