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
        own.str.extract(rule.pattern, 1) for rule in rules.layer_rules() if not rule.families or family in rule.families
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
    """Per row in completion order: its parent's index (-1: none), its depth (0: outermost), its self time."""

    parent: npt.NDArray[np.int64]
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


def region_names(labels: pl.Series) -> pl.Series:
    """Return the name of each label's class of regions, empty where no class takes it."""
    names = ["", *(r.name for r in rules.regions())]
    return pl.Series("region", names).gather(region_classes(labels).astype(np.int64) + 1)


def nest(classes: npt.NDArray[np.int16], dur_ns: npt.NDArray[np.int64]) -> Nesting:
    """Find which region stands inside which, in one process's rows in completion order.

    A region takes the rows right before it that its class may hold and that fit in its time; classes are handled
    from the innermost to the outermost, so what is inside is taken before what is around it. Where a region would
    not fit beside another, it is tried inside that one (`rules.Region.or_inside`).
    """
    parent, misfits = _parents(classes, dur_ns, set())
    inward = {i for i in misfits if rules.regions()[i].or_inside}
    if inward:
        parent, _ = _parents(classes, dur_ns, inward)
    children = np.zeros(len(classes), np.int64)
    inside = parent >= 0
    np.add.at(children, parent[inside], dur_ns[inside])
    return Nesting(parent, _depth(parent), dur_ns - children)


def _parents(
    classes: npt.NDArray[np.int16], dur_ns: npt.NDArray[np.int64], inward: set[int]
) -> tuple[npt.NDArray[np.int64], set[int]]:
    """Return each row's parent (-1: none) and the classes of which a row did not fit where it stands."""
    regions = rules.regions()
    parent = np.full(len(classes), -1, np.int64)
    alive = np.arange(len(classes))
    misfits: set[int] = set()
    for index, holder in enumerate(regions):
        holds = [
            i for i, r in enumerate(regions) if holder.name in r.inside or (i in inward and holder.name in r.or_inside)
        ]
        if not holds or not (classes[alive] == index).any():
            continue
        opens = [i for i in holds if regions[i].opens == holder.name]
        children, around, refused = _claim(classes[alive], dur_ns[alive], index, holds, opens)
        parent[alive[children]] = alive[around]
        misfits.update(classes[alive[refused]].tolist())
        alive = np.delete(alive, children)
    return parent, misfits


def _claim(
    classes: npt.NDArray[np.int16],
    dur_ns: npt.NDArray[np.int64],
    holder: int,
    holds: list[int],
    opens: list[int],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the rows that rows of class `holder` take, who takes them, and the rows that did not fit."""
    may = np.isin(classes, holds)
    borders = np.flatnonzero(~may)
    candidates = np.flatnonzero(may)
    behind = np.searchsorted(borders, candidates)
    inner = behind < len(borders)
    candidates, around = candidates[inner], borders[behind[inner]]
    opener = np.maximum.accumulate(np.where(np.isin(classes, opens), np.arange(len(classes)), -1))
    mine = (classes[around] == holder) & (candidates >= opener[around])
    candidates, around = candidates[mine], around[mine]
    before = np.concatenate(([0], np.cumsum(dur_ns)))
    # Each printed duration is rounded to a nanosecond.
    fits = before[around] - before[candidates] <= dur_ns[around] + (around - candidates)
    return candidates[fits], around[fits], candidates[~fits]


def _depth(parent: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    depth = np.zeros(len(parent), np.uint8)
    inside = np.flatnonzero(parent >= 0)
    for _ in range(len(rules.regions())):  # no tree is deeper than there are classes
        deeper = depth[parent[inside]] + np.uint8(1)
        if (deeper == depth[inside]).all():
            break
        depth[inside] = deeper
    return depth


def ordinals(rows: pl.DataFrame) -> pl.DataFrame:
    """Add what the printed ordinals (``call``) tell of each row: ``kind``, ``run``, ``repeated``.

    Samples are one call of every N: all ordinals of a label are multiples of a constant stride above one. A label
    with a single line whose ordinal is above one cannot be whole either. Other gaps are lost lines, not samples.
    A new run begins where a label begins again at its first ordinal; an ordinal that is not above the one before
    and begins no run is repeated.

    Args:
        rows: columns head, process, call, in printed order.
    """
    gap = pl.col("call").diff()
    up = gap.filter(gap > 0)
    stride = (
        pl.when(pl.len() == 1)
        .then(pl.col("call").first())
        .when((up.min() == up.max()) & (pl.col("call").first() == up.min()))
        .then(up.min())
        .otherwise(1)
    )
    back = (gap <= 0).fill_null(value=False)
    rows = rows.with_columns(
        pl.when(stride.over("head").fill_null(1) > 1).then(pl.lit("sample")).otherwise(pl.lit("event")).alias("kind"),
        (back & (pl.col("call") == pl.col("call").first())).cum_sum().over("head").alias("run"),
        (back & (pl.col("call") != pl.col("call").first())).over("head").alias("repeated"),
    )
    # A label that is missing in one run does not fall behind the others of its process.
    return rows.with_columns(pl.col("run").cum_max().over("process").cast(pl.UInt16))


def label_self_ns(rows: pl.DataFrame) -> pl.DataFrame:
    """Add self time to rows of labels that have totals only, by the declared hierarchy of regions.

    A label's self time is its total without the labels that must stand inside it: those whose innermost possible
    holder, of the labels present in the same process, is this one. Where two could hold a label, neither's self
    time is known.

    Args:
        rows: columns stream, worker, run, step (may be left out), name, category, total_ns; one row per label,
            process and step.

    Returns:
        The rows with ``self_ns`` (null: not known) and ``cost_ns``, whose sum over cost rows is the time of the
        outermost regions.
    """
    whole = ["stream", "worker", "run", *(["step"] if "step" in rows.columns else [])]
    parts = [_label_self_ns(part) for _, part in rows.group_by(whole, maintain_order=True)]
    if parts:
        return pl.concat(parts)
    none = pl.lit(None, dtype=pl.Int64)
    return rows.with_columns(none.alias("self_ns"), none.alias("cost_ns"))


def _label_self_ns(rows: pl.DataFrame) -> pl.DataFrame:
    total = rows["total_ns"].to_list()
    inside = _label_parents(region_classes(rows["name"]).tolist(), total)
    short = _too_short(inside, total)
    unknown = short | {h for holders in inside if len(holders) > 1 for h in holders}
    own = _own_ns(inside, total)
    self_ns = [None if row in unknown else own[row] for row in range(len(own))]
    # What is not known label by label is known together: the outermost regions' time less what is known.
    outermost = sum(t for row, t in enumerate(total) if not inside[row] and row not in short)
    missing = [row for row, value in enumerate(self_ns) if value is None and row not in short]
    rest = outermost - sum(v for v in self_ns if v is not None)
    cost = [rest if missing and row == missing[0] else v or 0 for row, v in enumerate(self_ns)]
    return rows.with_columns(pl.Series("self_ns", self_ns, dtype=pl.Int64), pl.Series("cost_ns", cost, dtype=pl.Int64))


def _own_ns(inside: list[set[int]], total: list[int]) -> list[int]:
    own = list(total)
    for row, holders in enumerate(inside):
        if len(holders) == 1:
            own[next(iter(holders))] -= total[row]
    return own


def _too_short(inside: list[set[int]], total: list[int]) -> set[int]:
    """Return the labels that hold less time than what stands in them, and move that to their own holders.

    So it is where a label's first calls were skipped: one call of the outermost region is left, and fifty inside.
    """
    short: set[int] = set()
    while True:
        own = _own_ns(inside, total)
        # Totals are printed to a nanosecond.
        new = {row for row, ns in enumerate(own) if ns < -len(total)} - short
        if not new:
            return short
        short |= new
        for row, holders in enumerate(inside):
            if len(holders) == 1 and holders <= short:
                inside[row] = inside[next(iter(holders))] - short


def _label_parents(classes: list[int], total: list[int]) -> list[set[int]]:
    """Return the labels that may directly hold each label: one (known), several (not known which), none."""
    regions = rules.regions()
    names = [regions[c].name if c >= 0 else "" for c in classes]
    result: list[set[int]] = []
    for row, cls in enumerate(classes):
        if cls < 0:
            result.append(set())
            continue
        inner = {i for i, n in enumerate(names) if n and n in regions[cls].or_inside and i != row}
        possible = {i for i, n in enumerate(names) if n and n in regions[cls].inside and i != row}
        for i in inner:
            beside = [h for h in possible if names[h] in regions[classes[i]].inside]
            if any(total[row] + total[i] > total[h] for h in beside):
                possible = {i}
        if regions[cls].anywhere:
            result.append(possible)
            continue
        # Innermost: those that do not hold another possible holder.
        result.append({h for h in possible if not any(names[h] in regions[classes[o]].inside for o in possible)})
    return result
