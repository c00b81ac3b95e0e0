"""A trace with a timeline, whatever its format: processes, tracks, slices, counters, and what it says of itself."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit import __version__
from tracekit.trace.aggregates import aggregate_slices, aggregate_tracks
from tracekit.trace.counters import Counters
from tracekit.trace.layout import Plan
from tracekit.trace.naming import TITLE, Names, about, remarks
from tracekit.trace.placement import OPERATION, Placer, Tracks
from tracekit.trace.sensors import Sensors
from tracekit.trace.slices import Describer, Slices, Texts
from tracekit.trace.source import Ints, TraceSource
from tracekit.trace.survey import Survey

#: Where tracks of a process stand, by kind: lanes follow their track.
_RANKS = {"main": 0, "collectives": 2000, "host": 4000, "overflow": 6000}
_AGGREGATES_RANK, _COUNTERS_RANK = 8000, 9000


class TimelineWriter(Protocol):
    """A format that has processes, tracks, nested slices and counters. Tracks are numbered from 0 by the caller."""

    def process(self, ordinal: int, name: str, labels: Sequence[str]) -> None:
        """Declare a process; processes stand by ordinal, from 1."""

    def track(self, track: int, *, process: int, name: str, rank: int, unit: str | None = None) -> None:
        """Declare a track of a process (0: of none), a counter if it has a unit; tracks stand by rank."""

    def slices(self, slices: Slices) -> None:
        """Write slices of declared tracks; each track goes on where it ended."""

    def counter(self, track: int, times_ns: Ints, values: npt.NDArray[np.float64]) -> None:
        """Write values of a counter, sorted by time."""

    def about(self, track: int, title: str, details: dict[str, str]) -> None:
        """Write what the trace says of itself."""

    def close(self) -> None:
        """Write what ends the file."""


class Progress(Protocol):
    """Called with the events that were written and the events there are."""

    def __call__(self, done: int, total: int, /) -> None:
        """Take note."""


class Timeline:
    """Writes one trace; afterwards tells what was written."""

    def __init__(
        self, label: str, survey: Survey, plan: Plan, writer: TimelineWriter, texts: Texts, arguments: Sequence[str]
    ) -> None:
        self.label = label
        self.survey = survey
        self.plan = plan
        self.writer = writer
        self.texts = texts
        self.arguments = arguments
        self.names = Names(survey, plan)
        self.slices = 0
        self.aggregates = 0
        self.tracks = 0
        self._end_ns = 0
        self.notes: tuple[str, ...] = ()

    def write(
        self, source: TraceSource, *, steps: range | None, shown: pl.Expr | None, progress: Progress | None
    ) -> None:
        """Write everything, from the first process to the end of the file."""
        for process in self.names.processes.values():
            self.writer.process(process.ordinal, process.worker, process.labels)
        self._declare(0, TITLE, rank=0)
        placer = Placer(self.survey, self.plan, Tracks(), shown)
        counters = self._write_operations(placer, source, steps, progress)
        self._write_aggregates()
        self._write_counters(counters)
        sensors = Sensors.of(source, self.plan, self._end_ns)
        self._write_sensors(sensors)
        self.notes = (*remarks(self.survey, placer.moves), *sensors.remarks())
        self.writer.about(0, TITLE, about(self.label, self.names, __version__, self.notes))
        self.writer.close()

    def _write_operations(
        self, placer: Placer, source: TraceSource, steps: range | None, progress: Progress | None
    ) -> Counters:
        flows = _flow_ids(self.plan)
        describer = Describer(self.survey, self.texts, self.arguments, flows)
        counters = Counters(self.survey)
        done, total = 0, self.survey.events
        for placed in placer.place(source, steps):
            for number in range(self.tracks, len(placer.tracks.known)):
                key = placer.tracks.known[number]
                worker = self.survey.strands.known[key.strand].worker
                rank = _RANKS[key.kind] + key.strand + key.lane
                self._declare(number, self.names.track(key), worker=worker, rank=rank)
            self.writer.slices(describer.describe(placed))
            counters.add(placed)
            self.slices += int(np.count_nonzero(placed.kind == OPERATION))
            self._end_ns = max(self._end_ns, int((placed.start_ns + placed.dur_ns).max(initial=0)))
            done += placed.frame.height
            if progress is not None:
                progress(done, total)
        return counters

    def _write_aggregates(self) -> None:
        for n, aggregate in enumerate(aggregate_tracks(self.survey)):
            number = self.tracks
            name = f"{aggregate.title} ({aggregate.clock})"
            self._declare(number, name, worker=aggregate.worker, rank=_AGGREGATES_RANK + n)
            self.writer.slices(aggregate_slices(aggregate, number, self.texts))
            self.aggregates += aggregate.rows.height

    def _write_counters(self, counters: Counters) -> None:
        for n, counter in enumerate(counters.counters()):
            number = self.tracks
            worker = self.survey.strands.known[counter.strand].worker
            self._declare(number, counter.name, worker=worker, rank=_COUNTERS_RANK + n, unit=counter.unit)
            self.writer.counter(number, counter.times_ns, counter.values)

    def _write_sensors(self, sensors: Sensors) -> None:
        for ordinal, device in enumerate(sensors.devices, len(self.names.processes) + 1):
            self.writer.process(ordinal, f"GPU {device}", ("sampled by tracekit run",))
            for n, sensor in enumerate(sensors.sensors(device)):
                number = self.tracks
                self.writer.track(number, process=ordinal, name=sensor.quantity, rank=n, unit=sensor.unit)
                self.writer.counter(number, sensor.times_ns, sensor.values)
                self.tracks += 1

    def _declare(self, number: int, name: str, *, worker: str = "", rank: int, unit: str | None = None) -> None:
        process = self.names.processes[worker].ordinal if worker else 0
        self.writer.track(number, process=process, name=name, rank=rank, unit=unit)
        self.tracks += 1


def _flow_ids(plan: Plan) -> dict[tuple[int, int, int], tuple[int, int]]:
    """Return per part of a step the arrows that leave it and reach it, 0 for none."""
    flows: dict[tuple[int, int, int], tuple[int, int]] = {}
    for number, (before, after) in enumerate(plan.flows, 1):
        flows[before] = (number, flows.get(before, (0, 0))[1])
        flows[after] = (flows.get(after, (0, 0))[0], number)
    return flows
