"""Cost tables: exact totals and percentiles, shares that add up, the basis of every row."""

from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings

import tracekit as tk
from tracekit.bucketing import Table, buckets
from tracekit.errors import UsageError
from tracekit.layering import layers
from tracekit.reading import read
from tracekit.table import flat, render


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


def ggml(rows: list[tuple[str, str, int]]) -> str:
    return "".join(f"[SYCL_OP_TIMING] dev=0 op={op} name={name} ne=1x1x1x1 us={us}\n" for op, name, us in rows)


def vllm(label: str, calls: list[int], ms: str = "1.000000", rank: str = "0") -> str:
    return "".join(f"[vllm-xpu-timing] rank={rank} label={label} count={c} last_ms={ms}\n" for c in calls)


def summary(label: str, calls: int, total: str, rank: str = "0") -> str:
    numbers = f"count={calls} total_ms={total} avg_ms=1.000000 max_ms=9.000000"
    return f"[vllm-xpu-timing-summary] rank={rank} label={label} {numbers}\n"


def tables_of(folder: Path, text: str, by: str = "op", **more: object) -> list[Table]:
    (folder / "w.log").write_text(text)
    return buckets(read(folder / "w.log"), [c for c in by.split(",") if c], **more)  # type: ignore[arg-type]


OPS = st.sampled_from(["MUL_MAT", "ROPE", "VIEW"])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(OPS, st.just("x-1"), st.one_of(st.integers(0, 9), st.integers(0, 10**7))), min_size=1, max_size=60
    )
)
def test_numbers_equal_numpys(folder: Path, rows: list[tuple[str, str, int]]) -> None:
    table = tables_of(folder, ggml(rows))[0]
    for row in table.frame.to_dicts():
        ns = np.array([us * 1000 for op, _, us in rows if op == row["op"]])
        assert (row["calls"], row["total_ns"], row["self_ns"], row["max_ns"]) == (len(ns), ns.sum(), ns.sum(), ns.max())
        assert abs(row["mean_ns"] - ns.mean()) <= 0.5
        assert abs(row["p50_ns"] - np.quantile(ns, 0.5)) <= 0.51
        assert abs(row["p95_ns"] - np.quantile(ns, 0.95)) <= 0.51
    cost = sum(us * 1000 for op, _, us in rows if op != "VIEW")
    assert table.cost_ns == cost
    shares = table.frame["share"].sum()
    assert abs(shares - (1 if cost else 0)) < 1e-9


def test_views_are_shown_and_are_no_cost(folder: Path) -> None:
    table = tables_of(folder, ggml([("VIEW", "x", 50), ("MUL_MAT", "x", 100)]))[0]
    assert dict(table.frame.select("op", "share").iter_rows()) == {"MUL_MAT": 1.0, "VIEW": None}


def test_unlike_clocks_stand_in_tables_of_their_own(folder: Path) -> None:
    moe = '[llm-scaler][moe-kernel] device=0 kernel="moe ws up" wait_ms=0.5\n'
    found = tables_of(folder, ggml([("MUL", "x", 1)]) + moe + vllm("a", [1]))
    assert [(t.family, t.clock, t.frame["total_ns"].to_list()) for t in found] == [
        ("ggml", "host-wait", [1000]),
        ("llm-scaler", "backlog", [500_000]),
        ("vllm-xpu", "host-sync-unknown", [1_000_000]),
    ]


def test_a_summary_is_never_added_to_the_events_that_it_sums(folder: Path) -> None:
    table = tables_of(folder, vllm("a", [1, 2, 3]) + summary("a", 3, "3.000000") + summary("b", 7, "14.000000"))[0]
    rows = {r["op"]: (r["basis"], r["calls"], r["total_ns"]) for r in table.frame.to_dicts()}
    assert rows == {"a": ("events", 3, 3_000_000), "b": ("summary", 7, 14_000_000)}


def test_events_with_gaps_give_way_to_their_summary(folder: Path) -> None:
    table = tables_of(folder, vllm("a", [1, 2, 5]) + summary("a", 5, "5.500000"))[0]
    assert table.frame.select("basis", "calls", "total_ns").rows() == [("summary", 5, 5_500_000)]


def test_samples_are_never_summed(folder: Path) -> None:
    table = tables_of(folder, vllm("a", [8, 16, 24], "0.500000") + vllm("b", [1, 2, 3], "0.250000"))[0]
    rows = {r["op"]: r for r in table.frame.to_dicts()}
    assert {k: rows["a"][k] for k in ("basis", "calls", "samples", "total_ns")} == {
        "basis": "sampled",
        "calls": 24,
        "samples": 3,
        "total_ns": 12_000_000,
    }
    assert rows["b"]["basis"] == "events"
    assert any("sampled" in note for note in table.notes)


def test_a_group_says_all_that_it_rests_on(folder: Path) -> None:
    text = vllm("m.attn.rope", [1, 2]) + summary("m.rotary_emb", 4, "2.000000")
    table = tables_of(folder, text, "category")[0]
    assert table.frame.select("category", "basis", "calls", "total_ns", "p50_ns").rows() == [
        ("rope", "events+summary", 6, 4_000_000, None)
    ]


def test_where_filters_and_patterns(folder: Path) -> None:
    text = ggml([("MUL", "x-1", 1), ("MUL_MAT", "x-2", 2), ("ROPE", "x-2", 4)])
    total = {
        ("op=MUL*",): 3000,
        ("op=MUL,ROPE",): 5000,
        ("op=*U*MA*",): 2000,
        ("op=MUL*", "layer=2"): 2000,
        ("worker=w",): 7000,
        ("name=x-[12]",): 7000,
    }
    for where, expected in total.items():
        assert sum(t.frame["total_ns"].sum() for t in tables_of(folder, text, where=where)) == expected, where
    assert tables_of(folder, text, where=("op=NONE",)) == []


@pytest.mark.parametrize(
    ("by", "more", "message"),
    [
        ("kernel", {}, "no such column: 'kernel'"),
        ("", {}, "nothing to group by"),
        ("op", {"sort": "speed"}, "cannot sort by 'speed'"),
        ("op", {"where": ["op"]}, "expected COLUMN=VALUE"),
        ("op", {"where": ["colour=red"]}, "no such column: 'colour'"),
    ],
)
def test_wrong_use_is_told_with_the_choices(folder: Path, by: str, more: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tables_of(folder, ggml([("MUL", "x", 1)]), by, **more)


def test_workers_stand_in_natural_order(tmp_path: Path) -> None:
    for n in (10, 2, 1):
        (tmp_path / f"rpc-{n}.log").write_text(ggml([("MUL", "x", n)]))
    table = buckets(read(tmp_path), by=["worker"], sort="group")[0]
    assert table.frame["worker"].to_list() == ["rpc-1", "rpc-2", "rpc-10"]
    assert table.workers == ("rpc-1", "rpc-2", "rpc-10")


def test_logs_of_one_name_in_two_folders_stay_two_streams(tmp_path: Path) -> None:
    for n in ("a", "b"):
        (tmp_path / n).mkdir()
        (tmp_path / n / "w.log").write_text(ggml([("MUL", "x", 1)]))
    table = buckets(read([tmp_path / "a", tmp_path / "b"]), by=["stream"])[0]
    assert table.frame.height == 2


def test_parquet_of_events_gives_the_same_table(samples: Path, tmp_path: Path) -> None:
    for name in ("vllm_eager_tp2_unbuffered.log", "llama_rpc_worker0.log", "vllm_bench_skip16_every8_rank0.log"):
        run = read(samples / name)
        run.events.collect().write_parquet(tmp_path / "e.parquet")
        # A frame of events has no summaries: compare what rests on events alone.
        direct = buckets(read(samples / name), by=["op", "worker"])[0].frame.filter(pl.col("basis") == "events")
        again = buckets(read(tmp_path / "e.parquet"), by=["op", "worker"])[0].frame.filter(pl.col("basis") == "events")
        assert direct.drop("share").equals(again.drop("share"))


def test_layers_add_up_and_the_odd_one_is_marked(tmp_path: Path) -> None:
    rows = [("MUL_MAT", f"Qcur-{n}", 1000 if n == 6 else 100 + n % 2) for n in range(12)]
    (tmp_path / "w.log").write_text(
        ggml([*rows, ("ROPE", "Qcur-3", 7), ("MUL_MAT", "result_output", 5), ("VIEW", "v-1", 9)])
    )
    table = layers(read(tmp_path / "w.log"))[0]
    frame = table.frame
    assert table.columns == ("matmul", "rope")
    assert frame["layer"].to_list() == [*range(12), None]
    assert frame["total_ns"].sum() == sum(us for _, _, us in rows) * 1000 + 12_000
    marked = frame.filter(pl.col("stands_out").is_not_null())
    assert marked["layer"].to_list() == [6]
    assert frame.filter(pl.col("layer").is_null())["matmul"].to_list() == [5000]


def test_all_formats_carry_the_same_rows(samples: Path) -> None:
    tables = buckets(read(samples / "llama_rpc_worker0.log"), by=["op"])
    rows = flat(tables, None)
    assert render(tables, {}, "csv", None).count("\n") == rows.height + 1  # type: ignore[arg-type]
    jsonl = str(render(tables, {}, "jsonl", 3))
    assert jsonl.count("\n") == 3
    assert pl.read_ndjson(jsonl.encode())["total_ns"].to_list() == rows["total_ns"].head(3).to_list()
    packed = render(tables, {}, "parquet", None)
    assert isinstance(packed, bytes)
    assert pl.read_parquet(packed).equals(rows)


def test_time_between_operations_is_told_where_starts_are_printed(samples: Path) -> None:
    logs = [samples / f"ggml_shim_rpc_worker{n}.log" for n in (0, 1)]
    run = tk.read(logs)
    (table,) = tk.buckets(run, by=["op"])
    steps: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for worker, step, start, dur in (
        run.events.filter(pl.col("step").is_not_null())
        .select("worker", "step", "start_ns", "dur_ns")
        .collect()
        .iter_rows()
    ):
        steps.setdefault((worker, step), []).append((start, dur))
    wanted = sum(
        max(0, max(s + d for s, d in rows) - min(s for s, _ in rows) - sum(d for _, d in rows))
        for rows in steps.values()
    )
    assert table.unaccounted_ns == wanted > 0
    assert any(note.startswith("unaccounted: ") for note in table.notes)
    assert tk.buckets(run, by=["op"], where=["op=MUL_MAT"])[0].unaccounted_ns is None
    assert tk.buckets(tk.read(samples / "llama_rpc_worker0.log"), by=["op"])[0].unaccounted_ns is None


@pytest.mark.parametrize(
    "log", ["vllm_step_qwen36_tp4_eager_moe_20260611d.rank0.log", "vllm_bench_skip16_every8_rank0.log"]
)
@pytest.mark.parametrize("by", ["category", "op"])
def test_layers_lose_no_time_whose_owner_is_not_told(samples: Path, log: str, by: str) -> None:
    run = read(samples / log)
    (top,) = buckets(run, by=["op"])
    (found,) = layers(run, by=by)
    assert found.untold_ns >= 0
    assert int(found.frame["total_ns"].sum()) + found.untold_ns == top.cost_ns


def test_many_calls_of_no_time_and_logs_of_views_alone(folder: Path) -> None:
    log = folder / "zeros.log"
    log.write_text(ggml([("ADD", "a-0", 0)] * 15 + [("MUL_MAT", "b-0", 100)]))
    (table,) = buckets(read(log), by=["op"])
    assert table.frame.filter(pl.col("op") == "ADD")["total_ns"].to_list() == [0]
    log.write_text(ggml([("VIEW", "a-0", 0)] * 3))
    assert layers(read(log)) == []
