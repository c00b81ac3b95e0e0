"""Comparisons as text, Markdown, CSV, JSON or JSON lines."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import polars as pl
from tabulate import tabulate

from tracekit.diff.comparison import NO_SUM, Comparison, Side
from tracekit.table import CLOCKS, DIAGNOSTIC, counts_text, ms, us

FORMATS = ("table", "markdown", "csv", "json", "jsonl")

#: Version of the JSON.
SCHEMA = 1

#: Parts of the change that are named in a sentence.
_NAMED = 6


def render(found: Sequence[Comparison], ledger: Mapping[str, Any], form: str, limit: int | None) -> str:
    """Return comparisons in one of `FORMATS`.

    Args:
        found: what `comparison.diff` returned, of all pairs of sides.
        ledger: the coverage, as `table.ledger_json` returns it.
        limit: rows of each comparison, None for all.
    """
    if form in ("table", "markdown"):
        markdown = form == "markdown"
        return "\n".join([*(text(c, limit, markdown=markdown) for c in found), counts_text(ledger, markdown=markdown)])
    rows = [{"comparison": n, **row} for n, c in enumerate(found) for row in _head(c.rows, limit).to_dicts()]
    if form == "json":
        about = [as_json(c) for c in found]
        return json.dumps({"schema": SCHEMA, "rows": rows, "comparisons": about, "coverage": ledger}) + "\n"
    if form == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows)
    frames = [_head(c.rows, limit).with_columns(pl.lit(n).alias("comparison")) for n, c in enumerate(found)]
    return pl.concat([f.select("comparison", pl.exclude("comparison")) for f in frames], how="diagonal").write_csv()


def as_json(found: Comparison) -> dict[str, Any]:
    """Return all of a comparison but its rows as JSON values."""
    return {
        "a": asdict(found.a),
        "b": asdict(found.b),
        "by": list(found.by),
        "per": found.per,
        "center": found.settings.center,
        "min_effect": found.settings.min_effect,
        "run_sd": found.settings.run_sd,
        "total": next(iter(found.total.drop("all", strict=False).to_dicts()), None),
        "categories": found.categories.to_dicts(),
        "waterfall": [{"label": label, "delta_ns": ns} for label, ns in found.waterfall],
        "caveats": [asdict(c) for c in found.caveats],
    }


def _head(frame: pl.DataFrame, limit: int | None) -> pl.DataFrame:
    return frame if limit is None else frame.head(limit)


def text(found: Comparison, limit: int | None, *, markdown: bool) -> str:
    """Return one comparison for people: what is compared, caveats, rows, categories, how the change is made up."""
    mark = "- " if markdown else ""
    lines = [f"### {heading(found)}\n" if markdown else heading(found)]
    lines += [f"{mark}{side}: {_about(s, found)}" for side, s in (("A", found.a), ("B", found.b))]
    lines += [f"{mark}note: {c.message}" for c in found.caveats]
    shown = _head(found.rows, limit)
    lines += ["", _rows(found, shown, found.by, markdown=markdown)]
    if found.rows.height > shown.height:
        left = found.rows.height - shown.height
        lines += ["", f"{mark}{left} more rows, each a smaller part of the change (--limit 0 shows all)"]
    if found.total.height and found.by != ("category",):
        both = pl.concat([found.categories, found.total.rename({"all": "category"})])
        lines += ["", _rows(found, both, ("category",), markdown=markdown)]
    elif found.total.height:
        lines += ["", _rows(found, found.total.rename({"all": "category"}), ("category",), markdown=markdown)]
    lines += ["", *(f"{mark}{line}" for line in _sentences(found))]
    return "\n".join(lines) + "\n"


def heading(found: Comparison) -> str:
    """Return what is compared, in a line."""
    engines = found.a.family if found.a.family == found.b.family else f"{found.a.family} against {found.b.family}"
    clock = CLOCKS.get(found.a.clock, found.a.clock) if found.a.clock == found.b.clock else "unlike clocks"
    return f"{engines}, A against B per {found.per}, {clock} ({DIAGNOSTIC})"


def _about(side: Side, found: Comparison) -> str:
    runs = f"{side.runs} run{'s' if side.runs > 1 else ''}"
    steps = f" of {side.steps} step{'s' if side.steps > 1 else ''}" if side.steps else ""
    basis = "" if side.basis == "events" else f", from {side.basis}"
    apart = "worker" in found.by or "rank" in found.by
    how = "added along the pipeline" if side.topology == "pipeline" else "side by side: " + (
        "added here, as each has rows of its own" if apart else "their mean"
    )  # fmt: skip
    workers = "1 worker" if side.workers == 1 else f"{side.workers} workers ({how})"
    return f"{side.label}: {runs}{steps}, {workers}{basis}"


def _rows(found: Comparison, rows: pl.DataFrame, by: Sequence[str], *, markdown: bool) -> str:
    step = found.per == "step"
    unit = "ms/step" if step else "us/call"
    headers = [*by, "calls A", "calls B", f"A {unit}", f"B {unit}", *(["change ms"] if step else []), "B/A",
               "95 % interval", "p", "verdict"]  # fmt: skip
    body = [_cells(row, by, step=step) for row in rows.iter_rows(named=True)]
    align = ["left"] * len(by) + ["right"] * (len(headers) - len(by) - 1) + ["left"]
    style = "pipe" if markdown else "simple"
    return tabulate(body, headers, tablefmt=style, disable_numparse=True, colalign=align if body else None)


def _cells(row: Mapping[str, Any], by: Sequence[str], *, step: bool) -> list[str]:
    groups = ["-" if row[c] is None else str(row[c]) or '""' for c in by]
    calls = [_calls(row, side) for side in "ab"]
    if step:
        change = f"{(row['delta_ns'] or 0) / 1e6:+.3f}"
        if abs(row["delta_ns"]) <= row["resolution_ns"]:
            change += f" ±{ms(row['resolution_ns'])}"
        numbers = [ms(row["per_step_a_ns"]), ms(row["per_step_b_ns"]), change]
    else:
        numbers = [us(row["per_call_a_ns"]), us(row["per_call_b_ns"])]
    ratio = "-" if row["ratio"] is None else f"{row['ratio']:.3f}"
    interval = "-" if row["ci_low"] is None else f"{row['ci_low']:.3f} - {row['ci_high']:.3f}"
    p = "-" if row["p_adjusted"] is None else f"{row['p_adjusted']:.3f}"
    return [*groups, *calls, *numbers, ratio, interval, "<0.001" if p == "0.000" else p, row["verdict"]]


def _calls(row: Mapping[str, Any], side: str) -> str:
    per_step = row[f"calls_per_step_{side}"]
    if per_step is None:
        return str(row[f"calls_{side}"])
    return f"{per_step:.0f}" if abs(per_step - round(per_step)) < 0.005 else f"{per_step:.2f}"


def _sentences(found: Comparison) -> list[str]:
    lines = [_waterfall(found)] if found.waterfall else []
    said = "calls are per step" if found.per == "step" else "calls are all of the side"
    center = "" if found.settings.center == "mean" else "; medians over the steps"
    lines.append(
        f"{said}{center}; intervals are for a row alone, p is corrected for the {_tests(found.rows)} rows (Holm); "
        f"same: shown to lie within {100 * found.settings.min_effect:g} %"
    )
    if found.rows.filter((pl.col("delta_ns").abs() <= pl.col("resolution_ns")) & (pl.col("resolution_ns") > 0)).height:
        lines.append("±: the change is within what rounding of the printed durations can make")
    return lines


def _tests(rows: pl.DataFrame) -> int:
    return rows.height - rows["p_value"].null_count()


def _waterfall(found: Comparison) -> str:
    """Say what the change is made up of; the parts add to the whole."""
    total = found.total.row(0, named=True)
    parts = sorted((p for p in found.waterfall if p[0] != NO_SUM), key=lambda part: -abs(part[1]))
    named = [f"{label} {ns / 1e6:+.3f}" for label, ns in parts[:_NAMED] if ns]
    rest = parts[_NAMED:]
    if rest:
        named.append(f"{len(rest)} others {sum(ns for _, ns in rest) / 1e6:+.3f}")
    named += [f"{label} {ns / 1e6:+.3f}" for label, ns in found.waterfall if label == NO_SUM]
    change, whole = total["delta_ns"], total["per_step_a_ns"]
    part = f" ({100 * change / whole:+.1f} %)" if whole else ""
    said = ", ".join(named) or "nothing"
    return (
        f"from {ms(whole)} to {ms(total['per_step_b_ns'])} ms per step: {change / 1e6:+.3f} ms{part} = {said}; "
        "the parts add to the whole"
    )
