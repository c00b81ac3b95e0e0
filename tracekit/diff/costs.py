"""What one run spends per step in each bucket: the numbers that a comparison rests on.

A run is one start of the processes. Its cost per step is per worker a mean (or median) over that worker's steps; along
a pipeline workers add, of workers side by side the mean is taken, as nothing else adds up.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit import rules
from tracekit.bucketing import buckets
from tracekit.columns import condition, natural
from tracekit.diff.pairing import FUSED, marked
from tracekit.enrich import label_self_ns, region_names
from tracekit.frame import EVENTS, Batch, empty
from tracekit.reading import Run
from tracekit.stepping import mark, suggest_skip
from tracekit.topology import Topology, topology

Center = Literal["mean", "median"]
Per = Literal["step", "call"]

_STEP = ("dialect", "clock", "stream", "run", "worker", "step", "phase", "tokens")
#: Columns that are the same for all of a worker's step.
_WHOLE_STEPS = ("dialect", "stream", "run", "worker", "rank", "step", "phase", "tokens")
_STEP_COLUMNS = (*_STEP, "family", "dur_ns")
_CELL = ("dialect", "clock", "category", "stream", "run", "worker", "step")

#: Steps of one run are put together to so many batches: enough of them for a variance, long enough to be independent.
_BATCHES = 10

#: A median of fewer steps does not leave an outlier out.
_STEPS_OF_A_MEDIAN = 5


@dataclass(frozen=True, slots=True)
class RunCosts:
    """One run of one family and clock.

    Attributes:
        label: how the run is called.
        basis: what it rests on: events, steps (printed), summary, sampled.
        per: step, or call where nothing tells how many steps there were.
        cells: the groups, category, worker, `FUSED`, step (null where steps are not known one by one), self_ns, calls;
            parts of one cell may stand in several rows. Cost only: neither views nor waits.
        steps: worker, step, phase, tokens, dur_ns, stands_out: one row per worker and step; no rows where they are
            not known.
        counts: worker, steps: how many steps each worker has.
        layers: how many layers were seen.
        idle_ns: waits, which are not compared.
        outside_ns: cost outside of any step, which is not compared.
        notes: why a number may not be what it seems.
        topology: how the workers share a step.
    """

    label: str
    family: str
    clock: str
    basis: str
    per: Per
    cells: pl.DataFrame
    steps: pl.DataFrame
    counts: pl.DataFrame
    layers: int
    resolution_ns: int = 1
    idle_ns: int = 0
    outside_ns: int = 0
    notes: tuple[str, ...] = field(default=())
    topology: Topology = "pipeline"

    @property
    def workers(self) -> list[str]:
        """The workers in natural order."""
        return self.counts.sort(natural("worker"))["worker"].to_list()

    def weight(self, by: Sequence[str]) -> float:
        """Return what a worker's time counts: all of it in a pipeline or on its own row, else its part of the mean."""
        apart = self.topology == "pipeline" or bool({"worker", "rank", "stream", "device"} & set(by))
        return 1.0 if apart else 1 / max(1, self.counts.height)

    def values(self, keys: Sequence[str], weight: float, center: Center) -> pl.DataFrame:
        """Return the keys, ``value`` (ns per step or call) and ``calls`` (per step)."""
        if self.per == "call":
            return self.cells.group_by(keys).agg(
                (pl.col("self_ns").sum() / pl.col("calls").sum()).alias("value"), pl.lit(1.0).alias("calls")
            )
        split = list(dict.fromkeys((*keys, "worker")))
        sums = self.cells.group_by(split).agg(pl.col("self_ns", "calls").sum()).join(self.counts, on="worker")
        own = sums.with_columns(pl.col("self_ns", "calls") * weight / pl.col("steps"))
        if center == "median" and self.steps.height:
            own = own.drop("self_ns").join(self._medians(keys, weight), on=split, nulls_equal=True)
        return own.group_by(keys).agg(pl.col("self_ns").sum().alias("value"), pl.col("calls").sum())

    def _medians(self, keys: Sequence[str], weight: float) -> pl.DataFrame:
        """Return the median over each worker's steps; a step without the bucket counts as zero."""
        each = self.cells.group_by(list(dict.fromkeys((*keys, "worker", "step")))).agg(pl.col("self_ns").sum())
        parts = []
        for worker, steps in self.counts.select("worker", "steps").iter_rows():
            own = self.steps.filter(pl.col("worker") == worker).select("step").sort("step").with_row_index("place")
            mine = each.filter(pl.col("worker") == worker).join(own, on="step")
            labels = mine.select(keys).unique(maintain_order=True)
            table = dense(mine, labels, keys, "place", "self_ns", steps)
            middle = pl.Series("self_ns", np.median(table, axis=1) * weight, dtype=pl.Float64)
            parts.append(labels.with_columns(middle, pl.lit(worker).alias("worker")))
        return pl.concat(parts)

    def batches(self, keys: Sequence[str], labels: pl.DataFrame, center: Center) -> npt.NDArray[np.float64] | None:
        """Return the means or medians [labels, batches] of consecutive steps that all workers have; None without."""
        shared = self.steps.group_by("step").agg(pl.col("worker").n_unique().alias("n"))
        shared = shared.filter(pl.col("n") == self.counts.height).select("step").sort("step").with_row_index("place")
        k = min(_BATCHES, shared.height // (_STEPS_OF_A_MEDIAN if center == "median" else 1))
        if k < 2:
            return None
        rows = self.cells.join(shared, on="step").group_by(*keys, "place").agg(pl.col("self_ns").sum())
        steps = np.array_split(dense(rows, labels, keys, "place", "self_ns", shared.height), k, axis=1)
        middle = np.median if center == "median" else np.mean
        return np.stack([middle(part, axis=1) for part in steps], axis=1)


def dense(
    rows: pl.DataFrame, labels: pl.DataFrame, keys: Sequence[str], column: str, value: str, width: int
) -> npt.NDArray[np.float64]:
    """Return values as an array [labels, width], zero where there is no row; rows without a label are left out."""
    placed = rows.join(labels.select(keys).with_row_index("row"), on=keys, nulls_equal=True)
    table = np.zeros((labels.height, width))
    table[placed["row"].to_numpy(), placed[column].to_numpy()] = placed[value].to_numpy()
    return table


def costs(
    run: Run, label: str, by: Sequence[str], where: Sequence[str], arrangement: str | None = None
) -> list[RunCosts]:
    """Return what was measured, per run in the logs, family and clock.

    Args:
        run: logs of one repeat, or of several that were appended: each is a run of its own.
        label: what the logs are called.
        by, where, arrangement: as in `bucketing.buckets`.

    Raises:
        NothingRecognisedError: the logs hold no record.
    """
    only, which = condition(where), condition(_of_steps(where))
    cells, steps, seen = _pass(run, by, only, which)
    printed_cells, printed_steps = _printed(run, by, only, which)
    stepped = cells.filter(pl.col("step").is_not_null())
    told = pl.concat([stepped, printed_cells.join(stepped, on=["family", "clock"], how="anti")])
    steps = pl.concat([steps, printed_steps.join(steps, on=["family", "clock"], how="anti")])
    run.require_records()
    found = []
    for family, clock in told.select("family", "clock").unique().sort("family", "clock").iter_rows():
        mine = pl.col("family") == family, pl.col("clock") == clock
        basis = "events" if stepped.filter(*mine).height else "steps"
        outside = cells.filter(*mine, pl.col("step").is_null())
        layers = seen.filter(*mine)["layer"].n_unique()
        whole = RunCosts(
            label, family, clock, basis, "step", told.filter(*mine), steps.filter(*mine), _NO_COUNTS, layers,
            _resolution(run, clock, told.filter(*mine)), outside_ns=_cost_ns(outside),
        )  # fmt: skip
        found += [_finished(part) for part in _runs_apart(whole)]
    if run.selection is None:  # what belongs to no known step was not selected
        known = {(c.family, c.clock) for c in found}
        found += _without_steps(run, label, by, where, cells, known)
    return [replace(one, topology=topology(one.family, arrangement or run.topology)) for one in found]


_NO_COUNTS = pl.DataFrame(schema={"worker": pl.String, "steps": pl.UInt32})


def _of_steps(where: Sequence[str]) -> list[str]:
    """Return the filters that choose steps or workers: what others ask for, a step may lack and still count."""
    return [item for item in where if item.partition("=")[0] in _WHOLE_STEPS]


def _pass(
    run: Run, by: Sequence[str], only: pl.Expr, which: pl.Expr
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Read the events once: cells (that `only` takes), steps (that `which` takes) and the layers seen."""
    keys = list(dict.fromkeys((*by, *_CELL)))
    wanted = list(dict.fromkeys((*keys, *_STEP, "layer", *only.meta.root_names())))
    cells = [empty({c: EVENTS[c] for c in (*keys, "self_ns")} | _MORE)]
    steps = [empty({c: EVENTS[c] for c in (*_STEP, "dur_ns")})]
    layers = [empty({c: EVENTS[c] for c in ("dialect", "clock", "layer")})]
    for batch in run.packed():
        # What a head decides need not be a key: it is unpacked for the sums alone.
        own = [c for c in wanted if c in batch.rows.columns]
        rows = batch.rows.with_columns(batch.column("self_ns", EVENTS["self_ns"]))
        sums = rows.group_by("head", *own).agg(pl.col("self_ns").sum(), pl.len().alias("calls"))
        packed = marked(Batch(sums, batch.heads, batch.constants))
        frame = packed.frame({c: EVENTS[c] for c in (*wanted, "self_ns")} | _MORE)
        cells.append(frame.filter(only).group_by(*keys, FUSED).agg(pl.col("self_ns", "calls").sum()))
        timed = frame.filter(which, pl.col("step").is_not_null(), _is_cost())
        steps.append(timed.group_by(_STEP).agg(pl.col("self_ns").sum().alias("dur_ns")))
        layers.append(frame.filter(pl.col("layer").is_not_null()).select("dialect", "clock", "layer").unique())
    passes = pl.concat([_plain(s.select(steps[0].columns), run) for s in steps])
    passes = passes.group_by([c for c in passes.columns if c != "dur_ns"]).agg(pl.col("dur_ns").sum())
    found = pl.concat([_plain(c, run).select(_cell_columns(by)) for c in cells])
    return found, passes.select(_STEP_COLUMNS), pl.concat([_plain(s, run) for s in layers])


#: Columns of a cell that events have not.
_MORE: dict[str, pl.DataType] = {FUSED: pl.Categorical(), "calls": pl.UInt32()}


def _cell_columns(by: Sequence[str]) -> list[str]:
    return list(dict.fromkeys((*by, "family", "clock", "category", "stream", "run", "worker", "step", FUSED,
                               "self_ns", "calls")))  # fmt: skip


def _plain(frame: pl.DataFrame, run: Run) -> pl.DataFrame:
    """Turn categories to text (frames of two readings meet) and name the family."""
    text = frame.with_columns(pl.col(pl.Categorical()).cast(pl.String))
    whole = text.with_columns(pl.col("dialect").replace_strict(run.families, default="").alias("family"))
    return whole.with_columns(pl.col(c).cast(pl.Int64) for c in ("self_ns", "calls", "dur_ns") if c in whole.columns)


def _is_cost() -> pl.Expr:
    return ~pl.col("category").cast(pl.String).is_in(rules.NOT_COST)


def _cost_ns(cells: pl.DataFrame) -> int:
    return int(cells.filter(_is_cost())["self_ns"].sum() or 0)


def _resolution(run: Run, clock: str, cells: pl.DataFrame) -> int:
    """Return what durations are rounded to, 1 where the sums show finer ones."""
    coarse = run.resolutions.get(clock, 1)
    return 1 if cells.filter(pl.col("self_ns") % coarse != 0).height else coarse


def _printed(run: Run, by: Sequence[str], only: pl.Expr, which: pl.Expr) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return cells and steps of the steps that the engine itself printed, with what it printed of each."""
    keys = list(dict.fromkeys((*by, *_CELL)))
    rows = run.summaries.filter(pl.col("step").is_not_null()).collect()
    own = label_self_ns(rows) if rows.height else rows.with_columns(pl.lit(0, dtype=pl.Int64).alias("cost_ns"))
    own = own.with_columns(pl.lit(None, dtype=pl.String).alias(FUSED))
    cells = own.filter(only).group_by(*keys, FUSED).agg(pl.col("cost_ns").sum().alias("self_ns"), pl.col("calls").sum())
    timed = run.printed_steps.filter(which, pl.col("step").is_not_null())
    clocks = rows.select("stream", "line", "clock").unique(["stream", "line"])
    steps = timed.join(clocks, on=["stream", "line"], how="inner").select(*_STEP, "dur_ns")
    return _plain(cells, run).select(_cell_columns(by)), _plain(steps, run).select(_STEP_COLUMNS)


def _runs_apart(whole: RunCosts) -> Iterator[RunCosts]:
    """Divide logs that hold several runs, if every worker has all of them; else they are one, and it is said."""
    runs = whole.steps.group_by("worker").agg(pl.col("run").unique().sort()).sort("worker")["run"].to_list()
    if not runs or (len(runs[0]) == 1 and all(r == runs[0] for r in runs)):
        yield whole
    elif all(r == runs[0] for r in runs):
        for number in runs[0]:
            mine = pl.col("run") == number
            yield replace(
                whole,
                label=f"{whole.label} (run {number})",
                cells=whole.cells.filter(mine),
                steps=whole.steps.filter(mine),
            )
    else:
        note = f"{whole.label}: its workers do not hold the same runs, so they are taken for one; give one log a run"
        yield replace(whole, notes=(*whole.notes, note))


def _finished(part: RunCosts) -> RunCosts:
    """Number the steps, count them, mark those that stand out, and put aside what is no cost."""
    marks = mark(part.steps.sort("worker", "run", "step"))
    suggestion = suggest_skip(marks)
    # The steps of appended runs follow one another.
    order = marks.select("run", "step").unique().sort("run", "step").with_row_index("index")
    marks = marks.join(order, on=["run", "step"], maintain_order="left").with_columns(pl.col("index").alias("step"))
    cells = part.cells.join(order, on=["run", "step"]).with_columns(pl.col("index").alias("step"))
    counts = marks.group_by("worker").agg(pl.col("step").n_unique().alias("steps"))
    waits = cells.filter(pl.col("category") == "wait")
    notes = part.notes if suggestion is None else (*part.notes, suggestion[1])
    return replace(
        part, cells=cells.filter(_is_cost()).drop("index"), steps=marks.drop("index"), counts=counts.sort("worker"),
        idle_ns=int(waits["self_ns"].sum() or 0), notes=notes,
    )  # fmt: skip


def _without_steps(
    run: Run, label: str, by: Sequence[str], where: Sequence[str], cells: pl.DataFrame, known: set[tuple[str, str]]
) -> Iterator[RunCosts]:
    """Return what summaries, samples and calls without steps tell: totals per step where passes were counted.

    A pass of the model is a call of the region around its forward. Where there is none, a mean per call is all there
    is.
    """
    sums = _plain(run.summaries.filter(pl.col("step").is_null()).select("dialect", "clock").unique().collect(), run)
    pairs = set(cells.select("family", "clock").unique().iter_rows()) | set(sums.select("family", "clock").iter_rows())
    if pairs <= known:
        return
    split = list(dict.fromkeys((*by, "category", "worker", "run")))
    named = buckets(run, ["name", "worker", "run"], where=_of_steps(where))
    skips = not run.findings.filter(pl.col("code") == "skip-first").collect().is_empty()
    passes = {(t.family, t.clock): _passes(t.frame.clear() if skips else t.frame) for t in named}
    for table in buckets(run, split, where=where):
        if (table.family, table.clock) in known:
            continue
        rows = table.frame.filter(pl.col("share").is_not_null()).with_columns(pl.col(pl.Categorical()).cast(pl.String))
        counted = passes[table.family, table.clock]
        per: Per = "step" if counted.height else "call"
        if per == "step":
            counts, value = counted, (pl.col("share") * table.cost_ns).round()
        else:
            counts, value = rows.select("worker", "run", pl.lit(1).alias("steps")).unique(), pl.col("total_ns")
        rows = rows.with_columns(value.cast(pl.Int64).alias("self_ns"), pl.col("calls").cast(pl.Int64))
        rows = rows.with_columns(pl.lit(None, dtype=pl.String).alias(FUSED), pl.lit(None, dtype=pl.Int32).alias("step"))
        kept = rows.join(counts, on=["worker", "run"], how="semi")
        outside = int(rows["self_ns"].sum() or 0) - int(kept["self_ns"].sum() or 0)
        for number in sorted(set(kept["run"])):
            mine = pl.col("run") == number
            yield RunCosts(
                label if kept["run"].n_unique() == 1 else f"{label} (run {number})", table.family, table.clock,
                "+".join(sorted(set(rows["basis"]))), per, kept.filter(mine), _NO_STEPS,
                counts.filter(mine).select("worker", "steps").sort("worker"), 0, table.resolution_ns,
                outside_ns=outside, notes=table.notes,
            )  # fmt: skip


_NO_STEPS = pl.DataFrame(schema={"worker": pl.String, "step": pl.UInt32, "phase": pl.String, "tokens": pl.Int32,
                                 "dur_ns": pl.Int64, "stands_out": pl.Float64})  # fmt: skip


def _passes(names: pl.DataFrame) -> pl.DataFrame:
    """Return worker, run, steps: how often the region around the model's forward was called.

    A forward that is shorter than what runs inside it (its self time is then null) was not counted from the start:
    SKIP_FIRST leaves out the first calls of each label, however many of them a pass has.
    """
    rows = names.filter((region_names(names["name"]) == "forward") & names["self_ns"].is_not_null()).with_columns(
        pl.col("worker").cast(pl.String)
    )
    return rows.group_by("worker", "run").agg(pl.col("calls").max().alias("steps"))
