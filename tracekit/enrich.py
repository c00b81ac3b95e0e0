"""What a record means beyond its text: layer, category, kind, nesting and self time, the process's name.

Layer and category depend on the head alone, so they are worked out once per distinct head. Nesting needs the
order of records within a process.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit import rules
from tracekit.dialect import Dialect
from tracekit.frame import EVENTS

#: Columns of a head's table: what a record's text says, and what the rules add.
HEAD_COLUMNS: dict[str, pl.DataType] = {
    "op": EVENTS["op"],
    "name": EVENTS["name"],
    "category": EVENTS["category"],
    "layer": EVENTS["layer"],
    "shape": EVENTS["shape"],
    "tokens": EVENTS["tokens"],
    "device": EVENTS["device"],
    "process": pl.Categorical(),  # the rank as printed: a number or pid<pid>
    "rank": EVENTS["rank"],
    "label_pid": EVENTS["pid"],
    **{f"ne{n}": pl.Int64() for n in range(4)},
}


def enrich_heads(dialect: Dialect, heads: pl.DataFrame) -> pl.DataFrame:
    """Return the table of heads (columns `HEAD_COLUMNS`) from a dialect's own columns, as text."""
    have = heads.columns
    rank = pl.col("rank") if "rank" in have else pl.lit(None, dtype=pl.String)
    frame = heads.with_columns(
        category(dialect.family).alias("category"),
        layer(dialect.family).alias("layer"),
        rank.alias("process"),
        rank.str.extract(r"^pid(\d+)$", 1).alias("label_pid"),
        rank.str.extract(r"^(-?\d+)$", 1).alias("rank"),
    )
    return frame.select(
        pl.col(c).cast(t, strict=False) if c in frame.columns else pl.lit(None, dtype=t).alias(c)
        for c, t in HEAD_COLUMNS.items()
    )


def layer(family: str) -> pl.Expr:
    """Return the layer number that column ``name`` (text) tells, or null, by ``rules/layers.toml``."""
    own = pl.col("name").str.split_exact(" (copy of ", 1).struct.field("field_0")
    found = [
        own.str.extract(rule.pattern, 1)
        for rule in rules.layer_rules()
        if not rule.families or family in rule.families
    ]
    return pl.coalesce(found).cast(pl.Int16, strict=False)


def category(family: str) -> pl.Expr:
    """Return the category of columns ``op`` and ``name`` (text), by ``rules/categories.toml``."""
    result: pl.Expr = pl.lit(None, dtype=pl.String)
    for rule in reversed(rules.category_rules()):
        if rule.family not in (None, family):
            continue
        asked = [pl.col(c).str.contains(p) for c, p in (("op", rule.op), ("name", rule.name)) if p is not None]
        value = pl.lit(rule.category)
        result = pl.when(pl.all_horizontal(asked)).then(value).otherwise(result) if asked else value
    return result


@dataclass(frozen=True, slots=True)
class Nesting:
    """Depth (0 is outermost) and self time of rows in completion order.

    `overrun_ns` is the time by which declared children exceed what holds them (they are then left outside).
    """

    depth: npt.NDArray[np.uint8]
    self_ns: npt.NDArray[np.int64]


def region_classes(labels: pl.Series) -> npt.NDArray[np.int16]:
    """Return the index into `rules.regions()` of each label, -1 where no class takes it."""
    found = np.full(len(labels), -1, np.int16)
    text = labels.cast(pl.String)
    # Declared order decides between classes that both match, not the order of nesting.
    for declared in reversed(rules.declared_regions()):
        hit = text.str.contains(declared.label).fill_null(value=False).to_numpy()
        found[hit] = rules.regions().index(declared)
    return found


def nest(classes: npt.NDArray[np.int16], dur_ns: npt.NDArray[np.int64]) -> Nesting:
    """Find which region stands inside which, in one process's rows in completion order.

    A region takes the rows right before it that its class may hold and that fit in its time; classes are handled
    from the innermost to the outermost, so what is inside is taken before what is around it.
    """
    parent = np.full(len(classes), -1, np.int64)
    alive = np.arange(len(classes))
    for index, holder in enumerate(rules.regions()):
        holds = [i for i, r in enumerate(rules.regions()) if holder.name in r.inside]
        if holds:
            opens = [i for i in holds if rules.regions()[i].opens == holder.name]
            alive = _claim(classes, dur_ns, parent, alive, index, holds, opens)
    children = np.zeros(len(classes), np.int64)
    inside = parent >= 0
    np.add.at(children, parent[inside], dur_ns[inside])
    return Nesting(_depth(parent), dur_ns - children)


def _claim(
    classes: npt.NDArray[np.int16],
    dur_ns: npt.NDArray[np.int64],
    parent: npt.NDArray[np.int64],
    alive: npt.NDArray[np.int64],
    holder: int,
    holds: list[int],
    opens: list[int],
) -> npt.NDArray[np.int64]:
    """Give every row of class `holder` its children among the unclaimed rows; return the rows still unclaimed."""
    own = classes[alive]
    if not (own == holder).any():
        return alive
    may = np.isin(own, holds)
    borders = np.flatnonzero(~may)
    candidates = np.flatnonzero(may)
    behind = np.searchsorted(borders, candidates)
    inner = behind < len(borders)
    candidates, around = candidates[inner], borders[behind[inner]]
    before = np.concatenate(([0], np.cumsum(dur_ns[alive])))
    # Each printed duration is rounded to a nanosecond.
    fits = before[around] - before[candidates] <= dur_ns[alive[around]] + (around - candidates)
    opener = np.maximum.accumulate(np.where(np.isin(own, opens), np.arange(len(own)), -1))
    taken = (own[around] == holder) & fits & (candidates >= opener[around])
    parent[alive[candidates[taken]]] = alive[around[taken]]
    return np.delete(alive, candidates[taken])


def _depth(parent: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    depth = np.zeros(len(parent), np.uint8)
    inside = np.flatnonzero(parent >= 0)
    for _ in range(len(rules.regions())):  # no tree is deeper than there are classes
        deeper = depth[parent[inside]] + np.uint8(1)
        if (deeper == depth[inside]).all():
            break
        depth[inside] = deeper
    return depth


def kinds(rows: pl.DataFrame) -> pl.Series:
    """Tell events from samples, per ``head``, by the ordinals printed (``call``).

    Samples are one call of every N: all ordinals are multiples of a constant stride above one. A label with a
    single line whose ordinal is above one cannot be whole either. Other gaps are lost lines, not samples.

    Args:
        rows: columns head, call (nullable), in printed order.

    Returns:
        ``event`` or ``sample`` per row.
    """
    gap = pl.col("call").diff()
    stride = (
        pl.when(pl.len() == 1).then(pl.col("call").first())
        .when((gap.min() == gap.max()) & (pl.col("call").first() == gap.min())).then(gap.min())
        .otherwise(1)
    ).over("head")
    return rows.select(
        pl.when(stride.fill_null(1) > 1).then(pl.lit("sample")).otherwise(pl.lit("event")).alias("kind")
    ).to_series()
