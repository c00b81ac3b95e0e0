"""Traces, read back: as many slices as events, properly nested, and the same nanoseconds as the table."""

import itertools
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import polars as pl
import pytest
from hypothesis import given, settings
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from trace_check import BadTraceError, Read, read_trace

import tracekit as tk
from tracekit.errors import OutputError, UsageError
from tracekit.reading import read

SAMPLES = Path(__file__).parent.parent / "samples"
LOGS = [
    *sorted(SAMPLES.glob("*.log")),
    SAMPLES / "sycl_cpu_gemma270m.log.gz",
    SAMPLES / "generated" / "a_minimax_layer",
    SAMPLES / "generated" / "b_moe_kernel_waits.log",
    SAMPLES / "generated" / "c2_collectives_tp4.log.gz",
    SAMPLES / "generated" / "c3_eager_regions.log.gz",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


def check_against_events(trace: Read, events: pl.DataFrame) -> None:
    single = events.filter(pl.col("kind") == "event")
    operations = trace.operations()
    assert len(operations) == single.height
    expected = {op: (n, ns) for op, n, ns in single.group_by(pl.col("op").cast(pl.String)).agg(
        pl.len(), pl.col("dur_ns").sum()).iter_rows()}  # fmt: skip
    calls = Counter(s.name for s in operations)
    times: Counter[str] = Counter()
    for one in operations:
        times[one.name] += one.dur_ns
    assert {op: (n, times[op]) for op, n in calls.items()} == expected


@pytest.mark.parametrize("log", LOGS, ids=lambda p: p.name)
def test_every_event_is_a_slice_of_its_printed_duration(log: Path, folder: Path) -> None:
    run = read(log)
    report = tk.write_trace(run, folder / "t.pftrace")
    trace = read_trace(folder / "t.pftrace")
    events = run.events.collect()
    assert report.slices == events.filter(pl.col("kind") == "event").height
    check_against_events(trace, events)


@pytest.mark.parametrize("layout", ["sequential", "pipeline"])
def test_layouts_of_a_pipeline_keep_every_slice(layout: str, folder: Path) -> None:
    run = read(SAMPLES / "generated" / "a_minimax_layer")
    report = tk.write_trace(run, folder / "p.pftrace", layout=layout)
    assert report.layout == layout
    check_against_events(read_trace(folder / "p.pftrace"), run.events.collect())


def test_a_pipelines_workers_stand_one_after_another(folder: Path) -> None:
    run = read(SAMPLES / "generated" / "a_minimax_layer")
    tk.write_trace(run, folder / "p.pftrace", layout="pipeline")
    spans = {}
    for one in read_trace(folder / "p.pftrace").operations():
        low, high = spans.get(one.track, (one.start_ns, one.end_ns))
        spans[one.track] = (min(low, one.start_ns), max(high, one.end_ns))
    ordered = sorted(spans.values())
    assert len(ordered) == 4
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ordered))
    assert ordered[-1][1] - ordered[0][0] == 248_669_000


def test_self_time_of_nested_regions_equals_the_table(folder: Path) -> None:
    run = read(SAMPLES / "vllm_eager_tp1.log")
    tk.write_trace(run, folder / "n.pftrace")
    own: Counter[str] = Counter()
    stack: list[tuple[int, int, str]] = []
    slices = sorted(
        read_trace(folder / "n.pftrace").operations(), key=lambda s: (s.track, s.start_ns, s.depth, -s.end_ns)
    )
    for one in slices:
        own[one.name] += one.dur_ns
        while stack and (stack[-1][0] != one.track or stack[-1][1] <= one.start_ns):
            stack.pop()
        if stack:
            own[stack[-1][2]] -= one.dur_ns
        stack.append((one.track, one.end_ns, one.name))
    table = tk.buckets(run, by=["op"])[0].frame
    assert dict(own) == dict(table.select(pl.col("op").cast(pl.String), "self_ns").iter_rows())


def test_compressed_is_the_same_trace_and_smaller(folder: Path) -> None:
    run = read(SAMPLES / "llama_rpc_worker0.log")
    tk.write_trace(run, folder / "raw.pftrace")
    tk.write_trace(run, folder / "packed.pftrace", compress=True)
    assert (folder / "packed.pftrace").stat().st_size * 3 < (folder / "raw.pftrace").stat().st_size
    raw, packed = (read_trace(folder / f"{n}.pftrace") for n in ("raw", "packed"))
    assert raw.slices == packed.slices


def test_steps_and_filters_narrow_a_trace(folder: Path) -> None:
    run = read(SAMPLES / "llama_rpc_worker0.log")
    tk.write_trace(run, folder / "s.pftrace", steps=range(3, 5))
    assert len(read_trace(folder / "s.pftrace").operations()) == 2 * 403
    tk.write_trace(run, folder / "s.pftrace", min_dur_ns=1_000_000)
    slow = run.events.filter(pl.col("dur_ns") >= 1_000_000).collect()
    assert len(read_trace(folder / "s.pftrace").operations()) == slow.height


def test_workers_stand_in_natural_order_and_say_that_nothing_is_throughput(folder: Path) -> None:
    logs = folder / "many"
    logs.mkdir()
    for n in (10, 2, 1):
        (logs / f"rpc-{n}.log").write_text("[SYCL_OP_TIMING] dev=0 op=MUL name=x-0 ne=1x1x1x1 us=1\n")
    tk.write_trace(read(logs), folder / "many.pftrace")
    trace = read_trace(folder / "many.pftrace")
    processes = sorted((t.rank, t.process) for t in trace.tracks.values() if t.process.startswith("rpc"))
    assert [name for _, name in processes] == ["rpc-1", "rpc-2", "rpc-10"]
    assert any("not throughput" in t.name for t in trace.tracks.values())


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=63).filter(
                lambda s: "[" not in s
            ),
            st.integers(0, 3),
            st.sampled_from([0, 0, 1, 999, 10**9]),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_any_names_and_any_durations(folder: Path, rows: list[tuple[str, int, int]]) -> None:
    log = folder / "any.log"
    log.write_text(
        "".join(f"[SYCL_OP_TIMING] dev=0 op=OP{n} name={name}-{n} ne=1x1x1x1 us={us}\n" for name, n, us in rows)
    )
    run = read(log)
    tk.write_trace(run, folder / "any.pftrace")
    check_against_events(read_trace(folder / "any.pftrace"), run.events.collect())


REGIONS = [
    "runner.forward",
    "m.layer.total",
    "m.attn.total",
    "m.attn.rope",
    "m.moe.total",
    "other",
    "runner.preprocess",
]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(REGIONS), st.integers(0, 10**6)), min_size=1, max_size=40))
def test_any_nesting(folder: Path, rows: list[tuple[str, int]]) -> None:
    seen: Counter[str] = Counter()
    text = ""
    for label, ns in rows:
        seen[label] += 1
        text += f"[vllm-xpu-timing] rank=0 label={label} count={seen[label]} last_ms={ns / 1e6:.6f}\n"
    (folder / "any.log").write_text(text)
    run = read(folder / "any.log")
    tk.write_trace(run, folder / "any.pftrace")
    check_against_events(read_trace(folder / "any.pftrace"), run.events.collect())


def test_unwritable_and_unknown(folder: Path) -> None:
    run = read(SAMPLES / "llama_rpc_client.log")
    with pytest.raises(OutputError, match="cannot be written"):
        tk.write_trace(run, folder / "no" / "such" / "t.pftrace")
    with pytest.raises(UsageError, match="layout"):
        tk.write_trace(run, folder / "t2.pftrace", layout="spiral")
    assert not (folder / "t2.pftrace").exists()


Edit = Callable[[Trace], None]


def first(trace: Trace, kind: int) -> int:
    return next(i for i, p in enumerate(trace.packet) if p.HasField("track_event") and p.track_event.type == kind)


def drop_end(trace: Trace) -> None:
    last = max(i for i, p in enumerate(trace.packet) if p.track_event.type == TrackEvent.TYPE_SLICE_END)
    del trace.packet[last]


def stray_end(trace: Trace) -> None:
    begin = first(trace, TrackEvent.TYPE_SLICE_BEGIN)
    trace.packet.add().CopyFrom(trace.packet[begin])
    trace.packet[-1].track_event.type = TrackEvent.TYPE_SLICE_END
    trace.packet[-1].track_event.ClearField("name_iid")


def unknown_name(trace: Trace) -> None:
    trace.packet[first(trace, TrackEvent.TYPE_SLICE_BEGIN)].track_event.name_iid = 99_999


def no_state(trace: Trace) -> None:
    for packet in trace.packet:
        packet.sequence_flags &= ~1


def undeclared_track(trace: Trace) -> None:
    keep = [p for p in trace.packet if not p.HasField("track_descriptor")]
    del trace.packet[:]
    trace.packet.extend(keep)


def no_sequence(trace: Trace) -> None:
    trace.packet[first(trace, TrackEvent.TYPE_SLICE_BEGIN)].trusted_packet_sequence_id = 0


@pytest.mark.parametrize("edit", [drop_end, stray_end, unknown_name, no_state, undeclared_track, no_sequence])
def test_the_checker_finds_what_readers_let_through(edit: Edit, folder: Path) -> None:
    tk.write_trace(read(SAMPLES / "llama_rpc_client.log"), folder / "good.pftrace")
    read_trace(folder / "good.pftrace")
    trace = Trace()
    trace.ParseFromString((folder / "good.pftrace").read_bytes())
    edit(trace)
    (folder / "bad.pftrace").write_bytes(trace.SerializeToString())
    with pytest.raises(BadTraceError):
        read_trace(folder / "bad.pftrace")


def test_the_checker_finds_a_truncated_and_an_empty_file(folder: Path) -> None:
    tk.write_trace(read(SAMPLES / "llama_rpc_client.log"), folder / "good.pftrace")
    whole = (folder / "good.pftrace").read_bytes()
    for cut in (b"", whole[:-3], whole[: len(whole) // 2]):
        (folder / "bad.pftrace").write_bytes(cut)
        with pytest.raises(BadTraceError):
            read_trace(folder / "bad.pftrace")


def test_the_command_leaves_nothing_half_written(tracekit: Callable[..., object], tmp_path: Path) -> None:
    locked = tmp_path / "gone" / "t.pftrace"
    done = tracekit("convert", SAMPLES / "llama_rpc_client.log", "-o", locked)
    assert done.returncode == 1  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []
    shutil.copy(SAMPLES / "llama_rpc_client.log", tmp_path / "w.log")
    done = tracekit("convert", "w.log", "-o", "t.pftrace", cwd=tmp_path)
    assert done.returncode == 0  # type: ignore[attr-defined]
    assert "72 slices" in done.stderr  # type: ignore[attr-defined]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.pftrace", "w.log"]
