"""Cost tables: events, samples and summaries to one row per group, without adding what must not be added.

One table per family and clock. A label's complete events are used where the log holds them, else its summary, else
its samples (estimated); every row says on what it rests (`basis`). Shares are of self time of cost, so they add to
100 %: time without work (view) and time spent waiting for other processes (wait) is shown and not counted.

Percentiles are exact: durations are integers that repeat, so counts per (group, duration) are kept, not rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Protocol

import polars as pl

from tracekit import rules
from tracekit.enrich import label_self_ns
from tracekit.errors import UsageError
from tracekit.frame import EVENTS, Batch

#: What a table can be grouped by.
GROUPS = (
    "op", "name", "category", "layer", "worker", "stream", "rank", "shape",
    "device", "dialect", "phase", "tokens", "step", "run",
)  # fmt: skip
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

_PARTIAL_ROWS = 1 << 19
_LABEL = ("stream", "worker", "run", "name")


class Readable(Protocol):
    """What buckets are made from: see `reading.Run`."""

    def packed(self) -> Iterator[Batch]:
        """Yield events, packed."""

    @property
    def summaries(self) -> pl.LazyFrame:
        """Aggregates as printed."""

    @property
    def families(self) -> dict[str, str]:
        """The family of each dialect."""

    @property
    def resolutions(self) -> dict[str, int]:
        """What each clock's durations are rounded to, in ns."""


@dataclass(frozen=True, slots=True)
class Table:
    """The buckets of one family and clock.

    Attributes:
        frame: the group columns, ``basis``, then `NUMBERS`; largest self time first.
        cost_ns: what shares are of: the self time of all cost.
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
    notes: tuple[str, ...] = field(default=())


def buckets(
    run: Readable, by: Sequence[str] = ("op",), *, where: Sequence[str] = (), sort: str = "self"
) -> list[Table]:
    """Return one table per family and clock found in the logs.

    Args:
        run: what `tracekit.read` returned.
        by: group columns, of `GROUPS`.
        where: ``COLUMN=VALUE[,VALUE...]`` filters, all of which must hold; a value may be a shell pattern.
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
    counts = _count(run, by, only)
    tables = []
    keyed = counts.with_columns(pl.col("dialect").replace_strict(run.families, default="").alias("family"))
    summaries = (
        run.summaries.collect()
        .filter(only)
        .with_columns(pl.col("dialect").cast(pl.String).replace_strict(run.families, default="").alias("family"))
    )
    pairs = pl.concat([f.select(pl.col("family", "clock").cast(pl.String)) for f in (keyed, summaries)])
    for family, clock in pairs.unique().sort("family", "clock").iter_rows():
        mine = (pl.col("family") == family) & (pl.col("clock").cast(pl.String) == clock)
        tables.append(_table(family, clock, by, keyed.filter(mine), summaries.filter(mine), sort, run.resolutions))
    return tables


def check_columns(by: Sequence[str]) -> None:
    """Raise UsageError for a column that no table can be grouped by."""
    for column in by:
        if column not in GROUPS:
            raise UsageError(f"cannot group by {column!r}; choose from {', '.join(GROUPS)}")
    if not by:
        raise UsageError(f"nothing to group by; choose from {', '.join(GROUPS)}")


def condition(where: Sequence[str]) -> pl.Expr:
    """Return the filter that all ``COLUMN=VALUE[,VALUE...]`` items make together."""
    tests: list[pl.Expr] = [pl.lit(value=True)]
    for item in where:
        column, equals, values = item.partition("=")
        if not equals:
            raise UsageError(f"--where {item}: expected COLUMN=VALUE, as in --where worker=rpc-b70-1")
        check_columns([column])
        text = pl.col(column).cast(pl.String).fill_null("-")
        tests.append(pl.any_horizontal(text.str.contains(_pattern(v)) for v in values.split(",")))
    return pl.all_horizontal(tests)


def _pattern(value: str) -> str:
    """A shell pattern as a regular expression that polars takes."""
    return "^(?s:" + translate(value).removeprefix("(?s:").replace(r")\Z", ")$").replace(r")\z", ")$")


def _count(run: Readable, by: tuple[str, ...], only: pl.Expr) -> pl.DataFrame:
    """Count rows per group and duration: the one pass over the events."""
    keys = list(dict.fromkeys((*by, "dialect", "clock", "kind", "category", "worker", "stream", "run")))
    parts: list[pl.DataFrame] = []
    height = 0
    for batch in run.packed():
        parts.append(_count_batch(batch, keys, only))
        height += parts[-1].height
        if height > _PARTIAL_ROWS:
            parts = [_merge(parts, keys)]
            height = parts[0].height // 2  # so that a log without repetition is not merged at every batch
    return _merge(parts, keys) if parts else pl.DataFrame(schema={c: _type(c) for c in _partial_columns(keys)})


def _count_batch(batch: Batch, keys: Sequence[str], only: pl.Expr) -> pl.DataFrame:
    """Count one batch: what a head decides is grouped once per head, rows only by group number and duration."""
    if asked := only.meta.root_names():
        kept = batch.frame({c: EVENTS[c] for c in asked}).select(only).to_series()
        batch = Batch(batch.rows.filter(kept), batch.heads, batch.constants)
    own = [c for c in keys if c in batch.rows.columns]
    # Ordinals tell per label whether all calls are there: such labels are kept apart until the end.
    ordinals = "call" in batch.rows.columns
    decided = [c for c in dict.fromkeys((*keys, *(["name"] if ordinals else []))) if c not in own]
    table = Batch(batch.heads.with_row_index("head"), batch.heads, batch.constants).frame(
        {c: EVENTS[c] for c in decided}
    )
    groups = table.unique(maintain_order=True).with_row_index("group")
    numbers = table.join(groups, on=decided, how="left", nulls_equal=True, maintain_order="left")["group"]
    rows = batch.rows.select(*own, "dur_ns", "self_ns", *(["call"] if ordinals else [])).with_columns(
        numbers.gather(batch.rows["head"]).alias("group")
    )
    call = pl.col("call") if ordinals else pl.lit(None, dtype=EVENTS["call"])
    counted = rows.group_by("group", *own, "dur_ns").agg(
        pl.len().cast(pl.UInt64).alias("n"),
        pl.col("self_ns").sum(),
        call.max().cast(EVENTS["call"]).alias("call"),
        call.min().cast(EVENTS["call"]).alias("first_call"),
    )
    counted = counted.with_columns(groups[c].gather(counted["group"]) for c in decided)
    if not ordinals and "name" not in keys:
        counted = counted.with_columns(pl.lit(None, dtype=EVENTS["name"]).alias("name"))
    return counted.select(pl.col(c).cast(_type(c)) for c in _partial_columns(keys))


def _partial_columns(keys: Sequence[str]) -> list[str]:
    return list(dict.fromkeys((*keys, "name", "dur_ns", "n", "self_ns", "call", "first_call")))


def _type(column: str) -> pl.DataType:
    return EVENTS.get(column, EVENTS["call"] if column == "first_call" else pl.UInt64())


def _merge(parts: Sequence[pl.DataFrame], keys: Sequence[str]) -> pl.DataFrame:
    groups = list(dict.fromkeys((*keys, "name", "dur_ns")))
    return (
        pl.concat(parts)
        .group_by(groups)
        .agg(pl.col("n", "self_ns").sum(), pl.col("call").max(), pl.col("first_call").min())
        .select(_partial_columns(keys))
    )


def _table(
    family: str,
    clock: str,
    by: tuple[str, ...],
    counts: pl.DataFrame,
    summaries: pl.DataFrame,
    sort: str,
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
    notes = tuple(_notes(estimated, frame))
    return Table(family, clock, by, _sorted(frame, by, sort), cost_ns, _in_order(workers), coarse, notes)


def _in_order(names: pl.Series) -> tuple[str, ...]:
    frame = names.alias("worker").to_frame()
    return tuple(frame.sort(natural("worker"))["worker"])


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


def natural(column: str) -> pl.Expr:
    """Return a sort key that puts ``rank 2`` before ``rank 10``: digits are padded."""
    if not isinstance(EVENTS[column], pl.Categorical):
        return pl.col(column)
    text = pl.col(column).cast(pl.String)
    return text.str.replace_all(r"(\d+)", "00000000$1").str.replace_all(r"0*(\d{8})", "$1")


def _notes(estimated: pl.DataFrame, frame: pl.DataFrame) -> Iterator[str]:
    bases = set(estimated["basis"].to_list())
    if "steps" in bases:
        yield "rows of basis 'steps' cover the steps that were printed, not the whole run"
    if "sampled" in bases:
        yield (
            "sampled rows hold one call of every N: calls is the highest ordinal printed, totals are estimated "
            "(calls x mean of the samples)"
        )
    if frame["self_ns"].null_count():
        yield (
            "self time is not known ('-') where a summary or a sample does not tell which region a nested one "
            "ran in; shares are then of the outermost regions' time"
        )
