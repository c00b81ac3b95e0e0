"""Perfetto's protobuf trace, written by columns.

Each track is a packet sequence of its own with an incremental clock, so that a timestamp is the distance to the
packet before it. Names, categories and text arguments are interned per sequence, before their first use. Slices
are BEGIN and END packets in bracket order: an END closes the latest open slice of its track, so order alone makes
equal times and zero durations nest.

Messages: https://perfetto.dev/docs/reference/trace-packet-proto
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import BinaryIO

import numpy as np
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    InternedData,
    Trace,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)

from tracekit.errors import TracekitError
from tracekit.trace.protobuf import (
    FIXED64,
    LENGTH,
    VARINT,
    Bytes,
    Const,
    Field,
    Fixed64,
    Ints,
    Message,
    Varint,
    interleave,
    tag,
)
from tracekit.trace.slices import ARGUMENT_NAMES, Argument, Slices, Texts
from tracekit.trace.source import runs

#: Clock of the trace (BOOTTIME), and the incremental one of a sequence (64 to 127 are scoped to it).
_TRACE_CLOCK, _SEQUENCE_CLOCK = 6, 64
_CLEARED = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED | TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
_NEEDED = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE

# Tags, and constant fields with what stands before the next value: of TracePacket, TrackEvent, DebugAnnotation.
_PACKET, _TIMESTAMP, _EVENT = tag(1, LENGTH), tag(8, VARINT), tag(11, LENGTH)
_SEQUENCE, _FLAGS_NEEDED = tag(10, VARINT), tag(13, VARINT) + bytes([_NEEDED])
_TYPE, _NAME, _CATEGORY, _ANNOTATION = tag(9, VARINT), tag(10, VARINT), tag(3, VARINT), tag(4, LENGTH)
_FLOW_OUT, _FLOW_IN, _DOUBLE = tag(47, FIXED64), tag(48, FIXED64), tag(44, FIXED64)
_KEY, _NUMBER, _TEXT = tag(1, VARINT), tag(4, VARINT), tag(17, VARINT)
_BEGIN = _TYPE + bytes([TrackEvent.TYPE_SLICE_BEGIN])
_END = _TYPE + bytes([TrackEvent.TYPE_SLICE_END])
_COUNTER = _TYPE + bytes([TrackEvent.TYPE_COUNTER])

#: The sequence of track 0; number 1 is that of processes.
_PROCESSES, _FIRST_SEQUENCE = 1, 2

#: What is interned, each kind with numbers of its own.
_NAMES, _CATEGORIES, _VALUES = range(3)

#: The number of each argument's name, the same on every sequence.
_KEYS = {name: number for number, name in enumerate(ARGUMENT_NAMES, 1)}

#: Bytes of packets that are deflated together.
_BUNDLE_BYTES = 1 << 19


class PerfettoWriter:
    """Writes descriptors, slices and counters of tracks to a file. Tracks are numbered by the caller from 0."""

    def __init__(self, file: BinaryIO, texts: Texts, *, compress: bool = False) -> None:
        self.file = file
        self.texts = texts
        self.compress = compress
        self._rooted = False
        self._last: dict[int, int] = {}  # per track, the time of its last packet
        self._declared: dict[tuple[int, int], set[int]] = {}  # per track and kind, the texts it has interned

    def process(self, ordinal: int, name: str, labels: Sequence[str]) -> None:
        """Declare a process; processes stand by ordinal, from 1."""
        trace = Trace()
        if not self._rooted:  # only a root that says so makes processes stand in the order declared
            root = self._descriptor(trace, _PROCESSES, 0)
            root.process_ordering = TrackDescriptor.PROCESS_ORDERING_EXPLICIT
            root.child_ordering = TrackDescriptor.EXPLICIT
            self._rooted = True
        descriptor = self._descriptor(trace, _PROCESSES, ordinal)
        descriptor.process.pid = ordinal
        descriptor.process.process_name = name
        descriptor.process.process_labels.extend(labels)
        descriptor.sibling_order_rank = ordinal
        descriptor.child_ordering = TrackDescriptor.EXPLICIT
        self._write_trace(trace)

    def track(self, track: int, *, process: int, name: str, rank: int, unit: str | None = None) -> None:
        """Declare a track of a process (0: of none), a counter if it has a unit, and open its sequence."""
        trace = Trace()
        packet = trace.packet.add()
        packet.trusted_packet_sequence_id = _sequence(track)
        packet.sequence_flags = _CLEARED
        packet.timestamp = 0
        packet.timestamp_clock_id = _TRACE_CLOCK
        snapshot = packet.clock_snapshot
        snapshot.primary_trace_clock = _TRACE_CLOCK
        snapshot.clocks.add(clock_id=_TRACE_CLOCK, timestamp=0)
        snapshot.clocks.add(clock_id=_SEQUENCE_CLOCK, timestamp=0, is_incremental=True, unit_multiplier_ns=1)
        packet.trace_packet_defaults.timestamp_clock_id = _SEQUENCE_CLOCK
        packet.trace_packet_defaults.track_event_defaults.track_uuid = track_uuid(track)
        for key, number in _KEYS.items() if unit is None else ():
            packet.interned_data.debug_annotation_names.add(iid=number, name=key)
        descriptor = self._descriptor(trace, _sequence(track), track_uuid(track))
        descriptor.name = name
        if process:
            descriptor.parent_uuid = process
        descriptor.sibling_order_rank = rank
        if unit is not None:
            descriptor.counter.unit_name = unit
        self._last[track] = 0
        self._write_trace(trace)

    def about(self, track: int, title: str, details: dict[str, str]) -> None:
        """Put one instant on a track, whose arguments tell about the whole trace; and the same as attributes."""
        trace = Trace()
        packet = trace.packet.add()
        packet.trusted_packet_sequence_id = _sequence(track)
        packet.sequence_flags = _NEEDED
        packet.timestamp = 0
        event = packet.track_event
        event.type = TrackEvent.TYPE_INSTANT
        event.name = title
        event.categories.append("about")
        for key, text in details.items():
            event.debug_annotations.add(name=key, string_value=text)
        attributes = trace.packet.add().trace_attributes
        for key, text in details.items():
            attributes.attribute.add(key=f"tracekit.{key.replace(' ', '_')}", string_value=text)
        self._write_trace(trace)

    def slices(self, slices: Slices) -> None:
        """Write slices; their tracks were declared, and each goes on where it ended."""
        count = len(slices.track)
        if not count:
            return
        opens, closes = slices.opens, slices.closes
        times = np.empty(2 * count, np.int64)
        times[opens], times[closes] = slices.start_ns, slices.start_ns + slices.dur_ns
        first = runs(slices.track)
        delta = self._deltas(times, slices.track[first], 2 * first)
        self._intern(slices, first)
        sequence = slices.track + _FIRST_SEQUENCE
        shapes = [
            (opens[rows], self._packet(delta[opens[rows]], self._begin(slices, rows, optional), sequence[rows]))
            for rows, optional in _by_fields(slices)
        ]
        shapes.append((closes, self._packet(delta[closes], Message(_EVENT, [Const(_END)]), sequence)))
        self._write(*interleave(shapes))

    @staticmethod
    def _begin(slices: Slices, rows: Ints, optional: Sequence[Field]) -> Message:
        # What is one byte in nearly every packet stands last, where it makes a whole word with what follows.
        name, category = Varint(_NAME, slices.name[rows]), Varint(_CATEGORY, slices.category[rows])
        return Message(_EVENT, [name, *optional, category, Const(_BEGIN)])

    def counter(self, track: int, times: Ints, values: np.ndarray) -> None:
        """Write values of a counter, sorted by time."""
        if not len(times):
            return
        delta = self._deltas(times, np.array([track]), np.array([0]))
        event = Message(_EVENT, [Const(_COUNTER), Fixed64(_DOUBLE, values.astype(np.float64).view(np.uint64))])
        sequence = np.full(len(times), _sequence(track), np.int64)
        self._write(*interleave([(np.arange(len(times)), self._packet(delta, event, sequence))]))

    def close(self) -> None:
        """Nothing ends the file: it is a run of packets."""

    @staticmethod
    def _packet(delta: Ints, event: Field, sequence: Ints) -> Message:
        return Message(_PACKET, [Varint(_TIMESTAMP, delta), event, Varint(_SEQUENCE, sequence), Const(_FLAGS_NEEDED)])

    def _deltas(self, times: Ints, tracks: Ints, first: Ints) -> Ints:
        """Return each packet's distance to the one before it on its track, and remember the last times."""
        delta = np.diff(times, prepend=0)
        delta[first] = times[first] - np.array([self._last[t] for t in tracks.tolist()], np.int64)
        if (delta < 0).any():
            raise TracekitError("slices overlap on a track: this is a fault of tracekit, please report it")
        last = times[np.append(first[1:], len(times)) - 1]
        self._last.update(zip(tracks.tolist(), last.tolist(), strict=True))
        return delta

    def _intern(self, slices: Slices, first: Ints) -> None:
        """Declare the texts that sequences use for the first time."""
        tracks, bounds = slices.track[first].tolist(), np.append(first, len(slices.track))
        trace = Trace()
        packets: dict[int, TracePacket] = {}
        used = [(_NAMES, bounds, slices.name), (_CATEGORIES, bounds, slices.category)]
        for argument in slices.arguments:
            if argument.is_text:
                used.append((_VALUES, np.searchsorted(argument.rows, bounds), argument.values))
        for kind, edges, numbers in used:
            for track, a, b in zip(tracks, edges[:-1].tolist(), edges[1:].tolist(), strict=True):
                known = self._declared.setdefault((track, kind), set())
                new = [n for n in _distinct(numbers[a:b]) if n not in known]
                known.update(new)
                if new and track not in packets:
                    packets[track] = trace.packet.add(
                        trusted_packet_sequence_id=_sequence(track), sequence_flags=_NEEDED
                    )
                for number in new:
                    self._add_text(packets[track].interned_data, kind, number)
        self._write_trace(trace)

    def _add_text(self, data: InternedData, kind: int, number: int) -> None:
        if kind == _NAMES:
            data.event_names.add(iid=number, name=self.texts.names.known[number])
        elif kind == _CATEGORIES:
            data.event_categories.add(iid=number, name=self.texts.categories.known[number])
        else:
            data.debug_annotation_string_values.add(iid=number, str=self.texts.values.known[number].encode())

    @staticmethod
    def _descriptor(trace: Trace, sequence: int, uuid: int) -> TrackDescriptor:
        packet = trace.packet.add(trusted_packet_sequence_id=sequence)
        packet.track_descriptor.uuid = uuid
        descriptor: TrackDescriptor = packet.track_descriptor
        return descriptor

    def _write_trace(self, trace: Trace) -> None:
        data = trace.SerializeToString()
        self._write(np.frombuffer(data, np.uint8), np.zeros(min(len(data), 1), np.int64))

    def _write(self, packets: Bytes, starts: Ints) -> None:
        """Write whole packets, which begin at `starts`; deflated in bundles if so wished."""
        if not self.compress:
            self.file.write(packets.data)
            return
        cuts = starts[np.searchsorted(starts, np.arange(0, len(packets), _BUNDLE_BYTES))] if len(starts) > 1 else starts
        for a, b in zip(cuts, np.append(cuts[1:], len(packets)), strict=True):
            if b > a:
                trace = Trace()
                trace.packet.add(compressed_packets=zlib.compress(packets[a:b].data, 6))
                self.file.write(trace.SerializeToString())


def _by_fields(slices: Slices) -> Iterator[tuple[Ints, list[Field]]]:
    """Sort slices by which arguments and arrows they have; yield the rows that have the same, and those fields."""
    optional: list[tuple[Ints, Ints, Callable[[Ints], Field]]] = [
        (a.rows, a.values, partial(_annotation, a)) for a in slices.arguments
    ]
    optional += [
        (rows, ids, partial(_arrow, direction))
        for direction, (rows, ids) in ((_FLOW_OUT, slices.flows_out), (_FLOW_IN, slices.flows_in))
        if len(rows)
    ]
    has = np.zeros(len(slices.track), np.int64)
    for n, (rows, _, _) in enumerate(optional):
        has[rows] |= 1 << n
    for which in _distinct(has):
        mine = np.flatnonzero(has == which)
        fields = []
        for n, (rows, values, field) in enumerate(optional):
            if which >> n & 1:
                fields.append(field(values if len(rows) == len(mine) else values[np.searchsorted(rows, mine)]))
        yield mine, fields


def _annotation(argument: Argument, values: Ints) -> Field:
    kind = _TEXT if argument.is_text else _NUMBER
    return Message(_ANNOTATION, [Varint(_KEY + bytes([_KEYS[argument.name]]) + kind, values)])


def _arrow(direction: bytes, ids: Ints) -> Field:
    return Fixed64(direction, ids.view(np.uint64))


def track_uuid(track: int) -> int:
    """Return the uuid of a track; processes have theirs below, and 0 is the root's."""
    return (1 << 32) + track


def _sequence(track: int) -> int:
    return track + _FIRST_SEQUENCE


def _distinct(numbers: Ints) -> list[int]:
    if len(numbers) < 512:
        return sorted(set(numbers.tolist()))
    return np.flatnonzero(np.bincount(numbers)).tolist()
