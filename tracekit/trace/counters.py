"""Counter tracks: milliseconds per step, share of each category per step, time lost to outliers."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit import rules
from tracekit.trace.placement import OPERATION, STEP, Placed
from tracekit.trace.slices import step_keys
from tracekit.trace.source import Ints
from tracekit.trace.survey import OUTLIER_FACTOR, USUAL_OF, Survey

LOST = f"lost to outliers (what exceeds the median of op and shape, beyond {OUTLIER_FACTOR} times it)"

#: Points of a cumulative counter that a piece adds at most.
_POINTS = 256


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter of one strand: values that hold from their time on."""

    strand: int
    name: str
    unit: str
    times_ns: Ints
    values: npt.NDArray[np.float64]


@dataclass(slots=True)
class Counters:
    """Collects what counters need while pieces are placed."""

    survey: Survey
    _steps: dict[tuple[int, int, int], tuple[int, int]] = field(default_factory=dict)
    _lost_ns: dict[int, int] = field(default_factory=dict)
    _losses: dict[int, list[tuple[Ints, Ints]]] = field(default_factory=dict)

    def add(self, placed: Placed) -> None:
        """Count one placed piece."""
        steps = np.flatnonzero(placed.kind == STEP)
        begins, lasts = placed.start_ns[steps].tolist(), placed.dur_ns[steps].tolist()
        for key, begin, dur in zip(step_keys(placed, steps), begins, lasts, strict=True):
            self._steps[key] = (begin, dur)
        self._add_losses(placed)

    def _add_losses(self, placed: Placed) -> None:
        frame = placed.frame
        usual = frame.select(*USUAL_OF).join(
            self.survey.usual, on=USUAL_OF, how="left", maintain_order="left", nulls_equal=True
        )["usual_ns"]
        own = frame["self_ns"].fill_null(0).to_numpy()
        usual_ns = usual.fill_null(0).to_numpy()
        lost = np.where((usual_ns > 0) & (own > OUTLIER_FACTOR * usual_ns), own - usual_ns, 0)
        if not lost.any():
            return
        rows = placed.row
        worth = np.flatnonzero((placed.kind == OPERATION) & (lost[rows] > 0))
        ends = placed.start_ns[worth] + placed.dur_ns[worth]
        owner = placed.strand[rows[worth]]
        for strand in np.unique(owner).tolist():
            mine = worth[owner == strand]
            at = ends[owner == strand]
            order = np.argsort(at, kind="stable")
            total = np.cumsum(lost[rows[mine]][order]) + self._lost_ns.get(strand, 0)
            self._lost_ns[strand] = int(total[-1])
            kept = np.unique(np.append(np.arange(0, len(total), max(1, len(total) // _POINTS)), len(total) - 1))
            self._losses.setdefault(strand, []).append((at[order][kept], total[kept]))

    def counters(self) -> Iterator[Counter]:
        """Yield the counters, one strand after the other."""
        shares = self._shares()
        by_strand: dict[int, list[tuple[int, int, tuple[int, int, int]]]] = {}
        for key, (begin, dur) in self._steps.items():
            by_strand.setdefault(key[0], []).append((begin, dur, key))
        for strand in range(len(self.survey.strands.known)):
            if strand in by_strand:
                steps = sorted(by_strand[strand])
                end = steps[-1][0] + steps[-1][1]
                times = np.array([b for b, _, _ in steps] + [end], np.int64)
                ms = np.array([d / 1e6 for _, d, _ in steps] + [0.0])
                yield Counter(strand, "ms per step", "ms", times, ms)
                for category in rules.categories():
                    values = [shares.get((*key, category), 0.0) for _, _, key in steps]
                    if any(values):
                        yield Counter(strand, f"share of {category} per step", "%", times, np.array([*values, 0.0]))
            if strand in self._losses:
                times = np.concatenate([t for t, _ in self._losses[strand]])
                lost = np.concatenate([v for _, v in self._losses[strand]])
                order = np.argsort(times, kind="stable")
                times, lost = np.append(0, times[order]), np.append(0, np.maximum.accumulate(lost[order]))
                yield Counter(strand, LOST, "ms", times, lost / 1e6)

    def _shares(self) -> dict[tuple[int, int, int, str], float]:
        """Return the share in percent of each category of cost in the self time of a step."""
        if self.survey.costs.is_empty():
            return {}
        cost = self.survey.costs.with_columns(pl.col("category").cast(pl.String).fill_null("other"))
        cost = cost.filter(~pl.col("category").is_in(rules.NOT_COST))
        whole = pl.col("self_ns").sum().over("strand", "run", "step")
        cost = cost.with_columns((100 * pl.col("self_ns") / whole).alias("share")).filter(whole > 0)
        rows = cost.select("strand", "run", "step", "category", "share").iter_rows()
        return {(s, r, t, c): share for s, r, t, c, share in rows}
