"""A and B, bucket by bucket: what each spends per step, how the difference is made up, and what of it is proven."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.columns import check_columns
from tracekit.diff import caveats, evidence
from tracekit.diff.caveats import Caveat
from tracekit.diff.costs import Center, RunCosts, costs, dense
from tracekit.diff.pairing import Pair, by_rules, check_pairs, renamed, worker_names
from tracekit.errors import TracekitError, UsageError
from tracekit.manifest import Manifest
from tracekit.reading import Run
from tracekit.topology import Topology

#: What buckets can be made of: what stands for the same thing in two runs.
GROUPS = ("op", "name", "category", "layer", "worker", "rank", "shape", "device", "dialect", "phase", "tokens")

#: What is left of a change when medians are compared, which do not add up.
NO_SUM = "medians do not add"

#: Durations so short that their rounding alone can make a difference: a call takes less than so many resolutions.
_COARSE = 2

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Settings:
    """How to compare.

    Attributes:
        by: of `GROUPS`; None: op, or category where the engines differ.
        where: filters as in `bucketing.buckets`.
        center: a run's mean over its steps, or its median.
        min_effect: the smallest relative difference that matters.
        run_sd: relative deviation between runs, assumed for a side that has one.
        arrangement: how workers share a step; if not given, as a capture says, else by family.
        pairs, renames: buckets that bear another name in B; whether `rules.renames` is used.
    """

    by: Sequence[str] | None = None
    where: Sequence[str] = ()
    center: Center = "mean"
    min_effect: float = 0.01
    run_sd: float = 0.025
    arrangement: str | None = None
    pairs: Sequence[Pair] = ()
    renames: bool = True


@dataclass(frozen=True, slots=True)
class Repeat:
    """One run of a side: what it is called, and its logs."""

    label: str
    run: Run

    @property
    def manifest(self) -> Manifest | None:
        """The manifest, if the logs belong to a capture whose manifest can be read."""
        return next((c.manifest for c in self.run.captures if c.manifest is not None), None)


@dataclass(frozen=True, slots=True)
class Side:
    """What one side of a comparison is.

    Attributes:
        label, family, clock, basis: what it is called and rests on.
        runs: how many repeats.
        steps: how many steps per run (the most of any).
        workers: how many; topology: how they share a step.
    """

    label: str
    family: str
    clock: str
    basis: str
    runs: int
    steps: int
    workers: int
    topology: Topology


@dataclass(frozen=True, slots=True)
class Comparison:
    """A against B.

    Attributes:
        per: step, or call where the number of steps is not known.
        rows: the groups, calls_a, calls_b, calls_per_step_a, calls_per_step_b, per_step_a_ns, per_step_b_ns,
            per_call_a_ns, per_call_b_ns, delta_ns, ratio, ci_low, ci_high, p_value, p_adjusted, verdict,
            resolution_ns; by their part in the change.
        categories: the same by category; total: the same of the whole step, one row. Neither where `per` is call.
        waterfall: label, delta_ns: adds up to the total's delta_ns, to the nanosecond.
        caveats: why a number may not be what it seems.
    """

    a: Side
    b: Side
    by: tuple[str, ...]
    per: str
    settings: Settings
    rows: pl.DataFrame
    categories: pl.DataFrame
    total: pl.DataFrame
    waterfall: tuple[tuple[str, int], ...]
    caveats: tuple[Caveat, ...] = field(default=())


def diff(a: Sequence[Repeat], b: Sequence[Repeat], settings: Settings) -> list[Comparison]:
    """Compare two sides, each of one run or more.

    Returns:
        One comparison per family and clock that both have; of engines or clocks that differ, that with most cost.

    Raises:
        UsageError: a column that cannot be compared by; the same log twice on one side; a pair that names nothing.
        TracekitError: there is nothing to compare.
    """
    by = tuple(dict.fromkeys(("op",) if settings.by is None else settings.by))
    check_columns(by)
    if not (0 <= settings.run_sd <= 1 and 0 < settings.min_effect < 1):
        raise UsageError("--run-sd and --min-effect are percentages, as in 2.5 and 1")
    if unfit := [c for c in by if c not in GROUPS]:
        raise UsageError(
            f"runs cannot be compared by {unfit[0]}, it is not the same in two; choose {', '.join(GROUPS)}"
        )
    same_log = list(_same_logs(a, b))
    sides = [
        [c for r in side for c in costs(r.run, r.label, by, settings.where, settings.arrangement)] for side in (a, b)
    ]
    found = []
    pairs = list(_matched(*sides))
    told = (
        *same_log,
        *caveats.of_manifests([r.manifest for r in a], [r.manifest for r in b]),
        *_left_out("A", a, sides[0], [left for left, _ in pairs]),
        *_left_out("B", b, sides[1], [right for _, right in pairs]),
    )
    for left, right in pairs:
        synced = all(r.manifest is not None for r in (*a, *b))  # then a difference is told
        found.append(_compare(left, right, by, settings, told, synced=synced))
    if not found:
        missing = " and ".join(name for name, side in zip("AB", sides, strict=True) if not side)
        raise TracekitError(
            f"nothing to compare: {missing or 'neither side'} has no cost in what was selected; see `tracekit steps`"
        )
    return found


def _same_logs(a: Sequence[Repeat], b: Sequence[Repeat]) -> Iterator[Caveat]:
    for name, side in (("A", a), ("B", b)):
        paths = [s.path for r in side for s in r.run.streams]
        if doubled := sorted({p for p in paths if paths.count(p) > 1}):
            raise UsageError(f"{doubled[0]} stands twice in {name}: a repeat is another run, not the same log again")
    if both := sorted({s.path for r in a for s in r.run.streams} & {s.path for r in b for s in r.run.streams}):
        yield Caveat("same-log", f"A and B hold the same log: {both[0]}")


def _left_out(
    name: str, side: Sequence[Repeat], costs: Sequence[RunCosts], compared: Sequence[Sequence[RunCosts]]
) -> Iterator[Caveat]:
    """Name what a side has and the comparison has not."""
    used = {(r.family, r.clock) for runs in compared for r in runs}
    if others := sorted({(r.family, r.clock) for r in costs} - used):
        what = ", ".join(f"{family} ({clock})" for family, clock in others)
        yield Caveat("not-compared", f"{name} also holds {what}, which the other side has not: not compared")
    for repeat in side:
        if used and not any(r.label == repeat.label or r.label.startswith(f"{repeat.label} (run ") for r in costs):
            yield Caveat("not-compared", f"{name}: {repeat.label} has no cost in what was selected: left out")


def _matched(a: Sequence[RunCosts], b: Sequence[RunCosts]) -> Iterator[tuple[list[RunCosts], list[RunCosts]]]:
    """Pair what can be compared: the same family and clock; else the same family; else the most cost of each."""
    for key in (lambda r: (r.family, r.clock), lambda r: r.family, lambda _: None):
        left, right = ([*dict.fromkeys(key(r) for r in side)] for side in (a, b))
        common = [k for k in left if k in right]
        for k in common:
            yield _one_clock([r for r in a if key(r) == k]), _one_clock([r for r in b if key(r) == k])
        if common:
            return


def _one_clock(side: Sequence[RunCosts]) -> list[RunCosts]:
    """Keep the runs of the family and clock that hold most cost: unlike numbers never meet."""
    cost: dict[tuple[str, str], int] = {}
    for run in side:
        key = (run.family, run.clock)
        cost[key] = cost.get(key, 0) + int(run.cells["self_ns"].sum())
    most = max(cost, key=lambda k: cost[k])
    return [r for r in side if (r.family, r.clock) == most]


def _compare(
    a: list[RunCosts],
    b: list[RunCosts],
    by: tuple[str, ...],
    settings: Settings,
    told: Sequence[Caveat],
    *,
    synced: bool,
) -> Comparison:
    notes = [*told]
    if a[0].family != b[0].family and settings.by is None:
        by = ("category",)
    a, b, paired = _same_names(a, b, by, settings)
    notes += paired
    a, b = (_without_copies(side, name, by, notes) for side, name in ((a, "A"), (b, "B")))
    per = "call" if any(r.per == "call" for r in (*a, *b)) else "step"
    if per == "call":
        a, b = ([replace(r, per="call") for r in side] for side in (a, b))
    both = _Both(a, b, per, by, settings)
    rows, categories, total = both.tables()
    notes += [
        c for c in caveats.of_runs(a, b, settings.run_sd, settings.center) if c.code != "sync-unknown" or not synced
    ]
    if min(len(a), len(b)) == 1 and "unclear" in {*rows["verdict"], *total["verdict"]}:
        notes.append(Caveat("repeats", "repeats of both sides (--a, --b; three or more each) would settle more of it"))
    return Comparison(
        _side(a),
        _side(b),
        by,
        per,
        settings,
        rows,
        categories,
        total,
        _waterfall(rows, total, by),
        tuple(notes),
    )


def _side(runs: Sequence[RunCosts]) -> Side:
    label = runs[0].label if len(runs) == 1 else f"{runs[0].label} and {len(runs) - 1} more"
    basis = "+".join(sorted({r.basis for r in runs}))
    steps = max((int(n) for r in runs if r.per == "step" for n in r.counts["steps"]), default=0)
    workers = max(r.counts.height for r in runs)
    return Side(label, runs[0].family, runs[0].clock, basis, len(runs), steps, workers, runs[0].topology)


def _same_names(
    a: list[RunCosts], b: list[RunCosts], by: tuple[str, ...], settings: Settings
) -> tuple[list[RunCosts], list[RunCosts], list[Caveat]]:
    """Give buckets that are the same thing the same name."""
    notes = []
    if "worker" in by:
        for run in (*a, *b):
            names = worker_names(a[0].workers, run.workers)
            if names and set(names.values()) != set(names):
                pairs = ", ".join(f"{new} is {old}" for new, old in names.items())
                notes.append(Caveat("workers-paired", f"{run.label}: workers are paired by their order: {pairs}"))
                a, b = ([_rename_workers(r, names) if r is run else r for r in side] for side in (a, b))
    cells_a, cells_b = ([r.cells for r in side] for side in (a, b))
    check_pairs(settings.pairs, cells_a, cells_b, by)
    fused = by_rules(cells_a, cells_b, by) if settings.renames else {}
    named = {name for pair in settings.pairs for name in (*pair.old, pair.new)}
    fused = {new: label for new, label in fused.items() if new not in named}
    notes += [Caveat("fused", f"put together by a rule (--no-renames): {label}") for label in fused.values()]
    a, b = (
        [replace(r, cells=renamed(r.cells, by, fused, settings.pairs)) for r in side] for side in (a, b)
    )  # fmt: skip
    return a, b, notes


def _rename_workers(run: RunCosts, names: dict[str, str]) -> RunCosts:
    frames = {f: getattr(run, f).with_columns(pl.col("worker").replace(names)) for f in ("cells", "steps", "counts")}
    return replace(run, **frames)


def _without_copies(side: list[RunCosts], name: str, by: tuple[str, ...], notes: list[Caveat]) -> list[RunCosts]:
    """Count a run once: repeats whose every number is the same are copies of one log."""
    if len(side) == 1:
        return side
    kept: list[RunCosts] = []
    seen: list[pl.DataFrame] = []
    for run in side:
        numbers = run.cells.group_by(*by, "step").agg(pl.col("self_ns", "calls").sum()).sort(*by, "step")
        if any(numbers.equals(other) for other in seen):
            notes.append(Caveat("copy", f"{name}: {run.label} holds the same numbers as a repeat before it: left out"))
            continue
        kept.append(run)
        seen.append(numbers)
    return kept


@dataclass(frozen=True, slots=True)
class _Both:
    """Both sides, ready to be laid out by any keys."""

    a: list[RunCosts]
    b: list[RunCosts]
    per: str
    by: tuple[str, ...]
    settings: Settings

    def tables(self) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        """Return rows, categories and the total; whole nanoseconds are made once, so that all of them add up."""
        base_keys = list(dict.fromkeys((*self.by, "category")))
        if self.per == "call":
            rows = self._table(self.by, None)
            return rows, rows.clear(), rows.clear()
        base = None if self.settings.center == "median" else self._whole(base_keys)
        rows = self._table(self.by, base)
        return rows, self._table(("category",), base), self._table(("all",), base)

    def _sides(self, keys: Sequence[str]) -> tuple[list[pl.DataFrame], list[pl.DataFrame]]:
        return tuple(  # type: ignore[return-value]
            [_all(r).values(keys, r.weight(self.by), self.settings.center) for r in side] for side in (self.a, self.b)
        )

    def _whole(self, keys: Sequence[str]) -> pl.DataFrame:
        """Return the keys, per_step_a_ns, per_step_b_ns in whole nanoseconds."""
        sides = self._sides(keys)
        labels = pl.concat([f.select(keys) for side in sides for f in side]).unique(maintain_order=True)
        for name, side in zip("ab", sides, strict=True):
            mean = _array(side, labels, keys, "value").mean(axis=1)
            labels = labels.with_columns(_ns(mean).alias(f"per_step_{name}_ns"))
        return labels.with_columns(pl.lit("total").alias("all"))

    def _table(self, keys: Sequence[str], base: pl.DataFrame | None) -> pl.DataFrame:
        sides = self._sides(keys)
        labels = pl.concat([f.select(keys) for side in sides for f in side]).unique(maintain_order=True)
        if base is None:
            base = self._whole(keys)
        numbers = [pl.col("per_step_a_ns", "per_step_b_ns").sum()]
        frame = labels.join(base.group_by(keys).agg(numbers), on=keys, nulls_equal=True, maintain_order="left")
        means, calls = [], []
        for runs, side in zip((self.a, self.b), sides, strict=True):
            values = _array(side, labels, keys, "value")
            means.append(self._mean(runs, values, keys, labels))
            calls.append(_array(side, labels, keys, "calls").mean(axis=1))
        found = evidence.compare(*means)
        counts = [self._calls(runs, keys, labels) for runs in (self.a, self.b)]
        return self._finish(frame, found, means, calls, counts)

    def _mean(self, runs: list[RunCosts], values: Floats, keys: Sequence[str], labels: pl.DataFrame) -> evidence.Mean:
        if len(runs) > 1:
            return evidence.of_repeats(values)
        stepped = runs[0].per == "step" and runs[0].steps.height
        batches = _all(runs[0]).batches(keys, labels, self.settings.center) if stepped else None
        return evidence.of_one_run(values[:, 0], batches, self.settings.run_sd)

    def _calls(self, runs: list[RunCosts], keys: Sequence[str], labels: pl.DataFrame) -> npt.NDArray[np.int64]:
        counted = [_all(r).cells.group_by(keys).agg(pl.col("calls").sum()) for r in runs]
        calls: npt.NDArray[np.int64] = np.rint(_array(counted, labels, keys, "calls").sum(axis=1)).astype(np.int64)
        return calls

    def _finish(
        self,
        frame: pl.DataFrame,
        found: evidence.Evidence,
        means: list[evidence.Mean],
        calls: list[Floats],
        counts: list[npt.NDArray[np.int64]],
    ) -> pl.DataFrame:
        adjusted = evidence.holm(found.p)
        there = [np.where(n > 0, n, m.values) for n, m in zip(counts, means, strict=True)]  # calls are not always told
        words = evidence.verdicts(there[0], there[1], found, adjusted, self.settings.min_effect)
        resolution = max(r.resolution_ns for r in (*self.a, *self.b))
        rounding = np.maximum(*calls) * (resolution if resolution > 1 else 0)
        coarse = (np.abs(means[1].values - means[0].values) <= rounding) & (
            np.minimum(means[0].values, means[1].values) < _COARSE * rounding
        )
        words = np.where(coarse & np.isin(words, ["faster", "slower"]), "unclear", words)
        per_call = [_ns(np.divide(m.values, c, out=np.full(len(c), np.nan), where=c > 0))
                    for m, c in zip(means, calls, strict=True)]  # fmt: skip
        keys = frame.columns[:-2]
        frame = frame.with_columns(
            calls_a=pl.Series(counts[0]), calls_b=pl.Series(counts[1]),
            calls_per_step_a=pl.Series(calls[0]), calls_per_step_b=pl.Series(calls[1]),
            per_call_a_ns=per_call[0], per_call_b_ns=per_call[1],
            delta_ns=pl.col("per_step_b_ns") - pl.col("per_step_a_ns"),
            ratio=_known(found.ratio), ci_low=_known(found.low), ci_high=_known(found.high), p_value=_known(found.p),
            p_adjusted=_known(adjusted), verdict=pl.Series(words.astype(object), dtype=pl.String),
            resolution_ns=_ns(rounding),
        ).sort(pl.col("delta_ns").abs(), *keys, descending=[True, *[False] * len(keys)])  # fmt: skip
        if self.per == "call":  # numbers of a step are not known
            frame = frame.with_columns(pl.lit(None, dtype=frame.schema[c]).alias(c) for c in _OF_A_STEP)
        return frame.select(*keys, *COLUMNS)


#: The numbers of a row, beside its groups.
COLUMNS = (
    "calls_a", "calls_b", "calls_per_step_a", "calls_per_step_b", "per_step_a_ns", "per_step_b_ns", "per_call_a_ns",
    "per_call_b_ns", "delta_ns", "ratio", "ci_low", "ci_high", "p_value", "p_adjusted", "verdict", "resolution_ns",
)  # fmt: skip


_OF_A_STEP = ("calls_per_step_a", "calls_per_step_b", "per_step_a_ns", "per_step_b_ns", "delta_ns")


def _all(run: RunCosts) -> RunCosts:
    return replace(run, cells=run.cells.with_columns(pl.lit("total").alias("all")))


def _array(side: Sequence[pl.DataFrame], labels: pl.DataFrame, keys: Sequence[str], value: str) -> Floats:
    """Return [labels, runs], zero where a run has nothing."""
    rows = pl.concat([f.with_columns(pl.lit(n).alias("place")) for n, f in enumerate(side)])
    return dense(rows, labels, keys, "place", value, len(side))


def _ns(values: Floats) -> pl.Series:
    return pl.Series(values, dtype=pl.Float64, nan_to_null=True).round().cast(pl.Int64)


def _known(values: Floats) -> pl.Series:
    return pl.Series(values, dtype=pl.Float64, nan_to_null=True)


def _waterfall(rows: pl.DataFrame, total: pl.DataFrame, by: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Return label and difference: they add up to the total's difference."""
    if total.is_empty():
        return ()
    parts = [(name(row, by), int(row["delta_ns"])) for row in rows.iter_rows(named=True)]
    rest = int(total["delta_ns"].item()) - sum(ns for _, ns in parts)
    return (*parts, *([(NO_SUM, rest)] if rest else []))


def name(row: dict[str, Any], by: Sequence[str]) -> str:
    """Return what a row is called in a sentence."""
    return ", ".join("no layer" if row[c] is None and c == "layer" else str(row[c]) for c in by)
