"""The one pass over the events: how often each duration occurs in each group, and what each step spends there."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import polars as pl

from tracekit.ahead import ahead
from tracekit.frame import EVENTS, Batch, empty
from tracekit.grouping import counted_by, summed_by

#: Rows of partial counts that are put together at once.
_PARTIAL_ROWS = 1 << 18

#: Batches that wait to be counted.
_WAITING = 2

_DURATION_COLUMNS = ("name", "dur_ns", "n", "self_ns", "call", "first_call")
_DURATION_KEYS = ("dialect", "clock", "kind", "category", "worker", "stream", "run")
_SPAN_KEYS = ("dialect", "clock", "worker", "stream", "run", "step")
_SPAN = {"start_ns": pl.Int64(), "end_ns": pl.Int64(), "self_ns": pl.Int64(), "missing": pl.UInt32()}
_STEP_KEYS = ("dialect", "clock", "category", "worker", "stream", "run", "step", "tokens")


#: How parts of one step's span are put together.
_WHOLE_SPAN = (pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col("self_ns", "missing").sum())


class Source(Protocol):
    """What is counted: see `reading.Run`."""

    def packed(self) -> Iterator[Batch]:
        """Yield events, packed."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What the pass came to.

    Attributes:
        durations: the groups, dialect, clock, kind, category, worker, stream, run, name (null unless ordinals are
            printed), dur_ns, n (how often), self_ns (sum), call and first_call (highest and lowest ordinal).
        steps: the groups, dialect, clock, category, worker, stream, run, step, tokens, self_ns (sum); only what has a
            step.
        spans: the steps of which all starts were printed, dialect, clock, worker, stream, run, step, start_ns, end_ns,
            self_ns (sum); none where rows are filtered.
    """

    durations: pl.DataFrame
    steps: pl.DataFrame
    spans: pl.DataFrame


@dataclass(slots=True)
class _Partial:
    """Partial counts, put together now and then so that memory follows the groups and not the log."""

    merge: Callable[[pl.DataFrame], pl.DataFrame]
    parts: list[pl.DataFrame] = field(default_factory=list)
    height: int = 0

    def add(self, part: pl.DataFrame) -> None:
        self.parts.append(part)
        self.height += part.height
        if self.height > _PARTIAL_ROWS:
            self.parts = [self.whole()]
            self.height = self.parts[0].height // 2  # a log without repetition is not merged at every batch

    def whole(self) -> pl.DataFrame:
        return self.merge(pl.concat(self.parts))


@dataclass(slots=True)
class _HeadGroups:
    """The groups that heads fall into, found once for all batches of a table of heads."""

    known: dict[tuple[str, ...], tuple[Batch, pl.DataFrame, pl.Series]] = field(default_factory=dict)

    def of(self, batch: Batch, decided: Sequence[str]) -> tuple[pl.DataFrame, pl.Series]:
        """Return the groups by the columns that heads decide (and their number, ``group``), and each head's."""
        seen = self.known.get(tuple(decided))
        if seen is not None and seen[0].heads is batch.heads and seen[0].constants == batch.constants:
            return seen[1], seen[2]
        table = Batch(batch.heads.with_row_index("head"), batch.heads, batch.constants)
        heads = table.frame({c: EVENTS[c] for c in decided})
        groups = heads.unique(maintain_order=True).with_row_index("group")
        numbers = heads.join(groups, on=decided, how="left", nulls_equal=True, maintain_order="left")["group"]
        self.known[tuple(decided)] = Batch(batch.rows.clear(), batch.heads, batch.constants), groups, numbers
        return groups, numbers


def count(source: Source, by: Sequence[str], only: pl.Expr) -> Counts:
    """Count events per group.

    Args:
        source: where they come from.
        by: columns of `frame.EVENTS`.
        only: a filter over such columns.
    """
    keys = list(dict.fromkeys((*by, *_DURATION_KEYS)))
    step_keys = list(dict.fromkeys((*by, *_STEP_KEYS)))
    durations = _Partial(lambda frame: _merge(frame, keys))
    steps = _Partial(lambda frame: frame.group_by(step_keys).agg(pl.col("self_ns").sum()))
    durations.add(empty({c: _type(c) for c in _duration_columns(keys)}))
    steps.add(empty({c: EVENTS[c] for c in (*step_keys, "self_ns")}))

    spans = _Partial(lambda frame: frame.group_by(_SPAN_KEYS).agg(_WHOLE_SPAN))
    spans.add(empty({c: EVENTS[c] for c in _SPAN_KEYS} | _SPAN))
    groups = _HeadGroups()
    filtered = bool(only.meta.root_names())

    def add(batch: Batch) -> None:
        kept = _filtered(batch, only)
        durations.add(_durations(kept, keys, groups))
        if "step" in kept.rows.columns:
            steps.add(_steps(kept, step_keys, groups))
            if "start_ns" in kept.rows.columns and not filtered:
                spans.add(_spans(kept, groups))

    # One thread counts while the next batch is read; no more than two batches wait for it.
    for _ in ahead(source.packed(), add, _WAITING):
        pass
    return Counts(durations.whole(), steps.whole(), spans.whole().filter(pl.col("missing") == 0).drop("missing"))


def _filtered(batch: Batch, only: pl.Expr) -> Batch:
    asked = only.meta.root_names()
    if not asked:
        return batch
    kept = batch.frame({c: EVENTS[c] for c in asked}).select(only).to_series()
    return Batch(batch.rows.filter(kept), batch.heads, batch.constants)


def _durations(batch: Batch, keys: Sequence[str], groups: _HeadGroups) -> pl.DataFrame:
    # Ordinals tell per label whether all calls are there: such labels are kept apart until the end.
    ordinals = "call" in batch.rows.columns and batch.rows["call"].null_count() < batch.rows.height
    wanted = list(dict.fromkeys((*keys, "name"))) if ordinals else list(keys)
    if ordinals or "self_ns" in batch.rows.columns:
        if "self_ns" not in batch.rows.columns:
            batch = replace(batch, rows=batch.rows.with_columns(pl.col("dur_ns").alias("self_ns")))
        call = pl.col("call") if ordinals else pl.lit(None, dtype=EVENTS["call"])
        sums = [
            pl.len().cast(pl.UInt64).alias("n"),
            pl.col("self_ns").sum(),
            call.max().cast(EVENTS["call"]).alias("call"),
            call.min().cast(EVENTS["call"]).alias("first_call"),
        ]
        values = ["self_ns", "call"] if ordinals else ["self_ns"]
        counted = _grouped(batch, [*wanted, "dur_ns"], groups, values, lambda rows, by: rows.group_by(by).agg(sums))
    else:
        counted = _grouped(batch, [*wanted, "dur_ns"], groups, [], counted_by)
        counted = counted.with_columns((pl.col("dur_ns") * pl.col("n").cast(pl.Int64)).alias("self_ns"))
    missing = [pl.lit(None).alias(c) for c in _DURATION_COLUMNS if c not in counted.columns]
    return counted.with_columns(missing).select(pl.col(c).cast(_type(c)) for c in _duration_columns(keys))


def _steps(batch: Batch, keys: Sequence[str], groups: _HeadGroups) -> pl.DataFrame:
    known = batch
    if batch.rows["step"].null_count():
        known = Batch(batch.rows.filter(pl.col("step").is_not_null()), batch.heads, batch.constants)
    own = "self_ns" if "self_ns" in batch.rows.columns else "dur_ns"
    counted = _grouped(known, keys, groups, [own], lambda rows, by: summed_by(rows, by, own))
    return counted.select(pl.col(c).cast(EVENTS[c]) for c in keys).with_columns(counted[own].alias("self_ns"))


def _spans(batch: Batch, groups: _HeadGroups) -> pl.DataFrame:
    known = Batch(batch.rows.filter(pl.col("step").is_not_null()), batch.heads, batch.constants)
    own = "self_ns" if "self_ns" in batch.rows.columns else "dur_ns"
    sums = [
        pl.col("start_ns").min(),
        (pl.col("start_ns") + pl.col("dur_ns")).max().alias("end_ns"),
        pl.col(own).sum().alias("self_ns"),
        pl.col("start_ns").null_count().alias("missing"),
    ]
    values = dict.fromkeys(("start_ns", "dur_ns", own))
    counted = _grouped(known, _SPAN_KEYS, groups, list(values), lambda rows, by: rows.group_by(by).agg(sums))
    return counted.select(pl.col(c).cast(t) for c, t in ({c: EVENTS[c] for c in _SPAN_KEYS} | _SPAN).items())


def _grouped(
    batch: Batch,
    keys: Sequence[str],
    groups: _HeadGroups,
    values: Sequence[str],
    aggregate: Callable[[pl.DataFrame, list[str]], pl.DataFrame],
) -> pl.DataFrame:
    """Aggregate the values of rows by keys: what a head decides is grouped once per head, rows by its number."""
    own = [c for c in keys if c in batch.rows.columns]
    decided = [c for c in keys if c not in own]
    table, numbers = groups.of(batch, decided)
    rows = batch.rows.select(*dict.fromkeys((*own, *values))).with_columns(
        numbers.gather(batch.rows["head"]).alias("group")
    )
    counted = aggregate(rows, ["group", *own])
    return counted.with_columns(table[c].gather(counted["group"]) for c in decided)


def _duration_columns(keys: Sequence[str]) -> list[str]:
    return list(dict.fromkeys((*keys, *_DURATION_COLUMNS)))


def _type(column: str) -> pl.DataType:
    return EVENTS.get(column, EVENTS["call"] if column == "first_call" else pl.UInt64())


def _merge(frame: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    groups = list(dict.fromkeys((*keys, "name", "dur_ns")))
    merged = frame.group_by(groups).agg(pl.col("n", "self_ns").sum(), pl.col("call").max(), pl.col("first_call").min())
    return merged.select(_duration_columns(keys))
