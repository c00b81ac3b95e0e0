"""Tables as text, Markdown, CSV, JSON, JSON lines or Parquet. Nothing here prints: text and bytes are returned."""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import polars as pl

from tracekit.bucketing import NUMBERS, Table
from tracekit.budget import Budget, sentences
from tracekit.columns import natural_order
from tracekit.frame import COVERAGE
from tracekit.grid import Grid
from tracekit.layering import LayerTable

FORMATS = ("table", "markdown", "csv", "json", "jsonl", "parquet")

#: Version of the JSON that tables are written as.
SCHEMA = 1

#: What the durations of each clock mean, in one line.
CLOCKS: Mapping[str, str] = {
    "host-wait": "host time of each operation with a wait for the device after it",
    "host-enqueue": "host time to enqueue, not the kernels' time",
    "host-sync-unknown": "host time; whether the device was waited for is not in the log",
    "backlog": "wait after the submission: queue backlog and kernel",
    "device": "device time",
}

DIAGNOSTIC = "diagnostic: not throughput"

#: A rounding error above this part of a total is shown beside it.
_SHOWN_ERROR = 0.05


def render(tables: Sequence[Table], ledger: Mapping[str, Any], form: str, limit: int | None) -> str | bytes:
    """Return tables in one of `FORMATS` (bytes for Parquet).

    Args:
        tables: what `bucketing.buckets` returned.
        ledger: the coverage, as `ledger_json` returns it; JSON carries it, the other forms do not.
        form: of `FORMATS`.
        limit: rows per table, None for all.
    """
    if form == "json":
        return (
            json.dumps({"schema": SCHEMA, "tables": [table_json(t, limit) for t in tables], "coverage": ledger}) + "\n"
        )
    if form == "jsonl":
        rows = ({"family": t.family, "clock": t.clock, **row} for t in tables for row in table_json(t, limit)["rows"])
        return "".join(json.dumps(row) + "\n" for row in rows)
    if form in ("csv", "parquet"):
        return _data(flat(tables, limit), form)
    markdown = form == "markdown"
    return "\n".join([*(text(t, limit, markdown=markdown) for t in tables), counts_text(ledger, markdown=markdown)])


def _data(frame: pl.DataFrame, form: str) -> str | bytes:
    """Return a frame as CSV, JSON lines or Parquet."""
    if form == "csv":
        return frame.write_csv()
    if form == "jsonl":
        return frame.write_ndjson()
    packed = io.BytesIO()
    frame.write_parquet(packed)
    return packed.getvalue()


def table_json(table: Table, limit: int | None) -> dict[str, Any]:
    """Return one table as JSON values; durations are integer nanoseconds, shares are parts of 1."""
    frame = table.frame if limit is None else table.frame.head(limit)
    return {
        "family": table.family,
        "clock": table.clock,
        "by": list(table.by),
        "cost_ns": table.cost_ns,
        "unaccounted_ns": table.unaccounted_ns,
        "resolution_ns": table.resolution_ns,
        "workers": list(table.workers),
        "notes": [DIAGNOSTIC, *table.notes],
        "rows": frame.to_dicts(),
    }


def flat(tables: Sequence[Table], limit: int | None) -> pl.DataFrame:
    """Return all tables as one frame: family, clock, the groups, basis, then `bucketing.NUMBERS`."""
    if not tables:
        return pl.DataFrame(schema={"family": pl.String, "clock": pl.String, "basis": pl.String, **NUMBERS})
    parts = []
    for table in tables:
        frame = table.frame if limit is None else table.frame.head(limit)
        frame = frame.with_columns(pl.col(pl.Categorical()).cast(pl.String))
        parts.append(frame.select(pl.lit(table.family).alias("family"), pl.lit(table.clock).alias("clock"), pl.all()))
    return pl.concat(parts)


def text(table: Table, limit: int | None, *, markdown: bool) -> str:
    """Return one table for people: heading, rows, total, notes."""
    return top_grid(table, limit).text(markdown=markdown)


def top_grid(table: Table, limit: int | None) -> Grid:
    """Return one table as words."""
    shown = table.frame if limit is None else table.frame.head(limit)
    sampled = shown["samples"].null_count() < shown.height
    headers = [*table.by, *(["basis"] if set(shown["basis"]) != {"events"} else []), "calls"]
    stepped = "per_step_ns" in shown.columns and shown["per_step_ns"].null_count() < shown.height
    headers += [
        *(["samples"] if sampled else []),
        "total ms",
        "self ms",
        "share %",
        *(["ms/step"] if stepped else []),
        "mean us",
        "p50 us",
        "p95 us",
        "max us",
    ]
    rows = [_cells(row, table, headers) for row in shown.iter_rows(named=True)]
    return Grid(_heading(table), headers, rows, (*table.by, "basis"), _footer(table, shown.height))


def _heading(table: Table | LayerTable) -> str:
    return f"{table.family}, {CLOCKS.get(table.clock, table.clock)} ({DIAGNOSTIC})"


def _cells(row: Mapping[str, Any], table: Table, headers: Sequence[str]) -> list[str]:
    error = row["calls"] * table.resolution_ns
    total = ms(row["total_ns"])
    if table.resolution_ns > 1 and error > _SHOWN_ERROR * row["total_ns"]:
        total += f" ±{ms(error)}"
    cells = {
        **{g: "-" if row[g] is None else str(row[g]) or '""' for g in table.by},
        "basis": row["basis"],
        "calls": str(row["calls"]),
        "samples": "-" if row["samples"] is None else str(row["samples"]),
        "total ms": total,
        "self ms": ms(row["self_ns"]),
        "ms/step": ms(row.get("per_step_ns")),
        "share %": "-" if row["share"] is None else f"{100 * row['share']:.1f}",
        **{f"{c} us": us(row[f"{c}_ns"]) for c in ("mean", "p50", "p95", "max")},
    }
    return [cells[h] for h in headers]


def _footer(table: Table, shown: int) -> list[str]:
    lines = [f"cost {ms(table.cost_ns)} ms in self time, {_workers(table.workers)}"]
    idle = table.frame.filter(pl.col("share").is_null() & pl.col("self_ns").is_not_null())
    if idle.height and table.cost_ns:
        lines.append(f"not cost: {ms(int(idle['self_ns'].sum()))} ms of views and waits (share '-')")
    if table.frame.height > shown:
        rest = table.frame.slice(shown)
        share = rest["share"].sum() or 0.0
        lines.append(f"{rest.height} more rows with {100 * share:.1f} % of the cost (--limit 0 shows all)")
    if table.resolution_ns > 1:
        lines.append(
            f"durations are printed in whole {table.resolution_ns // 1000} us: ± is calls x that, "
            "shown where it exceeds 5 % of the total"
        )
    return lines + list(table.notes)


def render_layers(tables: Sequence[LayerTable], ledger: Mapping[str, Any], form: str) -> str | bytes:
    """Return layer tables in one of `FORMATS`; the data forms are long: layer, column, self_ns."""
    if form in ("table", "markdown"):
        markdown = form == "markdown"
        bodies = [layers_text(t, markdown=markdown) for t in tables]
        return "\n".join([*bodies, counts_text(ledger, markdown=markdown)])
    if form == "json":
        found = [
            {
                "family": t.family,
                "clock": t.clock,
                "columns": list(t.columns),
                "untold_ns": t.untold_ns,
                "rows": t.frame.to_dicts(),
            }
            for t in tables
        ]
        return json.dumps({"schema": SCHEMA, "notes": [DIAGNOSTIC], "tables": found, "coverage": ledger}) + "\n"
    parts = [
        t.frame.unpivot(t.columns, index=["layer", "stands_out"], variable_name="column", value_name="self_ns").select(
            pl.lit(t.family).alias("family"), pl.lit(t.clock).alias("clock"), pl.all()
        )
        for t in tables
    ]
    return _data(pl.concat(parts) if parts else pl.DataFrame(), form)


def layers_text(table: LayerTable, *, markdown: bool) -> str:
    """Return one layer table for people, in ms, with a total per row and column and marks."""
    return layers_grid(table).text(markdown=markdown)


def layers_grid(table: LayerTable) -> Grid:
    """Return one layer table as words."""
    rows = []
    for row in table.frame.iter_rows(named=True):
        mark = "" if row["stands_out"] is None else f"* {row['stands_out']:.2f} x its neighbours"
        name = "none" if row["layer"] is None else str(row["layer"])
        rows.append([name, *(ms(row[c]) for c in table.columns), ms(row["total_ns"]), mark])
    sums = [ms(int(table.frame[c].sum())) for c in (*table.columns, "total_ns")]
    rows.append(["total", *sums, ""])
    headers = ["layer", *(f"{c} ms" for c in table.columns), "total ms", "stands out"]
    footer = []
    if table.untold_ns:
        footer.append(
            f"{ms(table.untold_ns)} ms of cost stand in no cell: the log does not tell whose self time they are"
        )
    return Grid(f"{_heading(table)}: self time per layer", headers, rows, ["stands out"], footer, sums=1)


def render_steps(steps: pl.DataFrame, ledger: Mapping[str, Any], form: str, limit: int | None) -> str | bytes:
    """Return steps in one of `FORMATS`; CSV carries the categories as JSON."""
    shown = steps if limit is None else steps.head(limit)
    if form == "json":
        found = shown.to_dicts()
        return json.dumps({"schema": SCHEMA, "notes": [DIAGNOSTIC], "steps": found, "coverage": ledger}) + "\n"
    if form in ("csv", "jsonl", "parquet"):
        if form == "csv":
            packed = [json.dumps({c["category"]: c["self_ns"] for c in row}) for row in shown["categories"].to_list()]
            shown = shown.with_columns(pl.Series("categories", packed, dtype=pl.String))
        return _data(shown.with_columns(pl.col(pl.Categorical()).cast(pl.String)), form)
    markdown = form == "markdown"
    heading = f"steps, self time of each ({DIAGNOSTIC})"
    lines = [f"### {heading}\n" if markdown else heading, steps_grid(shown).body(markdown=markdown), ""]
    if steps.height > shown.height:
        lines.append(f"{steps.height - shown.height} more steps (--limit 0 shows all)")
    if steps.is_empty():
        lines.append("no step was found")
    return "\n".join([*lines, counts_text(ledger, markdown=markdown)])


def steps_grid(steps: pl.DataFrame) -> Grid:
    """Return steps as words."""
    headers = ["worker", "run", "step", "phase", "tokens", "ms", "stands out", "share of self time"]
    rows = [_step_cells(row) for row in steps.iter_rows(named=True)]
    return Grid("model passes", headers, rows, ["worker", "phase", "stands out", "share of self time"])


def _step_cells(row: Mapping[str, Any]) -> list[str]:
    known = [c for c in row["categories"] or () if c["self_ns"] is not None]
    shares = ", ".join(f"{c['category']} {100 * c['self_ns'] / (row['dur_ns'] or 1):.0f} %" for c in known[:4])
    if row["categories"] and len(known) < len(row["categories"]):
        shares += ", rest not told"
    mark = "" if row["stands_out"] is None else f"* {row['stands_out']:.2f} x median"
    place = [("-" if row[c] is None else str(row[c])) for c in ("worker", "run", "step", "phase", "tokens")]
    return [*place, ms(row["dur_ns"]), mark, shares]


def render_budgets(budgets: Sequence[Budget], ledger: Mapping[str, Any], form: str) -> str:
    """Return budgets as a table, Markdown or JSON."""
    if form == "json":
        found = [b.as_json() for b in budgets]
        return json.dumps({"schema": SCHEMA, "notes": [DIAGNOSTIC], "budgets": found, "coverage": ledger}) + "\n"
    markdown = form == "markdown"
    return "\n".join([*(budget_text(b, markdown=markdown) for b in budgets), counts_text(ledger, markdown=markdown)])


def budget_text(budget: Budget, *, markdown: bool) -> str:
    """Return one budget for people: categories down, workers across, in ms per step, the remainder as a row."""
    return budget_grid(budget).text(markdown=markdown)


def budget_grid(budget: Budget) -> Grid:
    """Return one budget as words."""
    order = budget.frame.group_by("category").agg(pl.col("per_step_ns").sum())
    names = order.sort("per_step_ns", "category", descending=[True, False])["category"].to_list()
    workers = natural_order(budget.frame["worker"].cast(pl.String).unique().to_list())
    spent = {(r["category"], str(r["worker"])): r["per_step_ns"] for r in budget.frame.iter_rows(named=True)}
    whole = max(budget.per_step_ns, budget.implied_ns or 0) or 1
    rows = []
    for name in names:
        own = [spent.get((name, w)) for w in workers]
        total = sum(v or 0 for v in own)
        rows.append([name, *map(ms, own), ms(total), f"{100 * total / whole:.1f}"])
    if budget.outside_ns is not None:
        blank = ["" for _ in workers]
        rows.append(["outside", *blank, ms(budget.outside_ns), f"{100 * budget.outside_ns / whole:.1f}"])
    headers = ["category", *(f"{w} ms" for w in workers), "ms per step", "share %"]
    heading = f"{budget.family}, budget of a step ({budget.topology}; {DIAGNOSTIC})"
    return Grid(heading, headers, rows, ["category"], sentences(budget), sums=int(budget.outside_ns is not None))


def _workers(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"1 worker: {names[0]}"
    some = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return f"{len(names)} workers: {some}"


def ms(ns: int | None) -> str:
    """Return nanoseconds as milliseconds with three decimals, or a dash.

    >>> ms(116_615_000), ms(None)
    ('116.615', '-')
    """
    return "-" if ns is None else f"{ns / 1e6:.3f}"


def us(ns: int | None) -> str:
    """Return nanoseconds as microseconds with one decimal, or a dash."""
    return "-" if ns is None else f"{ns / 1e3:.1f}"


class Covered(Protocol):
    """A reading that tells what was read: see `reading.Run`."""

    @property
    def coverage(self) -> pl.LazyFrame:
        """What was read, schema `frame.COVERAGE`."""

    @property
    def findings(self) -> pl.LazyFrame:
        """Faults and notes, schema `frame.FINDINGS`."""


def ledger_of(*runs: Covered) -> dict[str, Any]:
    """Return the coverage of readings as one ledger: see `ledger_json`."""
    coverage = pl.concat([r.coverage.collect() for r in runs])
    return ledger_json(coverage, pl.concat([r.findings.collect() for r in runs]))


def ledger_json(coverage: pl.DataFrame, findings: pl.DataFrame) -> dict[str, Any]:
    """Return the coverage as JSON values: sums over all logs, each log, faults and notes."""
    numbers = [c for c, t in COVERAGE.items() if t == pl.UInt64() and c != "lines"]
    lines = int(coverage.unique("stream")["lines"].sum())
    return {
        "lines": lines,
        **{c: int(coverage[c].sum()) for c in numbers},
        "streams": coverage.to_dicts(),
        "faults": findings.filter(pl.col("severity").cast(pl.String) == "fault").drop("severity").to_dicts(),
        "notes": findings.filter(pl.col("severity").cast(pl.String) == "note").drop("severity").to_dicts(),
    }


def counts_text(ledger: Mapping[str, Any], *, markdown: bool = False) -> str:
    """Return the coverage in one line for the foot of a table."""
    counts = f"coverage: {ledger['records']} records in {ledger['lines']} lines"
    counts += f", {ledger['recovered']} recovered" if ledger["recovered"] else ""
    counts += f", {ledger['rejected']} rejected, {len(ledger['faults'])} faults, {len(ledger['notes'])} notes"
    return f"{'- ' if markdown else ''}{counts}\n"


def ledger_text(ledger: Mapping[str, Any]) -> str:
    """Return the findings for people, a line each: faults, then notes."""
    lines = []
    for severity in ("fault", "note"):
        for item in ledger[f"{severity}s"]:
            place = (item["stream"] or "all logs") + (f":{item['line']}" if item["line"] else "")
            lines.append(f"{severity}: {place}: {item['message']} ({item['count']} x) [{item['code']}]\n")
    return "".join(lines)
