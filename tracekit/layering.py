"""Layers down, categories or operations across: what each layer costs, and which stand out."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from tracekit import rules
from tracekit.bucketing import Readable, buckets
from tracekit.errors import UsageError

#: A layer stands out when it deviates from the median of its neighbours by this many robust standard deviations
#: of all such deviations (1.4826 x their median: the usual estimate for a normal distribution) ...
_DEVIATIONS = 4.0
#: ... and by this part of the median, since equal layers have a spread of next to nothing.
_PART = 0.10
#: Neighbours on each side.
_REACH = 2


@dataclass(frozen=True, slots=True)
class LayerTable:
    """Self time per layer of one family and clock.

    Attributes:
        frame: ``layer`` (null: outside the layers), one Int64 column of ns per category or operation, ``total_ns``,
            ``stands_out`` (the total relative to its neighbours' median, null where it does not stand out).
        columns: the names of the value columns, the most costly first.
        untold_ns: cost that stands in no cell, because the log does not tell whose self time it is.
    """

    family: str
    clock: str
    frame: pl.DataFrame
    columns: tuple[str, ...]
    untold_ns: int = 0


def layers(run: Readable, by: str = "category", *, where: Sequence[str] = ()) -> list[LayerTable]:
    """Return one table per family and clock; views and waits are left out, since they are no cost.

    Args:
        run: what `tracekit.read` returned.
        by: category or op: what stands across.
        where: filters as in `bucketing.buckets`.

    Raises:
        UsageError: another `by`.
    """
    if by not in ("category", "op", "name", "worker"):
        raise UsageError(f"layers cannot stand against {by!r}; choose from category, op, name, worker")
    groups = list(dict.fromkeys(("layer", by, "category", "name")))
    found = []
    for table in buckets(run, groups, where=where):
        cost = table.frame.filter(
            ~pl.col("category").cast(pl.String).is_in(rules.NOT_COST), pl.col("self_ns").is_not_null()
        )
        if cost.is_empty():
            continue
        long = cost.group_by("layer", pl.col(by).cast(pl.String)).agg(pl.col("self_ns").sum())
        order = (
            long.group_by(by).agg(pl.col("self_ns").sum()).sort("self_ns", by, descending=[True, False])[by].to_list()
        )
        wide = long.pivot(on=by, index="layer", values="self_ns").select("layer", pl.col(order).fill_null(0))
        wide = wide.with_columns(pl.col("layer").cast(pl.Int16))
        wide = wide.with_columns(pl.sum_horizontal(order).alias("total_ns")).sort("layer", nulls_last=True)
        untold_ns = table.cost_ns - int(cost["self_ns"].sum())
        found.append(LayerTable(table.family, table.clock, _mark(wide), tuple(order), untold_ns))
    return found


def _mark(wide: pl.DataFrame) -> pl.DataFrame:
    """Add ``stands_out``: the total relative to the median of the neighbouring layers, where that is unusual."""
    real = wide.filter(pl.col("layer").is_not_null()).select("layer", "total_ns")
    if real.height <= 2 * _REACH:
        return wide.with_columns(pl.lit(None, dtype=pl.Float64).alias("stands_out"))
    total = pl.col("total_ns")
    sides = [total.shift(k) for k in range(-_REACH, _REACH + 1) if k]
    real = real.with_columns(pl.concat_list(sides).list.drop_nulls().list.median().alias("near"))
    off = (total - pl.col("near")).abs()
    unusual = (off > _DEVIATIONS * 1.4826 * off.median()) & (off > _PART * pl.col("near"))
    real = real.select("layer", pl.when(unusual).then(total / pl.col("near")).alias("stands_out"))
    return wide.join(real, on="layer", how="left", maintain_order="left")
