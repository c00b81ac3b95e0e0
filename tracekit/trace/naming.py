"""What tracks and slices are called, and what the trace says of itself."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from tracekit.columns import natural_order
from tracekit.trace.layout import LAYOUTS, TIMES, Layout, Plan
from tracekit.trace.placement import Moves, TrackKey
from tracekit.trace.survey import Survey

#: Name of the track that tells about the trace.
TITLE = "diagnostic: not throughput (about this trace)"
WARNING = "diagnostic: not throughput"

#: What a duration on each clock means.
CLOCKS = {
    "host-wait": "host time of an operation and a wait for the device after it: overhead and backlog are inside",
    "host-enqueue": "host time to enqueue, without a wait: not the kernels' own time",
    "host-sync-unknown": "host time of a region; the log does not tell whether it waits for the device",
    "backlog": "wait from after the submission to the kernel's end: queue backlog and kernel, not the kernel alone",
    "device": "time on the device itself",
}


@dataclass(frozen=True, slots=True)
class Process:
    """A worker, as one process of the trace: its ordinal from 1 in natural order, and what it is known by."""

    ordinal: int
    worker: str
    labels: tuple[str, ...] = ()


@dataclass(slots=True)
class Names:
    """Names for processes and tracks of one trace."""

    survey: Survey
    plan: Plan
    processes: dict[str, Process] = field(init=False)
    _strands_of: dict[str, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        strands = self.survey.strands.known
        self._strands_of = {}
        for n, (strand, facts) in enumerate(zip(strands, self.survey.facts, strict=True)):
            if facts.shown:
                self._strands_of.setdefault(strand.worker, []).append(n)
        summarised = self.survey.summaries["worker"].cast(pl.String).unique().drop_nulls().to_list()
        sampled = [strands[n].worker for n in self.survey.samples["strand"].unique()]
        workers = natural_order(sorted({*self._strands_of, *summarised, *sampled}))
        self.processes = {w: Process(n, w, self._labels(w)) for n, w in enumerate(workers, 1)}

    def _labels(self, worker: str) -> tuple[str, ...]:
        facts = [self.survey.facts[n] for n in self._strands_of.get(worker, ())]
        labels = []
        for word, values in (
            ("rank", {r for f in facts for r in f.ranks}),
            ("pid", {p for f in facts for p in f.pids}),
            ("device", {d for f in facts for d in f.devices}),
        ):
            if values:
                labels.append(f"{word} {', '.join(map(str, sorted(values)))}")
        return tuple(labels)

    def track(self, key: TrackKey) -> str:
        """Return the name of a track of slices."""
        strand = self.survey.strands.known[key.strand]
        what = {"main": "operations", "collectives": "collectives", "host": "host work and waits"}.get(key.kind)
        if key.kind == "overflow":
            name = "children that exceed their parent by rounding"
        else:
            name = f"{what} ({strand.clock}), {TIMES[self._times(key.strand)]}"
        several = self._strands_of.get(strand.worker, ())
        if len({self.survey.strands.known[n].stream for n in several}) > 1:
            name += f", {strand.stream}"
        return f"{name}, lane {key.lane + 1}" if key.lane else name

    def _times(self, strand: int) -> Layout:
        """Return the layout that a strand really has: without steps, no plan by steps can place it."""
        by_steps = self.plan.layout in ("pipeline", "ranks")
        return "sequential" if by_steps and not self.survey.facts[strand].has_steps else self.plan.layout


def about(source_label: str, names: Names, version: str, notes: Sequence[str]) -> dict[str, str]:
    """Return what the trace says of itself: title, then details, each a key and a text."""
    survey, plan = names.survey, names.plan
    told = {
        "warning": f"{WARNING}: timing serialises the device, so no rate can be derived from this trace",
        "layout": f"{plan.layout}: {LAYOUTS[plan.layout]}",
        "layout reason": plan.reason,
        "source": source_label,
        "written by": f"tracekit {version}",
        "events": str(survey.events),
        "process numbers": "ordinals of the workers in natural order, not pids",
    }
    if plan.layout == "pipeline":
        told["pipeline order"] = " > ".join(survey.strands.known[s].worker for s in plan.order)
    for clock in sorted({s.clock for s, f in zip(survey.strands.known, survey.facts, strict=True) if f.events}):
        told[f"clock {clock}"] = CLOCKS.get(clock, "not described")
    for n, note in enumerate(notes, 1):
        told[f"note {n}"] = note
    return told


def remarks(survey: Survey, moves: Moves) -> tuple[str, ...]:
    """Return what a reader of the trace must know, one sentence each."""
    told = []
    hidden = survey.events - sum(f.shown for f in survey.facts)
    if hidden:
        told.append(f"{hidden} events are hidden by filters; the time that they took is left free")
    if moves.shifted:
        told.append(
            f"{moves.shifted} trees end later than their stamp, since the ones before them still ran: "
            f"{moves.most_shifted_ns / 1e6:.3f} ms at most (shifted_ns)"
        )
    if moves.misfits:
        told.append(
            f"{moves.misfits} slices exceed what is left of their parent and stand on a track of their own, "
            "their durations as printed"
        )
    if survey.samples.height:
        told.append("sampled labels are no single occurrences: one slice each and step, as long as their mean")
    if survey.summaries.height:
        told.append("printed summaries are no single occurrences: one slice each, as long as their total")
    return tuple(told)
