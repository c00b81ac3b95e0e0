"""Every sample against a count in plain Python; the generated ones against the published figures, by the command."""

import gzip
import importlib.util
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest
from plain_count import Count, Label, count, operation

import tracekit as tk
from tracekit.bucketing import buckets

SAMPLES = Path(__file__).parent.parent / "samples"
GENERATED = SAMPLES / "generated"
LOGS = sorted([*SAMPLES.glob("*.log"), *SAMPLES.glob("*.log.gz"), *GENERATED.rglob("*.log"), *GENERATED.glob("*.gz")])

#: Records per capture, from samples/PROVENANCE.md: single calls, summary rows, markers that are neither.
KNOWN = {
    "ik_gemma270m_cpu.log": (8_364, 0, 0),
    "llama_rpc_client.log": (72, 0, 0),
    "llama_rpc_worker0.log": (14_508, 0, 0),
    "llama_rpc_worker1.log": (11_700, 0, 0),
    "sycl_cpu_gemma270m.log.gz": (13_889, 0, 0),
    "vllm_eager_tp1.log": (1_266, 31, 0),
    "vllm_eager_tp2.log": (2_707, 59, 1),
    "vllm_eager_tp2_unbuffered.log": (2_707, 59, 0),
    "vllm_plain.log": (0, 0, 0),
    "vllm_xpu_timing_single_real_line.log": (1, 0, 0),
}

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def ident(path: Path) -> str:
    return str(path.relative_to(SAMPLES))


def cells(frame: pl.DataFrame, *columns: str) -> dict[Any, tuple[int, ...]]:
    """Rows as a dictionary: the first column to the integers of the others."""
    return {key: tuple(map(int, rest)) for key, *rest in frame.select(*columns).iter_rows()}


def owner(frame: pl.DataFrame) -> pl.Series:
    """The device or rank as the record printed it."""
    rank = pl.coalesce(pl.col("rank").cast(pl.String), pl.lit("pid") + pl.col("pid").cast(pl.String))
    of_device = pl.col("dialect").cast(pl.String).is_in(["ggml-sycl", "llm-scaler"])
    return frame.select(pl.when(of_device).then(pl.col("device").cast(pl.String)).otherwise(rank)).to_series()


@pytest.mark.parametrize("path", [p for p in LOGS if p.name in KNOWN], ids=ident)
def test_the_plain_count_finds_what_is_known_to_be_there(path: Path) -> None:
    found = count(path)

    assert (found.events, len(found.summaries), len(found.unread)) == KNOWN[path.name]


@pytest.mark.parametrize("path", LOGS, ids=ident)
def test_events_equal_the_plain_count(path: Path) -> None:
    expected = count(path)

    events = tk.read(path).events.collect()

    found: dict[Label, list[int]] = defaultdict(list)
    for who, op, name, dur in zip(owner(events), events["op"], events["name"], events["dur_ns"], strict=True):
        found[Label(who, op, name)].append(dur)
    assert found == expected.durations  # every single duration, in the order printed


@pytest.mark.parametrize("path", LOGS, ids=ident)
def test_ordinals_and_shapes_come_through(path: Path) -> None:
    expected = count(path)

    events = tk.read(path).events.collect()

    ggml = events.filter(pl.col("dialect").cast(pl.String) == "ggml-sycl")
    assert dict(ggml["shape"].cast(pl.String).value_counts().iter_rows()) == expected.shapes
    ordinals: dict[Label, list[int]] = defaultdict(list)
    counted = events.filter(pl.col("call").is_not_null())
    for who, name, call in zip(owner(counted), counted["name"], counted["call"], strict=True):
        ordinals[Label(who, operation(name), name)].append(call)
    assert ordinals == expected.ordinals


@pytest.mark.parametrize("path", [p for p in LOGS if "_step_" not in p.name], ids=ident)
def test_summaries_equal_the_plain_count(path: Path) -> None:
    expected = count(path)

    rows = tk.read(path).summaries.collect()

    numbers = rows.select("calls", "total_ns", "mean_ns", "max_ns").rows()
    labels = [Label(w, o, n) for w, o, n in zip(owner(rows), rows["op"], rows["name"], strict=True)]
    assert dict(zip(labels, numbers, strict=True)) == expected.summaries
    assert len(labels) == len(set(labels))


@pytest.mark.parametrize("path", LOGS, ids=ident)
def test_every_marker_is_accounted_for(path: Path) -> None:
    expected = count(path)

    coverage = tk.read(path).coverage.collect().filter(~pl.col("dialect").cast(pl.String).str.contains("step"))

    assert coverage["records"].sum() == expected.events + len(expected.summaries)
    assert coverage["frame_lines"].sum() == expected.frames
    assert coverage["rejected"].sum() + coverage["quoted"].sum() == len(expected.unread)
    assert sum(coverage[c].sum() for c in ("records", "frame_lines", "rejected", "quoted")) == expected.markers


def complete(found: Count) -> bool:
    """Every label's calls are all printed (or not numbered at all)."""
    return bool(found.durations) and all(o == list(range(1, len(o) + 1)) for o in found.ordinals.values())


@pytest.mark.parametrize("by", ["op", "name"])
@pytest.mark.parametrize("path", [p for p in LOGS if complete(count(p))], ids=ident)
def test_tables_of_whole_logs_equal_the_plain_count(path: Path, by: str) -> None:
    expected = count(path)
    summarised_only = {label for label in expected.summaries if label not in expected.durations}

    tables = buckets(tk.read(path), by=[by])

    assert len(tables) == 1
    frame = tables[0].frame.filter(pl.col("basis") == "events")
    events = expected.by_op() if by == "op" else expected.by_name()
    mixed = {getattr(label, by) for label in summarised_only}
    assert cells(frame, by, "calls", "total_ns") == {k: v for k, v in events.items() if k not in mixed}
    times: dict[str, list[int]] = defaultdict(list)
    for label, durations in expected.durations.items():
        times[getattr(label, by)] += durations
    assert dict(frame.select(by, "max_ns").iter_rows()) == {k: max(times[k]) for k in events if k not in mixed}


def test_tables_of_several_logs_add_up() -> None:
    paths = [SAMPLES / f"llama_rpc_worker{i}.log" for i in (0, 1)]
    counts = [count(p) for p in paths]

    table = buckets(tk.read(paths), by=["worker", "op"])[0]

    found = {(w, o): (c, t) for w, o, c, t in table.frame.select("worker", "op", "calls", "total_ns").iter_rows()}
    assert found == {
        (f"llama_rpc_worker{i}", op): numbers for i, n in enumerate(counts) for op, numbers in n.by_op().items()
    }
    assert table.frame["total_ns"].sum() == sum(sum(map(sum, n.durations.values())) for n in counts)


def test_a_log_of_summaries_alone_is_its_summaries() -> None:
    path = SAMPLES / "vllm_summary_only.log"
    expected = count(path)

    frame = buckets(tk.read(path), by=["name"])[0].frame

    assert frame["basis"].unique().to_list() == ["summary"]
    assert cells(frame, "name", "calls", "total_ns", "max_ns") == {
        label.name: (s.calls, s.total_ns, s.max_ns) for label, s in expected.summaries.items()
    }


def test_samples_are_not_summed_where_a_summary_tells_the_total() -> None:
    path = SAMPLES / "vllm_bench_skip16_every8_rank0.log"
    expected = count(path)
    totals = {label.name: (s.calls, s.total_ns) for label, s in expected.summaries.items()}
    assert not complete(expected)
    assert all(len(times) < totals[label.name][0] for label, times in expected.durations.items())

    frame = buckets(tk.read(path), by=["name"])[0].frame

    assert cells(frame, "name", "calls", "total_ns") == totals


@pytest.mark.parametrize("path", [p for p in LOGS if complete(count(p))], ids=ident)
def test_percentiles_interpolate_linearly(path: Path) -> None:
    expected: dict[str, list[int]] = defaultdict(list)
    for label, times in count(path).durations.items():
        expected[label.op] += times

    frame = buckets(tk.read(path), by=["op"])[0].frame.filter(pl.col("basis") == "events")

    for op, p50, p95, mean in frame.select("op", "p50_ns", "p95_ns", "mean_ns").iter_rows():
        times = sorted(expected[op])
        for q, found in ((Decimal("0.5"), p50), (Decimal("0.95"), p95)):
            place = (len(times) - 1) * q
            low = int(place)
            high = min(low + 1, len(times) - 1)
            assert abs(times[low] + (times[high] - times[low]) * (place - low) - found) <= Decimal("0.5")
        assert abs(Decimal(sum(times)) / len(times) - mean) <= Decimal("0.5")


# ------------------------------------------------------------------------------- the published figures


def load_check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_generated", SAMPLES / "check_generated.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FIGURES = load_check()


def to_ns(ms: str) -> int:
    return int(Decimal(ms) * 10**6)


def top(tracekit: Command, *args: str | Path) -> dict[str, dict[str, Any]]:
    """Rows of the one table that ``tracekit top`` prints, by their first group."""
    done = tracekit("top", "--format", "json", *args)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["schema"] == 1
    assert [t["by"] for t in result["tables"]] == [result["tables"][0]["by"]]
    table = result["tables"][0]
    return {row[table["by"][0]]: row for row in table["rows"]}


def test_generated_logs_meet_the_published_figures() -> None:
    assert FIGURES.check(GENERATED) == []


def test_generated_logs_are_what_the_script_writes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SAMPLES / "generate.py", "--output", tmp_path], check=False, capture_output=True, text=True
    )

    assert (done.returncode, done.stderr) == (0, "")
    written = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file())
    kept_files = [p for p in GENERATED.rglob("*") if p.is_file() and not p.name.endswith(".golden.json")]
    assert written == sorted(p.relative_to(GENERATED) for p in kept_files)
    for name in written:
        new, kept = (folder.joinpath(name).read_bytes() for folder in (tmp_path, GENERATED))
        if name.suffix == ".gz":  # the packed bytes are zlib's affair
            new, kept = gzip.decompress(new), gzip.decompress(kept)
        assert new == kept, name


def test_figures_a_per_operation_and_worker(tracekit: Command) -> None:
    logs = GENERATED / "a_minimax_layer" / "*.log"

    ops, workers = top(tracekit, logs), top(tracekit, logs, "--by", "worker")

    for op, (total, calls) in FIGURES.OPS.items():
        assert (ops[op]["total_ns"], ops[op]["self_ns"], ops[op]["calls"]) == (to_ns(total), to_ns(total), calls)
    assert sum(r["total_ns"] for r in ops.values()) == to_ns("248.669")
    assert sum(r["total_ns"] for op, r in ops.items() if op not in FIGURES.OPS) == to_ns("11.255")
    assert sum(r["share"] for r in ops.values()) == pytest.approx(1)
    assert {w: r["total_ns"] for w, r in workers.items()} == {
        f"rpc-b70-{i}": to_ns(total) for i, total in enumerate(FIGURES.WORKERS["a_minimax_layer"])
    }


def test_figures_a_with_kqv_offloaded(tracekit: Command) -> None:
    workers = top(tracekit, GENERATED / "a_minimax_layer_kqv_offload", "--by", "worker")

    totals = FIGURES.WORKERS["a_minimax_layer_kqv_offload"]
    assert [workers[f"rpc-b70-{i}"]["total_ns"] for i in range(4)] == [to_ns(t) for t in totals]
    assert sum(r["total_ns"] for r in workers.values()) == to_ns("250.868")


def test_figures_b(tracekit: Command) -> None:
    rows = top(tracekit, GENERATED / "b_moe_kernel_waits.log")

    assert len(rows) == 2
    for kernel, (calls, total, mean, p50, p95, longest) in FIGURES.WAITS.items():
        row = rows[kernel]
        assert (row["calls"], row["total_ns"], row["max_ns"]) == (calls, to_ns(total), to_ns(longest))
        assert (row["mean_ns"], row["p50_ns"], row["p95_ns"]) == (to_ns(mean), to_ns(p50), to_ns(p95))


def test_figures_c1(tracekit: Command) -> None:
    rows = top(tracekit, GENERATED / "c1_call_sites.log", "--by", "name")

    for label, (calls, total, mean, longest) in FIGURES.CALL_SITES.items():
        row = rows[label]
        assert (row["calls"], row["total_ns"], row["max_ns"]) == (calls, to_ns(total), to_ns(longest))
        assert row["mean_ns"] == pytest.approx(to_ns(mean), abs=0.5)
        assert row["basis"] == "events"


def test_figures_c2(tracekit: Command) -> None:
    rows = top(tracekit, GENERATED / "c2_collectives_tp4.log.gz")
    per_rank = top(tracekit, GENERATED / "c2_collectives_tp4.log.gz", "--by", "rank")

    assert {op: r["calls"] for op, r in rows.items()} == {
        "all_reduce": 4 * 6 * (3 * 62 + 1),
        "llm_scaler_moe_u4": 4 * 4 * 62,
    }
    assert {rank: r["calls"] for rank, r in per_rank.items()} == dict.fromkeys(range(4), 5480 // 4)


def test_figures_c3(tracekit: Command) -> None:
    names = top(tracekit, GENERATED / "c3_eager_regions.log.gz", "--by", "name")
    ops = top(tracekit, GENERATED / "c3_eager_regions.log.gz")

    assert {names[label]["calls"] for label in FIGURES.REGIONS} == {62 * 18}
    assert names["all_reduce:(1, 2):torch.float32"]["calls"] == 62 * 16
    assert names["all_reduce:(512, 2):torch.float32"]["calls"] == 62 * 2
    assert names["all_reduce:(1, 3072):torch.float16"]["calls"] == 125 * 16
    assert {label: names[label]["p50_ns"] for label in FIGURES.MEDIANS} == {
        label: to_ns(median) for label, median in FIGURES.MEDIANS.items()
    }
    assert ops["all_reduce"]["p50_ns"] == to_ns("0.047")
    # Regions nest: the labels sum to more than the wall time, their self times to exactly that.
    forward = ops["runner.forward"]["total_ns"]
    assert sum(r["total_ns"] for r in ops.values()) > 2 * forward
    assert sum(r["self_ns"] for r in ops.values()) == forward
    wrapper, inside = ops["minimax.attn.delayed_residual_allreduce"], ops["all_reduce"]
    assert wrapper["self_ns"] < wrapper["total_ns"] / 5
    assert inside["self_ns"] == inside["total_ns"]


def test_figures_c4(tracekit: Command) -> None:
    done = tracekit("top", "--format", "json", "--by", "rank,name", GENERATED / "c4_skip_first.log")

    rows = json.loads(done.stdout)["tables"][0]["rows"]
    calls = {(r["rank"], r["name"]): r["calls"] for r in rows}
    assert {r["basis"] for r in rows} == {"summary"}
    for rank in range(4):
        assert {calls[rank, label] for label in FIGURES.REGIONS} == {62 * 66 - 8}
        assert calls[rank, "all_reduce:(1, 2):torch.float32"] == 62 * 64 - 8
        assert calls[rank, "all_reduce:(1, 3072):torch.float16"] == 125 * 64 - 8
