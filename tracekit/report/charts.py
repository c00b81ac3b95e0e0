"""The charts of a report, as Vega-Lite specifications: plain data, drawn by `draw`.

Text and lines take the page's colour, so that they can be read in the light and in the dark.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from tracekit.balance import Balance
from tracekit.budget import Budget
from tracekit.layering import LayerTable

Spec = dict[str, Any]

#: Points a worker that a chart of steps shows; more are put together.
_POINTS = 300
#: Workers that a chart of steps shows.
_WORKERS = 8
#: Labels that a chart of balance tells apart.
_LABELS = 10

_WIDTH = 820
_MS = 1e6
_US = 1e3

_INK = "currentColor"
_CONFIG = {
    "background": None,
    "font": "Arial, Liberation Sans, sans-serif",
    "padding": {"left": 12, "right": 24, "top": 4, "bottom": 4},
    "aria": False,
    "view": {"stroke": None},
    "axis": {"labelColor": _INK, "titleColor": _INK, "domainColor": _INK, "tickColor": _INK, "gridColor": _INK}
    | {"gridOpacity": 0.15, "labelLimit": 220},
    "header": {"labelColor": _INK, "titleColor": _INK, "labelLimit": 220},
    "legend": {"labelColor": _INK, "titleColor": _INK, "labelLimit": 300, "symbolOpacity": 1},
    "title": {"color": _INK},
}
#: The name of a row of a faceted chart, where it can be read.
_BESIDE = {"labelAngle": 0, "labelAlign": "left"}


def _spec(rows: Sequence[Mapping[str, Any]], **more: Any) -> Spec:
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",  # a name, never fetched
        "config": _CONFIG,
        "background": None,
        "data": {"values": list(rows)},
        **more,
    }


def budget_bars(budget: Budget) -> Spec:
    """Return the budget of a step: a bar a worker, a colour a category, in ms."""
    rows = [
        {"worker": str(r["worker"]), "category": str(r["category"]), "ms": r["per_step_ns"] / _MS}
        for r in budget.frame.to_dicts()
    ]
    if budget.outside_ns is not None:
        rows.append({"worker": "outside", "category": "outside", "ms": budget.outside_ns / _MS})
    return _spec(
        rows,
        width=_WIDTH,
        height={"step": 22},
        mark="bar",
        encoding={
            "y": {"field": "worker", "type": "nominal", "title": None, "sort": None},
            "x": {"aggregate": "sum", "field": "ms", "type": "quantitative", "title": "ms of a step"},
            "color": {"field": "category", "type": "nominal", "scale": {"scheme": "tableau20"}, "title": None},
        },
    )


def balance_bars(balance: Balance) -> Spec:
    """Return the labels of each worker side by side, in ms a step: a bar a worker, a colour a label."""
    ordered = balance.frame.sort("mean_ns", descending=True).to_dicts()
    rows = [
        {"worker": w["worker"], "place": min(place, _LABELS), "label": label, "ms": w["per_step_ns"] / _MS}
        for place, row in enumerate(ordered)
        for label in ["all others" if place >= _LABELS else ", ".join(str(row[c]) for c in balance.by)]
        for w in row["workers"]
    ]
    labels = list(dict.fromkeys(row["label"] for row in rows))
    title = "ms a step" if balance.per == "step" else "ms a call"
    return _spec(
        rows,
        width=_WIDTH,
        height={"step": 22},
        mark="bar",
        encoding={
            "y": {"field": "worker", "type": "nominal", "title": None, "sort": list(balance.workers)},
            "x": {"aggregate": "sum", "field": "ms", "type": "quantitative", "title": title},
            "order": {"field": "place"},
            "color": {
                "field": "label",
                "type": "nominal",
                "sort": labels,
                "scale": {"scheme": "tableau20"},
                "title": None,
            },
        },
    )


def heat_map(table: LayerTable) -> Spec:
    """Return layers across, categories down, self time in ms as colour; what lies outside the layers is left out."""
    inside = table.frame.filter(pl.col("layer").is_not_null())
    layers = [str(n) for n in inside["layer"].to_list()]
    rows = [
        {"layer": layer, "category": column, "ms": ns / _MS}
        for column in table.columns
        for layer, ns in zip(layers, inside[column].to_list(), strict=True)
        if ns > 0
    ]
    return _spec(
        rows,
        width={"step": max(6, min(30, _WIDTH // max(len(layers), 1)))},
        height={"step": 20},
        mark="rect",
        encoding={
            "x": {"field": "layer", "type": "ordinal", "sort": layers, "axis": {"labelOverlap": True, "labelAngle": 0}},
            "y": {"field": "category", "type": "nominal", "sort": list(table.columns), "title": None},
            "color": {
                "field": "ms",
                "type": "quantitative",
                "scale": {"scheme": "viridis", "type": "log"},
                "title": "self ms",
            },
        },
    )


def step_times(steps: pl.DataFrame, warm_up: int) -> tuple[Spec, str]:
    """Return the time of each step, a row of points a worker, and what the chart leaves out.

    Args:
        steps: as `stepping.steps` returns them, not empty.
        warm_up: how many leading steps of each worker and run look like warm-up.
    """
    names = steps["worker"].cast(pl.String).unique(maintain_order=True).to_list()
    most = int(steps.group_by("worker").len()["len"].max() or 1)  # type: ignore[arg-type]
    together = -(-most // _POINTS)
    phase = pl.col("phase").cast(pl.String).fill_null("phase not known")
    marked = (
        steps.filter((pl.col("dur_ns") > 0) & pl.col("worker").cast(pl.String).is_in(names[:_WORKERS]))
        .with_columns(
            pl.col("worker").cast(pl.String),
            pl.int_range(pl.len()).over("worker").alias("place"),
            pl.when(pl.col("step") < warm_up).then(phase + ", warm-up?").otherwise(phase).alias("phase"),
            (pl.col("dur_ns") / _MS).alias("ms"),
        )
        .with_columns((pl.col("place") // together * together).alias("place"))
    )
    points = marked.group_by("worker", "phase", "place", maintain_order=True).agg(
        pl.col("ms").min().alias("low"), pl.col("ms").median(), pl.col("ms").max().alias("high")
    )
    said = [] if together == 1 else [f"a point is the median of {together} steps, its line reaches from least to most"]
    if len(names) > _WORKERS:
        said.append(f"the first {_WORKERS} of {len(names)} workers are shown")
    y = _log(pl.concat([points["low"], points["high"]]), "ms")
    x = {"field": "place", "type": "quantitative", "title": "step", "scale": {"nice": False}}
    spec = _spec(
        points.to_dicts(),
        facet={
            "row": {"field": "worker", "type": "nominal", "title": None, "sort": names[:_WORKERS]} | {"header": _BESIDE}
        },
        spec={
            "width": _WIDTH - 240,
            "height": 90,
            "encoding": {
                "x": x,
                "color": {"field": "phase", "type": "nominal", "scale": {"scheme": "tableau10"}, "title": None},
            },
            "layer": [
                {"mark": "rule", "encoding": {"y": {"field": "low", **y}, "y2": {"field": "high"}}},
                {
                    "mark": {"type": "point", "size": 18, "filled": True, "opacity": 1},
                    "encoding": {"y": {"field": "ms", **y}},
                },
            ],
        },
    )
    return spec, "; ".join(said)


def _log(values: pl.Series, title: str, **more: Any) -> dict[str, Any]:
    """Return a logarithmic axis over some values, with a tick at each power of ten; none if all are 0."""
    positive = values.filter(values > 0)
    if positive.is_empty():
        return {"type": "quantitative", "title": title, "axis": more}
    low, high = (math.log10(float(v)) for v in (positive.min(), positive.max()))  # type: ignore[arg-type]
    ticks = [10.0**n for n in range(math.floor(low), math.ceil(high) + 1)]
    # A logarithm knows no 0: it stands at the lower end.
    ends = {} if positive.len() == values.len() else {"domain": [ticks[0], 10.0 * ticks[-1]], "clamp": True}
    scale = {"type": "log"} | ends
    return {"type": "quantitative", "scale": scale, "title": title, "axis": {"values": ticks} | more}


def distributions(bins: pl.DataFrame) -> Spec:
    """Return a histogram an operation over a logarithmic axis, with median (line) and mean (dashes).

    Args:
        bins: op, low_ns, high_ns, calls, p50_ns, mean_ns: a row per bin, the most costly operation first.
    """
    bar = bins.with_columns(pl.col("low_ns", "high_ns", "p50_ns", "mean_ns") / _US)
    at = _log(pl.concat([bar["low_ns"], bar["high_ns"]]), "us a call")

    def line(field: str, dash: list[int]) -> Spec:
        x = {"aggregate": "max", "field": field, **at}
        return {
            "mark": {"type": "rule", "color": _INK, "strokeDash": dash, "strokeWidth": 1.5},
            "encoding": {"x": x},
        }

    return _spec(
        bar.to_dicts(),
        facet={
            "row": {
                "field": "op",
                "type": "nominal",
                "title": None,
                "sort": bins["op"].unique(maintain_order=True).to_list(),
                "header": _BESIDE,
            }
        },
        spec={
            "width": _WIDTH - 240,
            "height": 34,
            "layer": [
                {
                    "mark": {"type": "bar", "color": "#4c78a8"},
                    "encoding": {
                        "x": {"field": "low_ns", **at},
                        "x2": {"field": "high_ns"},
                        "y": {"field": "calls", "type": "quantitative", "title": None, "axis": None},
                        "y2": {"datum": 0},
                    },
                },
                line("p50_ns", []),
                line("mean_ns", [3, 3]),
            ],
        },
        resolve={"scale": {"y": "independent"}},
        spacing=4,
    )
