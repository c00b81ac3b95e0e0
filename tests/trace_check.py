"""Reads a trace back with the perfetto package's own messages and finds what readers accept in silence.

A trace that loads without an error is no proof: names that do not resolve, missing incremental state, slices that are
never closed, stray ends, undeclared tracks and a truncated tail are all let through by trace_processor.
"""

import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackDescriptor, TrackEvent

_CLEARED = TracePacket.SequenceFlags.SEQ_INCREMENTAL_STATE_CLEARED
_NEEDED = TracePacket.SequenceFlags.SEQ_NEEDS_INCREMENTAL_STATE


class BadTraceError(AssertionError):
    """A fault of a trace."""


@dataclass
class Slice:
    """One slice: where it stands, what it is called, what it tells."""

    track: int
    name: str
    category: str
    start_ns: int
    end_ns: int
    depth: int
    details: dict[str, Any]
    arrows_out: tuple[int, ...] = ()
    arrows_in: tuple[int, ...] = ()

    @property
    def dur_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass
class Track:
    name: str = ""
    process: str = ""
    parent: int = 0
    rank: int = 0
    counter: bool = False


@dataclass
class Read:
    slices: list[Slice] = field(default_factory=list)
    tracks: dict[int, Track] = field(default_factory=dict)
    counters: dict[int, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    attributes: dict[str, str] = field(default_factory=dict)
    ordered: bool = False  # the root says that processes stand in their declared order

    @property
    def processes(self) -> list[str]:
        """The processes in the order in which they are shown."""
        named = {uuid: t for uuid, t in self.tracks.items() if t.process}
        return [t.process for _, t in sorted(named.items(), key=lambda item: item[1].rank)]

    def process(self, one: Slice) -> str:
        """The process of a slice."""
        return self.tracks[self.tracks[one.track].parent].process

    def totals(self) -> dict[str, tuple[int, int]]:
        """Calls and total ns of operations by name."""
        totals: dict[str, tuple[int, int]] = {}
        for one in self.operations():
            calls, ns = totals.get(one.name, (0, 0))
            totals[one.name] = (calls + 1, ns + one.dur_ns)
        return totals

    def operations(self) -> list[Slice]:
        """Slices of single occurrences: they tell their line of the log, and are no aggregate."""
        return [s for s in self.slices if "line" in s.details and "basis" not in s.details]


def need(condition: object, message: str) -> None:
    if not condition:
        raise BadTraceError(message)


def expect(
    trace: Read,
    *,
    operations: int | None = None,
    slices: int | None = None,
    tracks: int | None = None,
    processes: list[str] | None = None,
    totals: dict[str, tuple[int, int]] | None = None,
) -> None:
    """Raise BadTraceError unless a trace has what it should have: what is simply missing leaves no other mark."""
    need(trace.ordered, "no root descriptor says that processes stand in their declared order")
    shown = [t for t in trace.tracks.values() if t.name and not t.process]
    for what, found, wanted in (
        ("operation slices", len(trace.operations()), operations),
        ("slices", len(trace.slices), slices),
        ("tracks", len(shown), tracks),
        ("processes", trace.processes, processes),
        ("totals", trace.totals(), totals),
    ):
        need(wanted is None or found == wanted, f"{what}: {found}, expected {wanted}")


def read_trace(path: Path) -> Read:
    """Read a whole trace, or raise BadTraceError."""
    data = path.read_bytes()
    need(data, "the file is empty")
    trace = Trace()
    try:
        trace.ParseFromString(data)
    except Exception as error:
        raise BadTraceError(f"truncated or no trace: {error}") from error
    reader = _Reader()
    for packet in trace.packet:
        if packet.HasField("compressed_packets"):
            inner = Trace()
            inner.ParseFromString(zlib.decompress(packet.compressed_packets))
            for one in inner.packet:
                reader.packet(one)
        else:
            reader.packet(packet)
    return reader.finish()


class _Reader:
    def __init__(self) -> None:
        self.read = Read()
        self.state: dict[int, dict[str, Any]] = {}
        self.open: dict[int, list[Slice]] = defaultdict(list)
        self.used: set[int] = set()

    def packet(self, packet: Any) -> None:
        self.read.attributes.update({a.key: a.string_value for a in packet.trace_attributes.attribute})
        sequence = packet.trusted_packet_sequence_id
        if packet.sequence_flags & _CLEARED:
            self.state[sequence] = {"names": {}, "categories": {}, "keys": {}, "texts": {}, "clocks": {}, "default": 0}
        state = self.state.get(sequence)
        if packet.sequence_flags & _NEEDED:
            need(state is not None, f"sequence {sequence} needs a state that it never got")
        if packet.HasField("clock_snapshot") and state is not None:
            for clock in packet.clock_snapshot.clocks:
                if clock.is_incremental:
                    need(clock.unit_multiplier_ns in (0, 1), "a clock that is no nanosecond")
                    state["clocks"][clock.clock_id] = clock.timestamp
        if packet.HasField("trace_packet_defaults") and state is not None:
            state["default"] = packet.trace_packet_defaults.timestamp_clock_id
            state["track"] = packet.trace_packet_defaults.track_event_defaults.track_uuid
        if packet.HasField("interned_data"):
            need(state is not None, "interned data without a state")
            self._intern(packet.interned_data, state)
        if packet.HasField("track_descriptor"):
            self._track(packet.track_descriptor)
        if packet.HasField("track_event"):
            need(sequence, "an event without a sequence")
            need(state is not None, f"sequence {sequence} has events and no incremental state")
            self._event(packet, state)

    @staticmethod
    def _intern(data: Any, state: Any) -> None:
        for kind, entries in (
            ("names", data.event_names),
            ("categories", data.event_categories),
            ("keys", data.debug_annotation_names),
        ):
            state[kind].update({e.iid: e.name for e in entries})
        state["texts"].update({e.iid: e.str.decode() for e in data.debug_annotation_string_values})

    def _track(self, descriptor: Any) -> None:
        if descriptor.uuid == 0:
            self.read.ordered = descriptor.process_ordering == TrackDescriptor.PROCESS_ORDERING_EXPLICIT
            return
        track = self.read.tracks.setdefault(descriptor.uuid, Track())
        track.name = descriptor.name or track.name
        track.parent = descriptor.parent_uuid
        track.rank = descriptor.sibling_order_rank
        track.counter = descriptor.HasField("counter")
        if descriptor.HasField("process"):
            track.process = descriptor.process.process_name

    def _time(self, packet: Any, state: Any) -> int:
        clock = packet.timestamp_clock_id or state["default"]
        if clock in state["clocks"]:
            state["clocks"][clock] += packet.timestamp
            return int(state["clocks"][clock])
        return int(packet.timestamp)

    def _event(self, packet: Any, state: Any) -> None:
        event = packet.track_event
        time = self._time(packet, state)
        track = event.track_uuid if event.HasField("track_uuid") else state.get("track", 0)
        self.used.add(track)
        if event.type == TrackEvent.TYPE_COUNTER:
            value = event.double_counter_value if event.HasField("double_counter_value") else event.counter_value
            values = self.read.counters[track]
            need(not values or values[-1][0] <= time, "a counter goes back in time")
            values.append((time, value))
            return
        stack = self.open[track]
        if event.type in (TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_INSTANT):
            name = event.name or state["names"].get(event.name_iid)
            need(name is not None, f"a slice whose name {event.name_iid} does not resolve")
            categories = [*event.categories, *(state["categories"].get(i) for i in event.category_iids)]
            need(None not in categories, "a category that does not resolve")
            details = {self._key(a, state): self._value(a, state) for a in event.debug_annotations}
            need(name, "a slice without a name")
            need(not stack or time >= stack[-1].start_ns, "a slice begins before the one around it")
            arrows = tuple(event.flow_ids), tuple(event.terminating_flow_ids)
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                stack.append(Slice(track, name, ",".join(categories), time, time, len(stack), details, *arrows))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            need(stack, f"an end without a beginning on track {track}")
            one = stack.pop()
            one.end_ns = time
            need(time >= one.start_ns, f"slice {one.name!r} has a negative duration")
            self.read.slices.append(one)

    @staticmethod
    def _key(annotation: Any, state: Any) -> str:
        key = annotation.name or state["keys"].get(annotation.name_iid)
        need(key is not None, "an argument whose name does not resolve")
        return str(key)

    @staticmethod
    def _value(annotation: Any, state: Any) -> Any:
        if annotation.HasField("string_value_iid"):
            need(annotation.string_value_iid in state["texts"], "an argument whose text does not resolve")
            return state["texts"][annotation.string_value_iid]
        for kind in ("string_value", "int_value", "uint_value", "double_value", "bool_value"):
            if annotation.HasField(kind):
                return getattr(annotation, kind)
        return None

    def finish(self) -> Read:
        for track, stack in self.open.items():
            need(not stack, f"slices that never end on track {track}: {[s.name for s in stack]}")
        undeclared = self.used - set(self.read.tracks)
        need(not undeclared, f"tracks that were never declared: {undeclared}")
        parents = {t.parent for t in self.read.tracks.values() if t.parent} - set(self.read.tracks)
        need(not parents, f"tracks whose parents were never declared: {parents}")
        self._no_overlap()
        return self.read

    def _no_overlap(self) -> None:
        """Slices of one depth on one track follow one another: nesting by order alone could hide an overlap."""
        last: dict[tuple[int, int], int] = {}
        for one in sorted(self.read.slices, key=lambda s: (s.track, s.depth, s.start_ns, s.end_ns)):
            end = last.get((one.track, one.depth), 0)
            need(one.start_ns >= end, f"{one.name!r} overlaps its neighbour on track {one.track}")
            last[one.track, one.depth] = one.end_ns
