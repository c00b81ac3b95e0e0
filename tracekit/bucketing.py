"""Cost tables: events, samples and summaries to one row per group, without adding what must not be added.

One table per family and clock. A label's complete events are used where the log holds them, else its summary, else
its samples (estimated); every row says on what it rests (`basis`). Shares are of self time of cost, so they add to
100 %: time without work (view) and time spent waiting for other processes (wait) is shown and not counted.

Percentiles are exact: durations are integers that repeat, so counts per (group, duration) are kept, not rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import polars as pl

from tracekit import rules
from tracekit.columns import check_columns, condition, natural, natural_order
from tracekit.counting import Source, count
from tracekit.enrich import label_self_ns
from tracekit.errors import UsageError
from tracekit.frame import EVENTS
from tracekit.stepping import suggest_skip
from tracekit.topology import Topology, topology

#: What rows can be ordered by.
SORTS = ("self", "total", "calls", "mean", "p50", "p95", "max", "group")

#: The numbers of a row, beside its groups and its basis.
NUMBERS: dict[str, pl.DataType] = {
    "calls": pl.UInt64(),
    "samples": pl.UInt64(),  # lines seen, where calls is known from ordinals only
    "total_ns": pl.Int64(),
    "self_ns": pl.Int64(),
    "share": pl.Float64(),
    "mean_ns": pl.Int64(),
    "p50_ns": pl.Int64(),
    "p95_ns": pl.Int64(),
    "max_ns": pl.Int64(),
}

#: One call that holds this part of a row's total is named, if there are so many calls.
_ONE_CALL_PART = 0.25
_MANY_CALLS = 10

_LABEL = ("stream", "worker", "run", "name")


class Readable(Source, Protocol):
    """What buckets are made from: see `reading.Run`."""

    @property
    def summaries(self) -> pl.LazyFrame:
        """Aggregates as printed."""

    @property
    def families(self) -> dict[str, str]:
        """The family of each dialect."""

    @property
    def resolutions(self) -> dict[str, int]:
        """What each clock's durations are rounded to, in ns."""

    @property
    def topology(self) -> str | None:
        """How workers share a step, if the logs' capture tells."""


@dataclass(frozen=True, slots=True)
class Table:
    """The buckets of one family and clock.

    Attributes:
        frame: the group columns, ``basis``, then `NUMBERS` and ``per_step_ns`` (the median over the steps of the
            group's self time in one; null where steps are not known); largest self time first.
        cost_ns: what shares are of: the self time of all cost.
        unaccounted_ns: time inside the steps in which no operation ran; None where no start was printed.
        resolution_ns: what printed durations are rounded to: a total may be off by up to calls x this.
        notes: why a number may not be what it seems.
    """

    family: str
    clock: str
    by: tuple[str, ...]
    frame: pl.DataFrame
    cost_ns: int
    workers: tuple[str, ...]
    resolution_ns: int = 1
    unaccounted_ns: int | None = None
    notes: tuple[str, ...] = field(default=())


def buckets(
    run: Readable,
    by: Sequence[str] = ("op",),
    *,
    where: Sequence[str] = (),
    sort: str = "self",
    arrangement: str | None = None,
) -> list[Table]:
    """Return one table per family and clock found in the logs.

    Args:
        run: what `tracekit.read` returned.
        by: group columns, of `GROUPS`.
        where: ``COLUMN=VALUE[,VALUE...]`` filters, all of which must hold; a value may be a shell pattern.
        arrangement: how workers share a step, ``pipeline`` or ``parallel``; if not given, as the logs'
            capture says, else by family.
        sort: of `SORTS`; numbers from the largest down, ``group`` in the groups' natural order.

    Raises:
        UsageError: a column or an order that does not exist.

    >>> import tracekit as tk
    >>> table = tk.buckets(tk.read("samples/llama_rpc_client.log"), by=["op"])[0]
    >>> table.frame.select("op", "calls", "total_ns").rows()
    [('GET_ROWS', 72, 494000)]
    """
    by = tuple(dict.fromkeys(by))
    check_columns(by)
    if sort not in SORTS:
        raise UsageError(f"cannot sort by {sort!r}; choose from {', '.join(SORTS)}")
    only = condition(where)
    counts = count(run, by, only)
    family = pl.col("dialect").cast(pl.String).replace_strict(run.families, default="").alias("family")
    durations, steps = counts.durations.with_columns(family), counts.steps.with_columns(family)
    spans = counts.spans.with_columns(family)
    summaries = run.summaries.collect().filter(only).with_columns(family)
    pairs = pl.concat([f.select(pl.col("family", "clock").cast(pl.String)) for f in (durations, summaries)])
    tables = []
    for name, clock in pairs.unique().sort("family", "clock").iter_rows():
        mine = (pl.col("family") == name) & (pl.col("clock").cast(pl.String) == clock)
        table = _table(name, clock, by, durations.filter(mine), summaries.filter(mine), run.resolutions)
        how = topology(name, arrangement or run.topology)
        per_step = _per_step(by, steps.filter(mine), how)
        unaccounted_ns, gaps = _unaccounted(spans.filter(mine))
        notes = (*_side_by_side(table, how), *_step_notes(steps.filter(mine)), *gaps)
        tables.append(_finish(replace(table, unaccounted_ns=unaccounted_ns), per_step, sort, notes))
    return tables


def _table(
    family: str,
    clock: str,
    by: tuple[str, ...],
    counts: pl.DataFrame,
    summaries: pl.DataFrame,
    resolutions: Mapping[str, int],
) -> Table:
    complete, labels = _choose(counts, summaries)
    events = counts.join(complete, on=_LABEL, how="semi", nulls_equal=True)
    estimated = _labels(by, counts.join(complete, on=_LABEL, how="anti", nulls_equal=True), summaries, labels)
    is_cost = ~pl.col("category").cast(pl.String).is_in(rules.NOT_COST)
    cost_ns = int(events.filter(is_cost)["self_ns"].sum()) + int(estimated.filter(is_cost)["cost_ns"].sum())
    frame = _rows(by, events, estimated, cost_ns)
    workers = pl.concat([events["worker"].cast(pl.String), estimated["worker"].cast(pl.String)]).unique()
    coarse = resolutions.get(clock, 1)
    if events.filter(pl.col("dur_ns") % coarse != 0).height:  # an instrument that also prints nanoseconds
        coarse = 1
    return Table(
        family,
        clock,
        by,
        frame,
        cost_ns,
        tuple(natural_order(workers.to_list())),
        coarse,
        notes=tuple(_notes(estimated, frame)),
    )


def _per_step(by: tuple[str, ...], steps: pl.DataFrame, how: Topology) -> pl.DataFrame:
    """Return per group the median over the steps of its self time in one, workers put together.

    A step in which a group does not occur counts as zero. Along a pipeline workers add; of parallel workers the one
    that spends most counts.
    """
    step = pl.struct("stream", "run", "step")
    there = steps.group_by("worker").agg(step.n_unique().alias("there"))
    split = list(dict.fromkeys((*by, "worker")))
    own = steps.group_by(list(dict.fromkeys((*split, "stream", "run", "step")))).agg(pl.col("self_ns").sum())
    own = own.join(there, on="worker").sort("self_ns")
    if "step" in by:
        own = own.with_columns(pl.lit(1, dtype=pl.UInt32).alias("there"))

    def at(place: pl.Expr) -> pl.Expr:
        """Return the value at a place among all steps, the missing ones first."""
        index = place.cast(pl.Int64) - (pl.col("there").first().cast(pl.Int64) - pl.len().cast(pl.Int64))
        return pl.when(index < 0).then(0).otherwise(pl.col("self_ns").get(index.clip(0), null_on_oob=True))

    middle = (pl.col("there").first() - 1) / 2
    median = ((at(middle.floor()) + at(middle.ceil())) / 2).round().cast(pl.Int64)
    per_worker = own.group_by(split, maintain_order=True).agg(median.alias("per_step_ns"))
    together = pl.col("per_step_ns").sum() if how == "pipeline" else pl.col("per_step_ns").max()
    return per_worker.group_by(by).agg(together)


def _side_by_side(table: Table, how: Topology) -> tuple[str, ...]:
    """Say that totals of parallel workers add what ran at the same time."""
    if how == "pipeline" or len(table.workers) < 2 or "worker" in table.by:
        return ()
    return (
        "workers run side by side (--topology): totals add them all, ms/step is that of the one that spends most; "
        "--by worker tells them apart",
    )


def _step_notes(steps: pl.DataFrame) -> tuple[str, ...]:
    """Say which leading steps look like warm-up."""
    spent = steps.group_by("stream", "worker", "run", "step", "tokens").agg(pl.col("self_ns").sum().alias("dur_ns"))
    suggested = suggest_skip(spent)
    return () if suggested is None else (suggested[1],)


def _unaccounted(spans: pl.DataFrame) -> tuple[int | None, tuple[str, ...]]:
    """Return the time inside steps that no operation accounts for, and a note that says so."""
    if spans.is_empty():
        return None, ()
    length = pl.col("end_ns") - pl.col("start_ns")
    length_ns, open_ns = spans.select(length.sum(), (length - pl.col("self_ns")).clip(0).sum().alias("open_ns")).row(0)
    part = 100 * open_ns / length_ns if length_ns else 0.0
    return open_ns, (
        f"unaccounted: {open_ns / 1e6:.3f} of the {length_ns / 1e6:.3f} ms from the first start to the last end of "
        f"each step ({part:.1f} %) lie between operations",
    )


def _outliers(frame: pl.DataFrame, by: Sequence[str]) -> Iterator[str]:
    """Name the rows in which one call holds a good part of the total: their mean tells nothing."""
    part = pl.col("max_ns") / pl.col("total_ns")
    cost = frame.filter(pl.col("share").is_not_null() & (pl.col("total_ns") > 0))
    rows = cost.filter((pl.col("calls") >= _MANY_CALLS) & (part > _ONE_CALL_PART)).sort("max_ns", descending=True)
    for row in rows.head(3).to_dicts():
        name = ", ".join(str(row[c]) for c in by)
        rest = (row["total_ns"] - row["max_ns"]) / (row["calls"] - 1)
        yield (
            f"{name}: one call holds {100 * row['max_ns'] / row['total_ns']:.0f} % of the total "
            f"({row['max_ns'] / 1e6:.6f} of {row['total_ns'] / 1e6:.6f} ms); without it the mean is {rest / 1e6:.6f} ms"
        )


def _finish(table: Table, per_step: pl.DataFrame, sort: str, notes: tuple[str, ...]) -> Table:
    """Add the per-step column where a row rests on events alone, and bring the rows in order."""
    frame = table.frame.join(per_step, on=table.by, how="left", nulls_equal=True)
    rests = pl.col("basis") == "events"
    frame = frame.with_columns(pl.when(rests).then("per_step_ns").alias("per_step_ns"))
    notes = (*table.notes, *_outliers(frame, table.by), *notes)
    return replace(table, frame=_sorted(frame, table.by, sort), notes=notes)


def _choose(counts: pl.DataFrame, summaries: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Decide per label (stream, worker, run, name) what it rests on.

    Returns:
        The labels whose events are complete or have no rival, and the others with their ``basis``.
    """
    seen = counts.group_by(_LABEL).agg(
        pl.col("n").sum(),
        pl.col("call").max(),
        pl.col("first_call").min(),
        (pl.col("kind").cast(pl.String) == "sample").any().alias("sampled"),
    )
    rivals = summaries.group_by(_LABEL).agg(
        pl.col("step").is_null().any().alias("summarised"), pl.lit(value=True).alias("stepped")
    )
    known = seen.join(rivals, on=_LABEL, how="full", coalesce=True, nulls_equal=True).with_columns(
        pl.col("sampled", "summarised", "stepped").fill_null(value=False)
    )
    whole = pl.col("call").is_null() | ((pl.col("first_call") == 1) & (pl.col("n") == pl.col("call")))
    basis = (
        pl.when(pl.col("n").is_not_null() & ~pl.col("sampled") & (whole | ~pl.col("stepped")))
        .then(pl.lit("events"))
        .when("summarised")
        .then(pl.lit("summary"))
        .when("stepped")
        .then(pl.lit("steps"))
        .otherwise(pl.lit("sampled"))
    )
    known = known.with_columns(basis.alias("basis"))
    is_events = pl.col("basis") == "events"
    return known.filter(is_events).select(_LABEL), known.filter(~is_events).select(*_LABEL, "basis")


def _labels(by: tuple[str, ...], counts: pl.DataFrame, summaries: pl.DataFrame, labels: pl.DataFrame) -> pl.DataFrame:
    """Return one row per label that rests on its summary or on samples.

    Columns: the groups, stream, worker, run, name, category, basis, calls, samples, total_ns, self_ns (null where the
    hierarchy does not tell), cost_ns, mean_ns, p50_ns, p95_ns, max_ns.
    """
    keep = list(dict.fromkeys((*by, *_LABEL, "step", "category")))
    sampled = labels.filter(pl.col("basis") == "sampled")
    counts = (
        counts if "step" in counts.columns else counts.with_columns(pl.lit(None, dtype=EVENTS["step"]).alias("step"))
    )
    sizes = _stats(counts.join(sampled, on=_LABEL, how="semi", nulls_equal=True), keep)
    sizes = sizes.with_columns(
        pl.col("calls").alias("samples"),
        pl.coalesce(pl.col("call"), pl.col("calls")).cast(pl.UInt64).alias("calls"),
    ).with_columns((pl.col("calls") * pl.col("exact_mean")).round().cast(pl.Int64).alias("total_ns"))
    sums = summaries.join(labels, on=_LABEL, nulls_equal=True).filter(
        ((pl.col("basis") == "summary") & pl.col("step").is_null())
        | ((pl.col("basis") == "steps") & pl.col("step").is_not_null())
    )
    absent = [pl.lit(None, dtype=pl.Int64).alias(c) for c in ("p50_ns", "p95_ns")]
    sums = sums.select(
        *(pl.col(c) if c in sums.columns else pl.lit(None, dtype=EVENTS[c]).alias(c) for c in keep),
        "basis",
        "calls",
        pl.lit(None, dtype=pl.UInt64).alias("samples"),
        "total_ns",
        "mean_ns",
        *absent,
        "max_ns",
    )
    rows = pl.concat([sums, sizes.with_columns(pl.lit("sampled").alias("basis")).select(sums.columns)])
    return label_self_ns(rows)


def _stats(counts: pl.DataFrame, groups: Sequence[str]) -> pl.DataFrame:
    """Return calls, call, total_ns, self_ns, mean and exact percentiles per group of (duration, n) counts."""
    cum = pl.col("n").cum_sum()
    ordered = counts.group_by(*groups, "dur_ns").agg(pl.col("n", "self_ns").sum(), pl.col("call").max()).sort("dur_ns")

    def percentile(q: float) -> pl.Expr:
        place = (pl.col("n").sum() - 1) * q  # linear interpolation between closest ranks
        below = pl.col("dur_ns").filter(cum > place.floor()).first()
        above = pl.col("dur_ns").filter(cum > place.ceil()).first()
        return (below + (above - below) * (place - place.floor())).round().cast(pl.Int64)

    total = (pl.col("dur_ns") * pl.col("n").cast(pl.Int64)).sum()
    return ordered.group_by(groups).agg(
        pl.col("n").sum().alias("calls"),
        pl.col("call").max(),
        total.alias("total_ns"),
        pl.col("self_ns").sum(),
        (total / pl.col("n").sum()).alias("exact_mean"),
        (total / pl.col("n").sum()).round().cast(pl.Int64).alias("mean_ns"),
        percentile(0.5).alias("p50_ns"),
        percentile(0.95).alias("p95_ns"),
        pl.col("dur_ns").max().alias("max_ns"),
    )


def _rows(by: tuple[str, ...], events: pl.DataFrame, estimated: pl.DataFrame, cost_ns: int) -> pl.DataFrame:
    """Join both kinds of rows to one per group; percentiles only where the group rests on one of them."""
    exact = _stats(events, by).with_columns(
        pl.lit("events").alias("basis"), pl.lit(None, dtype=pl.UInt64).alias("samples")
    )
    cost = events.group_by(by).agg(_cost("self_ns").sum().alias("cost_ns"), _is_not_cost().all().alias("idle"))
    exact = exact.join(cost, on=by, nulls_equal=True)
    merged = (
        estimated.group_by(by)
        .agg(
            pl.col("basis").unique().sort().str.join("+"),
            pl.col("calls", "samples", "total_ns").sum(),
            pl.when(pl.col("self_ns").is_not_null().all()).then(pl.col("self_ns").sum()).alias("self_ns"),
            pl.when(pl.col("self_ns").is_not_null().all()).then(_cost("self_ns").sum()).alias("cost_ns"),
            _is_not_cost().all().alias("idle"),
            *(pl.when(pl.len() == 1).then(pl.col(c).first()).alias(c) for c in ("p50_ns", "p95_ns")),
            pl.col("max_ns").max(),
        )
        .with_columns((pl.col("total_ns") / pl.col("calls")).round().cast(pl.Int64).alias("mean_ns"))
    )
    columns = [*by, "basis", "calls", "samples", "total_ns", "self_ns", "cost_ns", "idle"]
    columns += ["mean_ns", "p50_ns", "p95_ns", "max_ns"]
    both = pl.concat([exact.select(columns), merged.select(columns)])
    share = pl.col("cost_ns") / cost_ns if cost_ns else pl.lit(None, dtype=pl.Float64)
    return (
        both.group_by(by)
        .agg(
            pl.col("basis").unique().sort().str.join("+"),
            pl.col("calls", "samples", "total_ns").sum(),
            *(pl.when(pl.col(c).is_not_null().all()).then(pl.col(c).sum()).alias(c) for c in ("self_ns", "cost_ns")),
            pl.col("idle").all(),
            *(pl.when(pl.len() == 1).then(pl.col(c).first()).alias(c) for c in ("p50_ns", "p95_ns")),
            pl.col("max_ns").max(),
        )
        .with_columns(
            (pl.col("total_ns") / pl.col("calls")).round().cast(pl.Int64).alias("mean_ns"),
            pl.when(~pl.col("idle")).then(share).alias("share"),
            pl.when(pl.col("basis").str.contains("sampled")).then("samples").alias("samples"),
        )
        .select(*by, "basis", *(pl.col(c).cast(t) for c, t in NUMBERS.items()))
    )


def _is_not_cost() -> pl.Expr:
    return pl.col("category").cast(pl.String).is_in(rules.NOT_COST)


def _cost(column: str) -> pl.Expr:
    return pl.when(_is_not_cost()).then(0).otherwise(pl.col(column))


def _sorted(frame: pl.DataFrame, by: tuple[str, ...], sort: str) -> pl.DataFrame:
    groups = [natural(c) for c in by]
    if sort == "group":
        return frame.sort(groups)
    column = sort if sort == "calls" else f"{sort}_ns"
    return frame.sort(
        [pl.col(column), pl.col("total_ns"), *groups],
        descending=[True, True, *[False] * len(groups)],
        nulls_last=True,
    )


def _notes(estimated: pl.DataFrame, frame: pl.DataFrame) -> Iterator[str]:
    bases = set(estimated["basis"].to_list())
    if "steps" in bases:
        yield "rows of basis 'steps' cover the steps that were printed, not the whole run"
    if "sampled" in bases:
        yield (
            "sampled rows hold one call of every N: calls is the highest ordinal printed, totals are estimates "
            "(calls x mean of the samples) without an error bar: every Nth call may always be that of the same layer"
        )
    if frame["self_ns"].null_count():
        yield (
            "self time is not known ('-') where a summary or a sample does not tell which region a nested one "
            "ran in; shares are then of the outermost regions' time"
        )
