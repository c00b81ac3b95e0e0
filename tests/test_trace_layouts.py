"""Placement: where slices stand in each layout, on events made by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import polars as pl
import pytest
from hypothesis import given, settings
from made_up import MadeUp, events
from trace_check import Read, Slice, expect, read_trace

import tracekit as tk
from tracekit.errors import UsageError
from tracekit.trace import LAYOUTS, TraceReport


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


def written(folder: Path, frames: Sequence[pl.DataFrame], **options: Any) -> tuple[TraceReport, Read]:
    report = tk.write_trace(MadeUp(list(frames)), folder / "t.pftrace", **options)
    trace = read_trace(folder / "t.pftrace")
    expect(trace, operations=report.slices, tracks=report.tracks)
    return report, trace


def times(slices: Sequence[Slice]) -> list[tuple[str, int, int]]:
    return [(s.name, s.start_ns, s.end_ns) for s in sorted(slices, key=lambda s: (s.start_ns, -s.end_ns, s.depth))]


def on(trace: Read, process: str, *, track: str = "operations") -> list[Slice]:
    return [s for s in trace.slices if trace.process(s) == process and trace.tracks[s.track].name.startswith(track)]


def worker(name: str, parts: Sequence[tuple[int, int]], **shared: Any) -> pl.DataFrame:
    """A worker with one operation for each (step, duration)."""
    rows = [{"step": step, "dur_ns": dur, "phase": "decode", "tokens": 1} for step, dur in parts]
    return events(rows, worker=name, stream=f"{name}.log", **shared)


def test_steps_layers_and_operations_nest_and_are_packed(folder: Path) -> None:
    rows = [
        {"op": "A", "step": 0, "layer": 0, "dur_ns": 5},
        {"op": "B", "step": 0, "layer": 0, "dur_ns": 0},
        {"op": "C", "step": 0, "layer": 1, "dur_ns": 7},
        {"op": "D", "step": 0, "dur_ns": 2},
        {"op": "E", "step": 1, "layer": 0, "dur_ns": 1},
    ]
    report, trace = written(folder, [events(rows, phase="decode")])
    assert (report.layout, report.reason) == ("sequential", "no times are known")
    assert times(on(trace, "w")) == [
        ("decode 0", 0, 14),
        ("layer 0", 0, 5),
        ("A", 0, 5),
        ("layer 1", 5, 12),
        ("C", 5, 12),
        ("B", 5, 5),
        ("D", 12, 14),
        ("decode 1", 14, 15),
        ("layer 0", 14, 15),
        ("E", 14, 15),
    ]
    depths = {s.name: s.depth for s in trace.slices}
    assert (depths["decode 0"], depths["layer 0"], depths["B"], depths["D"]) == (0, 1, 2, 1)
    assert "packed back to back; no times are known" in trace.tracks[trace.slices[0].track].name


def test_a_pipelines_parts_follow_one_another_with_arrows(folder: Path) -> None:
    front = worker("rpc-10", [(0, 5), (1, 6)], layer=0)
    back = worker("rpc-2", [(0, 10), (1, 20)], layer=1)
    report, trace = written(folder, [back, front])
    assert report.layout == "pipeline"
    assert trace.processes == ["rpc-2", "rpc-10"]
    steps = sorted((s for s in trace.slices if s.category == "decode"), key=lambda s: s.start_ns)
    # The order along a step is that of the layers, not that of the names.
    assert [(trace.process(s), s.start_ns, s.end_ns) for s in steps] == [
        ("rpc-10", 0, 5),
        ("rpc-2", 5, 15),
        ("rpc-10", 15, 21),
        ("rpc-2", 21, 41),
    ]
    assert [s.arrows_out for s in steps if trace.process(s) == "rpc-10"] == [
        s.arrows_in for s in steps if trace.process(s) == "rpc-2"
    ]
    assert all(len(s.arrows_out) == 1 for s in steps if trace.process(s) == "rpc-10")
    assert trace.attributes["tracekit.pipeline_order"] == "rpc-10 > rpc-2"


def test_ranks_are_aligned_at_step_starts(folder: Path) -> None:
    ranks = [worker(f"rank {r}", [(0, 5 + r), (1, 9 - r)], rank=r, layer=3) for r in range(3)]
    report, trace = written(folder, ranks)
    assert report.layout == "ranks"
    starts = {}
    for one in trace.slices:
        if one.category == "decode":
            starts.setdefault(one.details["step"], set()).add(one.start_ns)
    assert starts == {0: {0}, 1: {7}}


def test_workers_without_steps_are_packed_from_zero_beside_a_plan(folder: Path) -> None:
    ranks = [worker(f"rank {r}", [(0, 5), (1, 9)], rank=r) for r in range(2)]
    other = events([{"dur_ns": 3}, {"dur_ns": 4}], worker="engine", stream="engine.log")
    _, trace = written(folder, [*ranks, other], layout="ranks")
    assert times(on(trace, "engine")) == [("MUL", 0, 3), ("MUL", 3, 7)]
    assert any("packed back to back" in t.name for t in trace.tracks.values())


def test_stamps_that_collide_move_whole_trees(folder: Path) -> None:
    rows = [
        {"op": "child", "depth": 1, "dur_ns": 4, "arrival_ns": 1_000_010},
        {"op": "tree", "dur_ns": 10, "arrival_ns": 1_000_012},
        {"op": "next", "dur_ns": 5, "arrival_ns": 1_000_012},
        {"op": "late", "dur_ns": 5, "arrival_ns": 1_000_100},
    ]
    report, trace = written(folder, [events(rows)])
    assert report.layout == "arrival"
    assert times(trace.slices) == [("tree", 0, 10), ("child", 4, 8), ("next", 10, 15), ("late", 93, 98)]
    moved = {s.name: s.details.get("shifted_ns") for s in trace.slices}
    assert moved == {"tree": None, "child": None, "next": 5, "late": None}
    assert "1 trees" in report.notes[0]


def test_collectives_that_overlap_have_a_track_of_their_own(folder: Path) -> None:
    rows = [
        {"op": "compute", "dur_ns": 10, "start_ns": 100},
        {"op": "all_reduce", "category": "collective", "dur_ns": 10, "start_ns": 105},
        {"op": "compute", "dur_ns": 10, "start_ns": 110},
        {"op": "launch", "category": "host", "dur_ns": 4, "start_ns": 118},
    ]
    report, trace = written(folder, [events(rows)])
    assert report.layout == "start"
    assert times(on(trace, "w")) == [("compute", 0, 10), ("compute", 10, 20)]
    assert times(on(trace, "w", track="collectives")) == [("all_reduce", 5, 15)]
    assert times(on(trace, "w", track="host work")) == [("launch", 18, 22)]


def test_other_overlaps_take_lanes(folder: Path) -> None:
    rows = [{"op": f"o{n}", "dur_ns": 10, "start_ns": start} for n, start in enumerate([0, 3, 6, 10, 40])]
    _, trace = written(folder, [events(rows)])
    lanes = {s.name: trace.tracks[s.track].name.rpartition("lane ")[2] for s in trace.slices}
    assert [lanes[f"o{n}"][-1] for n in (1, 2)] == ["2", "3"]
    assert lanes["o0"] == lanes["o3"] == lanes["o4"]


def test_children_that_exceed_their_parent_keep_their_duration_on_another_track(folder: Path) -> None:
    rows = [
        {"op": "first", "depth": 1, "dur_ns": 6},
        {"op": "inner", "depth": 2, "dur_ns": 2},
        {"op": "second", "depth": 1, "dur_ns": 6},
        {"op": "parent", "dur_ns": 10},
        {"op": "after", "dur_ns": 1},
    ]
    report, trace = written(folder, [events(rows)])
    assert times(on(trace, "w")) == [("parent", 0, 10), ("first", 0, 6), ("after", 10, 11)]
    assert times(on(trace, "w", track="children that exceed")) == [("second", 6, 12), ("inner", 6, 8)]
    assert "1 slices exceed" in report.notes[0]


def test_filters_hide_and_do_not_move(folder: Path) -> None:
    rows = [
        {"op": "inner", "depth": 1, "dur_ns": 6},
        {"op": "outer", "dur_ns": 10},
        {"op": "other", "dur_ns": 3},
        {"op": "inner", "depth": 1, "dur_ns": 1},
        {"op": "outer", "dur_ns": 4},
    ]
    where = pl.col("op").cast(pl.String) == "inner"
    report, trace = written(folder, [events(rows)], where=where)
    # A child whose parent is hidden does not fall into the next tree.
    assert times(trace.slices) == [("inner", 0, 6), ("inner", 13, 14)]
    assert {s.depth for s in trace.slices} == {0}
    assert "3 events are hidden" in report.notes[0]
    _, trace = written(folder, [events(rows)], min_dur_ns=4)
    assert times(trace.slices) == [("outer", 0, 10), ("inner", 0, 6), ("outer", 13, 17)]


def test_hidden_workers_have_no_process(folder: Path) -> None:
    frames = [worker("a", [(0, 5)]), worker("b", [(0, 5)])]
    _, trace = written(folder, frames, where=pl.col("worker").cast(pl.String) == "b")
    assert trace.processes == ["b"]


def test_a_range_of_steps_begins_at_zero(folder: Path) -> None:
    _, trace = written(folder, [worker("w", [(s, 10 + s) for s in range(6)])], steps=range(2, 4))
    assert times([s for s in trace.slices if s.category == "decode"]) == [("decode 2", 0, 12), ("decode 3", 12, 25)]


def test_samples_and_summaries_are_aggregates_on_tracks_of_their_own(folder: Path) -> None:
    rows = [{"op": "region", "dur_ns": dur, "kind": "sample", "call": n} for n, dur in ((8, 10), (16, 21))]
    report, trace = written(folder, [events([*rows, {"op": "real", "dur_ns": 5}])])
    assert (report.slices, report.aggregates) == (1, 1)
    (sample,) = (s for s in trace.slices if s.category == "sampled")
    assert (sample.dur_ns, sample.details["calls"], sample.details["min_ns"], sample.details["max_ns"]) == (
        16,
        2,
        10,
        21,
    )
    assert "samples" in trace.tracks[sample.track].name


def test_counters_tell_steps_shares_and_outliers(folder: Path) -> None:
    rows = [{"op": "A", "category": "matmul", "dur_ns": 30, "step": s} for s in range(10)]
    rows[7]["dur_ns"] = 1000
    mixed = [r for row in rows for r in (row, {"op": "B", "category": "norm", "dur_ns": 10, "step": row["step"]})]
    _, trace = written(folder, [events(mixed)])
    counters = {trace.tracks[t].name: values for t, values in trace.counters.items()}
    ms = dict(counters["ms per step"])
    assert ms[0] == pytest.approx(40e-6)
    assert ms[280] == pytest.approx(1010e-6)
    assert dict(counters["share of matmul per step"])[0] == pytest.approx(75)
    (lost,) = (v for name, v in counters.items() if name.startswith("lost to outliers"))
    assert lost == [(0, 0.0), (1280, pytest.approx(970e-6, rel=0.02))]


def test_two_clocks_of_a_worker_are_two_tracks(folder: Path) -> None:
    frame = pl.concat([events([{"dur_ns": 5}]), events([{"dur_ns": 7}], clock="device")])
    _, trace = written(folder, [frame])
    assert sorted(s.start_ns for s in trace.slices) == [0, 0]
    assert len({s.track for s in trace.slices}) == 2


def test_layouts_that_the_log_cannot_have_say_why(folder: Path) -> None:
    plain = [worker("a", [(0, 5)])]
    for layout, message in (("pipeline", "two workers"), ("arrival", "tracekit run"), ("start", "t0_ns")):
        with pytest.raises(UsageError, match=message):
            tk.write_trace(MadeUp(plain), folder / "no.pftrace", layout=layout)
    assert not (folder / "no.pftrace").exists()
    assert set(LAYOUTS) == {"sequential", "pipeline", "ranks", "arrival", "start"}


def test_layers_go_on_over_the_ends_of_batches(folder: Path) -> None:
    frame = events([{"layer": n // 4, "dur_ns": 3} for n in range(40)])
    _, trace = written(folder, [frame.slice(at, 3) for at in range(0, 40, 3)])
    layers = [s for s in trace.slices if s.category == "layer"]
    assert [s.dur_ns for s in layers] == [12] * 10


def test_ten_thousand_tracks(folder: Path) -> None:
    names = [f"w{n}" for n in range(10_000)]
    frame = events([{"worker": n, "dur_ns": 7} for n in names for _ in range(2)])
    _, trace = written(folder, [frame])
    assert trace.processes == names
    assert sorted({(s.start_ns, s.end_ns) for s in trace.slices}) == [(0, 7), (7, 14)]


TREES = st.recursive(st.just([]), lambda inside: st.lists(inside, max_size=4), max_leaves=25)


def rows_of(tree: list[Any], depth: int, draw: Any) -> list[dict[str, Any]]:
    """Rows of a tree in order of completion; a parent lasts at least as long as its children."""
    rows: list[dict[str, Any]] = []
    inside = 0
    for child in tree:
        below = rows_of(child, depth + 1, draw)
        inside += below[-1]["dur_ns"]
        rows += below
    own = draw(st.sampled_from([0, 0, 1, 999]))
    return [*rows, {"depth": depth, "dur_ns": inside + own, "self_ns": own, "op": f"d{depth}"}]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_nesting_keeps_durations_depths_and_order(folder: Path, data: st.DataObject) -> None:
    forest = data.draw(st.lists(TREES, min_size=1, max_size=6))
    rows = [row for tree in forest for row in rows_of(tree, 0, data.draw)]
    if data.draw(st.booleans()):
        time = 0
        for row in rows:
            time += data.draw(st.sampled_from([0, 0, 1, 500, 5000]))
            row["arrival_ns"] = 10_000_000_000 + time
    report, trace = written(folder, [events(rows)])
    read = sorted(trace.operations(), key=lambda s: s.details["line"])
    assert [(s.dur_ns, s.depth) for s in read] == [(r["dur_ns"], r["depth"]) for r in rows]
    assert report.notes == () or "trees end later" in report.notes[0]
