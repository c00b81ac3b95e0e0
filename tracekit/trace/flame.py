"""Flame graphs: self time by worker, category, operation and layer, in two formats.

A flame graph has no timeline; its widths are sums of self time, so nothing is counted twice. Samples and printed
summaries are left out, since they are no single occurrences.

* folded: one line a stack, ``worker;category;op;layer 3 <ns>``, as flamegraph.pl, inferno and speedscope read it.
* speedscope: a profile per worker, see https://www.speedscope.app/file-format-schema.json.
"""

import json
from collections.abc import Sequence
from typing import BinaryIO

import polars as pl

from tracekit.columns import natural_order
from tracekit.trace.source import TraceSource, selected, wanted

_COLUMNS = ("worker", "category", "op", "layer", "kind", "step", "dur_ns", "self_ns")
_KEYS = ("worker", "category", "op", "layer")


def stacks(source: TraceSource, *, steps: range | None = None, where: pl.Expr | None = None) -> pl.DataFrame:
    """Sum the self time of events.

    Returns:
        worker, category, op (String), layer (Int16, nullable), calls, self_ns; workers in natural order, then by time.
    """
    shown = pl.lit(value=True) if where is None else where
    sums = [pl.col("calls").sum(), pl.col("self_ns").sum()]
    total = pl.DataFrame(
        schema={"worker": pl.String, "category": pl.String, "op": pl.String, "layer": pl.Int16}
        | {"calls": pl.UInt32, "self_ns": pl.Int64}
    )
    for batch in source.batches(wanted(_COLUMNS, where)):
        events = selected(batch, steps).filter((pl.col("kind") == "event") & shown)
        counted = events.select(*_KEYS, pl.lit(1, pl.UInt32).alias("calls"), "self_ns").group_by(_KEYS).agg(sums)
        named = counted.with_columns(pl.col(pl.Categorical()).cast(pl.String).fill_null("unknown"))
        total = pl.concat([total, named]).group_by(_KEYS).agg(sums)
    place = {worker: n for n, worker in enumerate(natural_order(total["worker"].unique().to_list()))}
    ranked = total.with_columns(pl.col("worker").replace_strict(place, return_dtype=pl.Int64).alias("place"))
    return ranked.sort("place", pl.col("self_ns"), "op", "layer", descending=[False, True, False, False]).drop("place")


def _frames(row: Sequence[object]) -> list[str]:
    """Return the stack of a row below its worker."""
    _, category, op, layer = row
    stack = [str(category), str(op)]
    return stack if layer is None else [*stack, f"layer {layer}"]


def write_folded(rows: pl.DataFrame, file: BinaryIO) -> None:
    """Write one line a stack, the weight in nanoseconds."""
    for row, weight in zip(rows.select(_KEYS).iter_rows(), rows["self_ns"], strict=True):
        stack = [str(row[0]), *_frames(row)]
        # A semicolon or a line's end in a name would be read as structure.
        clean = [" ".join(part.replace(";", ":").split()) or "unnamed" for part in stack]
        file.write(f"{';'.join(clean)} {weight}\n".encode())


def write_speedscope(rows: pl.DataFrame, name: str, version: str, file: BinaryIO) -> None:
    """Write a profile per worker, weights in nanoseconds."""
    numbers: dict[str, int] = {}
    profiles = []
    for (worker,), mine in rows.group_by("worker", maintain_order=True):
        samples = [
            [numbers.setdefault(frame, len(numbers)) for frame in _frames(row)]
            for row in mine.select(_KEYS).iter_rows()
        ]
        weights = mine["self_ns"].to_list()
        profile = {"type": "sampled", "name": str(worker), "unit": "nanoseconds", "startValue": 0}
        profiles.append(profile | {"endValue": sum(weights), "samples": samples, "weights": weights})
    content = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": f"tracekit {version}",
        "name": f"{name} (diagnostic: not throughput)",
        "shared": {"frames": [{"name": frame} for frame in numbers]},
        "profiles": profiles,
        "activeProfileIndex": 0,
    }
    file.write(json.dumps(content, separators=(",", ":")).encode())
