"""Slices that stand for many calls: sampled labels, and rows that were printed as summaries. One track each."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit.trace.slices import Argument, Slices, Texts
from tracekit.trace.source import Ints
from tracekit.trace.survey import Survey

SAMPLES = "samples: one slice per label and step, as long as the mean of its printed calls"
SUMMARIES = "summaries: one slice per label, as long as its printed total; not single occurrences"


@dataclass(frozen=True, slots=True)
class AggregateTrack:
    """A worker's aggregates of one basis, packed back to back from zero.

    Attributes:
        worker, title, clock: whose, what they are, and on which clock they were taken.
        rows: op, name, category, shape, step, line (nullable), calls, total_ns (nullable), mean_ns, min_ns, max_ns
            (nullable), dur_ns (the slice's length).
        basis: ``sampled`` or ``summary``.
    """

    worker: str
    title: str
    clock: str
    rows: pl.DataFrame
    basis: str


_COLUMNS = (
    "op",
    "name",
    "category",
    "shape",
    "step",
    "line",
    "calls",
    "total_ns",
    "mean_ns",
    "min_ns",
    "max_ns",
    "dur_ns",
)


def aggregate_tracks(survey: Survey) -> list[AggregateTrack]:
    """Return the tracks of aggregates, samples first."""
    tracks = []
    if survey.samples.height:
        samples = survey.samples.with_columns(
            (pl.col("dur_ns") / pl.col("calls")).round().cast(pl.Int64).alias("mean_ns"),
            pl.lit(None, pl.Int64).alias("total_ns"),  # what every Nth call took says nothing exact of the others
        ).with_columns(dur_ns="mean_ns")
        for (number,), rows in samples.group_by("strand", maintain_order=True):
            strand = survey.strands.known[int(str(number))]
            ordered = rows.sort("run", "step", maintain_order=True, nulls_last=True)
            tracks.append(AggregateTrack(strand.worker, SAMPLES, strand.clock, ordered.select(_COLUMNS), "sampled"))
    summaries = survey.summaries.with_columns(dur_ns="total_ns")
    for (worker, clock), rows in summaries.group_by("worker", "clock", maintain_order=True):
        tracks.append(AggregateTrack(str(worker), SUMMARIES, str(clock), rows.select(_COLUMNS), "summary"))
    return tracks


def aggregate_slices(aggregate: AggregateTrack, track: int, texts: Texts) -> Slices:
    """Return the slices of a track of aggregates."""
    rows = aggregate.rows
    dur = rows["dur_ns"].to_numpy()
    count = len(dur)
    nothing = np.zeros(0, np.int64)
    arguments = [
        _argument(texts, rows, c)
        for c in ("name", "shape", "step", "line", "calls", "total_ns", "mean_ns", "min_ns", "max_ns")
    ]
    basis, clock = (np.full(count, texts.values.number(t), np.int64) for t in (aggregate.basis, aggregate.clock))
    arguments.append(Argument("basis", np.arange(count), basis, is_text=True))
    arguments.append(Argument("clock", np.arange(count), clock, is_text=True))
    return Slices(
        np.full(count, track, np.int64),
        np.cumsum(dur) - dur,
        dur,
        np.zeros(count, np.int64),
        texts.names.numbers(rows["op"]),
        np.full(count, texts.categories.number(aggregate.basis), np.int64),
        [a for a in arguments if len(a.rows)],
        (nothing, nothing),
        (nothing, nothing),
    )


def _argument(texts: Texts, rows: pl.DataFrame, name: str) -> Argument:
    series = rows[name]
    there: Ints = np.flatnonzero(series.is_not_null().to_numpy())
    if series.dtype == pl.Categorical:
        return Argument(name, there, texts.values.numbers(series)[there], is_text=True)
    return Argument(name, there, series.drop_nulls().cast(pl.Int64).to_numpy(), is_text=False)
