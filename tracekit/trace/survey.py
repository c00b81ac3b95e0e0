"""The first reading: what a log holds, so that the second can place it. What is kept does not grow with the rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from tracekit import rules
from tracekit.trace.source import PIECE_ROWS, Ints, Strands, TraceSource, column, runs, selected, wanted

#: Calls of one operation and shape are outliers where they take more than this many times the median.
OUTLIER_FACTOR = 4

#: What calls must share to be compared.
USUAL_OF = ("op", "category", "shape")

#: Rows of an operation and shape below which no median is worth the name.
_FEWEST_CALLS = 8

#: What the first reading looks at.
_COLUMNS = (
    "stream", "line", "run", "worker", "rank", "pid", "device", "op", "name", "category", "layer", "shape",
    "tokens", "phase", "step", "kind", "clock", "start_ns", "arrival_ns", "dur_ns", "self_ns", "depth",
)  # fmt: skip

_UNKNOWN = np.iinfo(np.int64).max


#: Kinds of work that may run beside the rest, by category: they get a track of their own where they overlap it.
BESIDE = {"collective": 1, "host": 2, "wait": 2}


def track_kind(category: pl.Series) -> Ints:
    """Return 1 for collectives, 2 for host work and waiting, 0 for the rest."""
    names = category.cast(pl.String)
    return names.replace_strict(BESIDE, default=0, return_dtype=pl.Int64).fill_null(0).to_numpy()


@dataclass(slots=True)
class StrandFacts:
    """What is known of one strand.

    Attributes:
        events: rows; shown: those that filters leave in the trace.
        layers: the lowest and the highest layer of its events, None without layers.
        has_steps: whether any of its trees belongs to a known step.
        timed: whether every tree has a printed start, and whether every tree has an arrival stamp.
        earliest_ns: the earliest start by each of the two.
        overlaps: whether trees of host work or collectives overlap others, by each of the two.
        devices, ranks, pids: the distinct values printed.
    """

    events: int = 0
    shown: int = 0
    layers: tuple[int, int] | None = None
    has_steps: bool = False
    timed: dict[str, bool] = field(default_factory=lambda: {"start": True, "arrival": True})
    earliest_ns: dict[str, int] = field(default_factory=lambda: {"start": _UNKNOWN, "arrival": _UNKNOWN})
    overlaps: dict[str, bool] = field(default_factory=lambda: {"start": False, "arrival": False})
    devices: set[int] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)
    pids: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Survey:
    """What the log holds.

    Attributes:
        strands: their names, numbered; facts: what is known of each.
        parts: a strand's share of a step: strand, run, step (-1: before the first), dur_ns (of its outermost
            rows, and of those that follow it without belonging to a step).
        costs: self time of a step by category: strand, run, step, category, self_ns.
        usual: op, category, shape, usual_ns: the median self time of operations of cost that have calls enough.
        samples: aggregates of sampled rows, per label and step.
        summaries: as printed, schema `frame.SUMMARIES`.
    """

    strands: Strands
    facts: list[StrandFacts]
    parts: pl.DataFrame
    costs: pl.DataFrame
    usual: pl.DataFrame
    samples: pl.DataFrame
    summaries: pl.DataFrame

    @property
    def events(self) -> int:
        """How many events there are."""
        return sum(f.events for f in self.facts)


@dataclass(slots=True)
class StepCarry:
    """Gives rows between two steps to the step before them, over the borders of pieces and slices."""

    last: dict[int, tuple[int, int]] = field(default_factory=dict)

    def fill(self, strand: Ints, run: Ints, step: Ints) -> tuple[Ints, Ints]:
        """Return run and step per row, without gaps; step -1 before the first of a strand."""
        if (step >= 0).all():
            for i in np.append(runs(strand)[1:], len(strand)) - 1:
                self.last[int(strand[i])] = (int(run[i]), int(step[i]))
            return run, step
        if not self.last and (step < 0).all():
            return run, step
        run, step = run.copy(), step.copy()
        for one in np.unique(strand):
            mine = np.flatnonzero(strand == one)
            known = np.maximum.accumulate(np.where(step[mine] >= 0, np.arange(len(mine)), -1))
            before = self.last.get(int(one), (int(run[mine[0]]), -1))
            inside = known >= 0
            source = mine[known[inside]]
            run[mine[inside]], step[mine[inside]] = run[source], step[source]
            run[mine[~inside]], step[mine[~inside]] = before
            self.last[int(one)] = (int(run[mine[-1]]), int(step[mine[-1]]))
        return run, step


def survey(
    source: TraceSource,
    *,
    steps: range | None = None,
    where: pl.Expr | None = None,
    min_dur_ns: int = 0,
) -> Survey:
    """Read the log once and return what it holds."""
    gathering = _Gathering(where, min_dur_ns)
    for batch in source.batches(wanted(_COLUMNS, where)):
        for part in batch.iter_slices(4 * PIECE_ROWS):
            gathering.add(selected(part, steps))
    return gathering.result(_shown_summaries(source.summaries.collect(), steps, where))


def _shown_summaries(summaries: pl.DataFrame, steps: range | None, where: pl.Expr | None) -> pl.DataFrame:
    """Keep the summaries that a filter keeps: none if it asks for what only events have."""
    summaries = selected(summaries, steps)
    if where is None:
        return summaries
    known = set(where.meta.root_names()) <= set(summaries.columns)
    return summaries.filter(where) if known else summaries.clear()


@dataclass(slots=True)
class _Merged:
    """Groups and sums frame after frame; what is held grows with the groups, not with the rows."""

    keys: Mapping[str, pl.DataType]
    sums: Mapping[str, pl.Expr]
    _tables: list[pl.DataFrame] = field(default_factory=list)

    def add(self, frame: pl.DataFrame) -> None:
        """Count the rows of one frame."""
        self._tables.append(self._grouped(frame))
        if len(self._tables) >= 16:
            self._tables = [self.frame()]

    def frame(self) -> pl.DataFrame:
        """Return the groups in the order in which they were met; no rows if there were none."""
        return (
            self._grouped(pl.concat(self._tables))
            if self._tables
            else pl.DataFrame(schema=[*self.keys.items(), *dict.fromkeys(self.sums, pl.Int64()).items()])
        )

    def _grouped(self, frame: pl.DataFrame) -> pl.DataFrame:
        return frame.group_by(list(self.keys), maintain_order=True).agg(**self.sums)


_FACTS = [
    pl.len().alias("events"),
    pl.col("shown").sum(),
    pl.col("layer").min().alias("low"),
    pl.col("layer").max().alias("high"),
    pl.col("step").max(),
    pl.col("start", "arrival").min(),
    pl.col("start", "arrival").null_count().name.suffix("_missing"),
    # Lists, so that a selection of everything and a group are of one form.
    pl.col("device", "rank", "pid").unique().drop_nulls().implode(),
]
#: The part of a step.
_PART: dict[str, pl.DataType] = {"strand": pl.Int64(), "run": pl.Int64(), "step": pl.Int64()}


class _Gathering:
    """Merges the counts of one slice after the other."""

    def __init__(self, where: pl.Expr | None, min_dur_ns: int) -> None:
        self.shown = (pl.lit(value=True) if where is None else where) & (pl.col("dur_ns") >= min_dur_ns)
        self.strands = Strands()
        self.facts: list[StrandFacts] = []
        self.carry = StepCarry()
        text, whole = pl.Categorical(), pl.Int64()
        self.parts = _Merged(
            _PART | {"within": pl.Boolean(), "category": text},
            {"dur_ns": pl.col("dur_ns").sum(), "self_ns": pl.col("self_ns").sum()},
        )
        self.spread = _Merged(dict.fromkeys(USUAL_OF, text) | {"self_ns": whole}, {"calls": pl.col("calls").sum()})
        self.samples = _Merged(
            _PART | dict.fromkeys(("op", "name", "category", "shape"), text),
            {
                "calls": pl.col("calls").sum(),
                "dur_ns": pl.col("dur_ns").sum(),
                "min_ns": pl.col("min_ns").min(),
                "max_ns": pl.col("max_ns").max(),
                "line": pl.col("line").min(),
            },
        )

    def add(self, frame: pl.DataFrame) -> None:
        """Count one slice of a batch."""
        if frame.is_empty():
            return
        sampled = frame["kind"] != "event"
        if sampled.any():
            self._add_samples(frame.filter(sampled & frame.select(self.shown.alias("shown")).to_series()))
            frame = frame.filter(~sampled)
            if frame.is_empty():
                return
        strand = self.strands.of(frame)
        run, step = self.carry.fill(strand, column(frame, "run"), column(frame, "step"))
        own = frame["self_ns"].fill_null(0) if frame["self_ns"].null_count() else frame["self_ns"]
        self._add_facts(frame, strand, step)
        self.parts.add(
            frame.select(
                pl.Series("strand", strand),
                pl.Series("run", run),
                pl.Series("step", step),
                pl.col("step").is_not_null().alias("within"),
                "category",
                pl.when(pl.col("depth") == 0).then("dur_ns").otherwise(0).alias("dur_ns"),
                own.alias("self_ns"),
            )
        )
        one = pl.lit(1, pl.UInt32).alias("calls")
        self.spread.add(frame.select(*USUAL_OF, _coarse(own).alias("self_ns"), one))

    def _add_samples(self, frame: pl.DataFrame) -> None:
        if frame.is_empty():
            return
        strand = pl.Series("strand", self.strands.of(frame))
        self.samples.add(
            frame.with_columns(strand, pl.lit(1, pl.UInt32).alias("calls"), min_ns="dur_ns", max_ns="dur_ns")
        )

    def _add_facts(self, frame: pl.DataFrame, strand: Ints, step: Ints) -> None:
        while len(self.facts) < len(self.strands.known):
            self.facts.append(StrandFacts())
        start, arrival = frame["start_ns"], frame["arrival_ns"] - frame["dur_ns"]
        rows = frame.select("layer", "device", "rank", "pid", self.shown.alias("shown")).with_columns(
            pl.Series("strand", strand), pl.Series("step", step), start.alias("start"), arrival.alias("arrival")
        )
        single = len(self.strands.known) == 1
        found = rows.select(_FACTS) if single else rows.group_by("strand").agg(_FACTS)
        for row in found.iter_rows(named=True):
            facts = self.facts[0 if single else row["strand"]]
            facts.events += row["events"]
            facts.shown += row["shown"]
            facts.has_steps |= row["step"] >= 0
            if row["low"] is not None:
                low, high = facts.layers or (row["low"], row["high"])
                facts.layers = (min(low, row["low"]), max(high, row["high"]))
            for which in ("start", "arrival"):
                facts.timed[which] &= not row[f"{which}_missing"]
                if row[which] is not None:
                    facts.earliest_ns[which] = min(facts.earliest_ns[which], row[which])
            facts.devices.update(row["device"])
            facts.ranks.update(row["rank"])
            facts.pids.update(row["pid"])
        stamped = [(which, at) for which, at in (("start", start), ("arrival", arrival)) if not at.null_count()]
        if not stamped:
            return
        roots = (frame["depth"] == 0).to_numpy()
        kind = track_kind(frame["category"])[roots]
        for which, begins in stamped if kind.any() else ():
            at = begins.to_numpy()[roots]
            for one in _overlap(strand[roots], kind, at, at + frame["dur_ns"].to_numpy()[roots]):
                self.facts[one].overlaps[which] = True

    def result(self, summaries: pl.DataFrame) -> Survey:
        """Return everything that was counted."""
        while len(self.facts) < len(self.strands.known):
            self.facts.append(StrandFacts())
        parts = self.parts.frame()
        return Survey(
            self.strands,
            self.facts,
            parts.group_by("strand", "run", "step").agg(pl.col("dur_ns").sum()),
            parts.filter("within").group_by("strand", "run", "step", "category").agg(pl.col("self_ns").sum()),
            _medians(self.spread.frame()),
            self.samples.frame(),
            summaries,
        )


def _coarse(values: pl.Series) -> pl.Series:
    """Round down to seven significant bits: medians of it are exact to 1.6 %, and few distinct values remain."""
    exact = values.to_numpy()
    _, bits = np.frexp(exact.astype(np.float64))
    shift = np.maximum(bits - 7, 0)
    return pl.Series((exact >> shift) << shift)


def _medians(spread: pl.DataFrame) -> pl.DataFrame:
    behind = pl.col("calls").cum_sum()
    return (
        spread.sort("self_ns")
        .group_by(USUAL_OF)
        .agg(
            pl.col("self_ns").filter(behind * 2 >= pl.col("calls").sum()).first().alias("usual_ns"),
            pl.col("calls").sum(),
        )
        .filter(
            pl.col("calls") >= _FEWEST_CALLS,
            ~pl.col("category").cast(pl.String).fill_null("").is_in(rules.NOT_COST),
        )
        .drop("calls")
    )


def _overlap(strand: Ints, kind: Ints, start: Ints, end: Ints) -> Ints:
    """Return the strands where an outermost row begins before the end of the one before it, of another kind."""
    found = (strand[1:] == strand[:-1]) & (kind[1:] != kind[:-1]) & (start[1:] < end[:-1]) & (end[:-1] < end[1:])
    return np.unique(strand[1:][found])
