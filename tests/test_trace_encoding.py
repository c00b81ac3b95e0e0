"""The columnar encoder against protobuf itself, lanes, and the brackets of trees."""

import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from tracekit.trace.lanes import Lanes
from tracekit.trace.protobuf import FIXED64, LENGTH, VARINT, Const, Fixed64, Message, Varint, interleave, tag

NUMBERS = st.one_of(
    st.integers(0, 200), st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, 127, 128, 2**56, 2**63 - 1])
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(0, 2**64 - 1)), min_size=1, max_size=20), st.data())
def test_columns_are_what_protobuf_reads(rows: list[tuple[int, int, int]], data: st.DataObject) -> None:
    times, values, arrows = (list(column) for column in zip(*rows, strict=True))
    stamps = np.array([abs(t) % 2**63 for t in times], np.int64)
    event = Message(
        tag(11, LENGTH),
        [
            Const(tag(9, VARINT) + b"\x01"),
            Varint(tag(30, VARINT), np.array(values, np.int64)),
            Fixed64(tag(47, FIXED64), np.array(arrows, np.uint64)),
        ],
    )
    message = Message(tag(1, LENGTH), [Varint(tag(8, VARINT), stamps), event, Const(tag(10, VARINT) + b"\x07")])
    order = np.array(data.draw(st.permutations(range(len(rows)))), np.int64)
    half = len(rows) // 2
    parts = [(order, message)] if half == 0 or data.draw(st.booleans()) else None
    if parts is None:  # a second shape between the first
        short = Message(
            tag(1, LENGTH),
            [Varint(tag(8, VARINT), stamps), Const(tag(10, VARINT) + b"\x09" + tag(13, VARINT) + b"\x02")],
        )
        places = np.arange(2 * len(rows))
        parts = [(places[::2], message), (places[1::2], short)]
    encoded, starts = interleave(parts)
    trace = Trace()
    trace.ParseFromString(encoded.tobytes())
    full = [p for p in trace.packet if p.trusted_packet_sequence_id == 7]
    wanted = range(len(rows)) if len(parts) == 2 else np.argsort(order)
    assert [(p.timestamp, p.track_event.counter_value, p.track_event.flow_ids[0]) for p in full] == [
        (int(stamps[i]), values[i], arrows[i]) for i in wanted
    ]
    assert encoded.tobytes() == trace.SerializeToString() or len(trace.SerializeToString()) == len(encoded)
    assert (encoded[starts] == 0x0A).all()


def test_messages_too_short_for_a_word_are_refused() -> None:
    with pytest.raises(ValueError, match="eight"):
        interleave([(np.arange(2), Message(b"\x0a", [Const(b"\x50\x01")]))])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 30)), max_size=20), max_size=4))
def test_no_two_slices_of_a_lane_overlap(pieces: list[list[tuple[int, int]]]) -> None:
    lanes = Lanes()
    taken: dict[int, list[tuple[int, int]]] = {}
    for piece in pieces:
        rows = sorted(piece)
        start = np.array([s for s, _ in rows], np.int64)
        end = start + np.array([d for _, d in rows], np.int64)
        for s, e, lane in zip(start.tolist(), end.tolist(), lanes.take(start, end).tolist(), strict=True):
            taken.setdefault(lane, []).append((s, e))
    for slices in taken.values():
        for (_, before), (after, _) in itertools.pairwise(slices):
            assert after >= before
    assert set(taken) == set(range(len(taken)))
