"""Buckets that bear another name on the other side: renamed, fused, or a log called otherwise."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from tracekit import rules
from tracekit.errors import UsageError
from tracekit.frame import Batch

#: Column: the fused operation (`rules.renames`) that a row would be a part of; null for most.
FUSED = "fused"


@dataclass(frozen=True, slots=True)
class Pair:
    """Buckets of A that are one bucket of B.

    >>> Pair.parse("MUL_MAT_ID+MUL=MOE_FUSED_UP_GATE").label
    'MUL_MAT_ID+MUL -> MOE_FUSED_UP_GATE'
    """

    old: tuple[str, ...]
    new: str

    @classmethod
    def parse(cls, text: str) -> "Pair":
        """Read ``OLD[+OLD...]=NEW``.

        Raises:
            UsageError: it is not of that form.
        """
        old, equals, new = text.partition("=")
        names = tuple(part.strip() for part in old.split("+"))
        if not equals or not new.strip() or not all(names):
            raise UsageError(f"--pair {text}: expected OLD=NEW or OLD+OLD=NEW, as in MUL_MAT_ID+MUL=MOE_FUSED_UP_GATE")
        return cls(names, new.strip())

    @property
    def label(self) -> str:
        """What the common bucket is called."""
        return f"{'+'.join(self.old)} -> {self.new}"


def marked(batch: Batch) -> Batch:
    """Add the column `FUSED` to a batch: what it decides on stands in the heads, once for all rows."""
    if not {"op", "name"} <= set(batch.heads.columns):
        return batch
    heads = batch.heads.with_columns(_rule().cast(pl.Categorical).alias(FUSED))
    return Batch(batch.rows, heads, batch.constants)


def _rule() -> pl.Expr:
    op, name = pl.col("op").cast(pl.String), pl.col("name").cast(pl.String)
    found: pl.Expr = pl.lit(None, dtype=pl.String)
    for rule in reversed(rules.renames()):
        part = op.str.contains(rule.op) & name.str.contains(rule.name)
        found = pl.when(part).then(pl.lit(rule.new)).otherwise(found)
    return found


def by_rules(a: Sequence[pl.DataFrame], b: Sequence[pl.DataFrame], by: Sequence[str]) -> dict[str, str]:
    """Return the fused operations whose parts are to be put together, with the label of the common bucket.

    Only those that one side has and the other has not: where both run the parts, there is nothing to pair.

    Args:
        a, b: cells of each side's runs.
    """
    if "op" not in by or "name" in by:
        return {}
    ops_a, ops_b = ({str(op) for cells in side for op in cells["op"].unique()} for side in (a, b))
    found = {}
    for rule in rules.renames():
        if (rule.new in ops_a) == (rule.new in ops_b):
            continue
        apart = a if rule.new in ops_b else b
        parts = sorted({str(op) for c in apart for op in c.filter(pl.col(FUSED) == rule.new)["op"].unique()})
        if parts:
            old = "+".join(parts)
            found[rule.new] = f"{old} -> {rule.new}" if rule.new in ops_b else f"{rule.new} -> {old}"
    return found


def renamed(cells: pl.DataFrame, by: Sequence[str], fused: dict[str, str], pairs: Sequence[Pair]) -> pl.DataFrame:
    """Return cells whose groups bear the names that both sides share."""
    if fused:
        new = pl.col("op").replace_strict(fused, default=None, return_dtype=pl.String)
        part = pl.col(FUSED).replace_strict(fused, default=None, return_dtype=pl.String)
        cells = cells.with_columns(pl.coalesce(new, part, "op").alias("op"))
    names = {name: pair.label for pair in pairs for name in (*pair.old, pair.new)}
    text = [c for c in by if cells.schema[c] == pl.String]
    return cells.with_columns(pl.col(c).replace(names) for c in text) if names else cells


def check_pairs(pairs: Sequence[Pair], a: Sequence[pl.DataFrame], b: Sequence[pl.DataFrame], by: Sequence[str]) -> None:
    """Refuse pairs that name nothing, which would pair nothing in silence.

    Raises:
        UsageError: no bucket of A bears an old name, or none of B the new one; a name stands in two pairs.
    """
    names = [name for pair in pairs for name in {*pair.old, pair.new}]
    if doubled := sorted({n for n in names if names.count(n) > 1}):
        raise UsageError(f"--pair: {doubled[0]} stands in two pairs; name all that is one bucket in one: OLD+OLD=NEW")
    for pair in pairs:
        for side, cells, wanted in (("A", a, pair.old), ("B", b, (pair.new,))):
            for name in wanted:
                if not any(_has(c, by, name) for c in cells):
                    raise UsageError(f"--pair {pair.label.replace(' -> ', '=')}: no {'/'.join(by)} of {side} is {name}")


def _has(cells: pl.DataFrame, by: Sequence[str], name: str) -> bool:
    return any((cells[c] == name).any() for c in by if cells.schema[c] == pl.String)


def worker_names(first: Sequence[str], workers: Sequence[str]) -> dict[str, str]:
    """Return what a run's workers are called in the first run, where the logs bear other names: by their order.

    >>> worker_names(["a-0", "a-1"], ["b-0", "b-1"])
    {'b-0': 'a-0', 'b-1': 'a-1'}
    >>> worker_names(["rpc-0", "rpc-1"], ["rpc-1", "rpc-0"])
    {}
    """
    if set(first) & set(workers) or len(first) != len(workers):
        return {}
    return dict(zip(workers, first, strict=True))
