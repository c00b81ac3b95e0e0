"""Counter tracks: milliseconds per step, share of each category per step, time lost to outliers."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit import rules
from tracekit.trace.placement import OPERATION, STEP, Placed
from tracekit.trace.slices import step_keys
from tracekit.trace.source import Ints, known
from tracekit.trace.survey import OUTLIER_FACTOR, USUAL_OF, Survey

LOST = f"lost to outliers (what exceeds the median of op and shape, beyond {OUTLIER_FACTOR} times it)"

#: A median so long that nothing exceeds it.
_NEVER = np.iinfo(np.int64).max // (2 * OUTLIER_FACTOR)

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
    _quickest: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, placed: Placed) -> None:
        """Count one placed piece."""
        steps = np.flatnonzero(placed.kind == STEP)
        begins, lasts = placed.start_ns[steps].tolist(), placed.dur_ns[steps].tolist()
        for key, begin, dur in zip(step_keys(placed, steps), begins, lasts, strict=True):
            self._steps[key] = (begin, dur)
        self._add_losses(placed)

    def _add_losses(self, placed: Placed) -> None:
        worth, lost_ns = self._outliers(placed)
        ends = placed.start_ns[worth] + placed.dur_ns[worth]
        owner = placed.strand[placed.row[worth]]
        for strand in np.unique(owner).tolist():
            mine = owner == strand
            order = np.argsort(ends[mine], kind="stable")
            total = np.cumsum(lost_ns[mine][order]) + self._lost_ns.get(strand, 0)
            self._lost_ns[strand] = int(total[-1])
            kept = np.unique(np.append(np.arange(0, len(total), max(1, len(total) // _POINTS)), len(total) - 1))
            self._losses.setdefault(strand, []).append((ends[mine][order][kept], total[kept]))

    def _outliers(self, placed: Placed) -> tuple[Ints, Ints]:
        """Return the slices that took too long, and by how much."""
        operations = np.flatnonzero(placed.kind == OPERATION)
        rows = placed.row[operations]
        own = known(placed.frame["self_ns"], otherwise=0)[rows]
        # Few calls exceed what is usual for the quickest shape of their operation: only these are looked at closely.
        op = known(placed.frame["op"], otherwise=0)[rows]
        maybe = np.flatnonzero(own > OUTLIER_FACTOR * self._quickest_ns(op))
        calls = placed.frame.select(USUAL_OF)[rows[maybe]]
        usual = calls.join(self.survey.usual, on=USUAL_OF, how="left", maintain_order="left", nulls_equal=True)
        usual_ns = usual["usual_ns"].fill_null(_NEVER).to_numpy()
        found = (usual_ns > 0) & (own[maybe] > OUTLIER_FACTOR * usual_ns)
        return operations[maybe[found]], own[maybe[found]] - usual_ns[found]

    def _quickest_ns(self, op: Ints) -> Ints:
        """Return what is usual for the quickest shape of each operation, by the code of its name."""
        top = int(op.max(initial=0))
        if top >= len(self._quickest):
            usual = self.survey.usual.group_by(pl.col("op").to_physical()).agg(pl.col("usual_ns").min()).drop_nulls()
            codes = usual["op"].to_numpy()
            self._quickest = np.full(max(top, int(codes.max(initial=0))) + 1, _NEVER, np.int64)
            self._quickest[codes] = usual["usual_ns"].to_numpy()
        return self._quickest[op]

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
