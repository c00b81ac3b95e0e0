"""Printed steps, benchmarks and budgets."""

import json
from pathlib import Path

import polars as pl
import pytest

from tracekit.bench import decode_tok_s, read_bench
from tracekit.budget import budget, sentences
from tracekit.errors import TracekitError, UsageError
from tracekit.frame import STEPS, conform
from tracekit.parsers.vllm_step import batch
from tracekit.reading import Selection, read
from tracekit.stepping import steps
from tracekit.topology import topology


def test_the_step_lines_of_vllm_keep_their_batch_and_do_not_add_nested_regions(samples: Path) -> None:
    run = read(samples / "vllm_step_qwen36_tp4_eager_moe_20260611d.rank0.log")
    found = steps(run)
    assert found["step"].to_list() == [17, 18, 19, 20, 71, 72]
    assert set(found["phase"].cast(pl.String)) == {"decode"}
    assert set(found["tokens"]) == {1}
    labels = run.summaries.filter(pl.col("step") == 17).collect()
    assert round(labels["total_ns"].sum() / 1e6, 3) == 191.262
    forward = labels.filter(pl.col("name") == "gpu_model_runner.model_forward")["total_ns"].item()
    others = ("gpu_model_runner.compute_logits", "gpu_model_runner.sampler", "gpu_model_runner.bookkeeping_sync",
              "gpu_model_runner.select_sample_hidden")  # fmt: skip
    beside = labels.filter(pl.col("name").cast(pl.String).is_in(others))["total_ns"].sum()
    assert found["dur_ns"][0] == forward + beside
    assert json.loads(found["metadata"][0])["cudagraph_mode"] == "NONE"


def test_a_torn_step_line_is_a_reject(tmp_path: Path, samples: Path) -> None:
    text = (samples / "vllm_step_qwen36_tp4_piecewise_20260611c.rank0.log").read_text().splitlines()
    (tmp_path / "w.log").write_text(f"{text[0]}\n{text[1][:500]}\n{text[2]}\n")
    run = read(tmp_path / "w.log")
    assert steps(run)["step"].to_list() == [81, 83]
    assert run.rejects.collect()["line"].to_list() == [2]


def test_engine_steps_keep_accounted_and_unaccounted_time(tmp_path: Path) -> None:
    body = {
        "label": "step", "status": "ok", "step": 3, "total_ms": 30.5, "accounted_region_ms": 29.0,
        "unaccounted_ms": 1.5,
        "regions": [{"label": "schedule", "elapsed_ms": 1.0, "start_offset_ms": 0.0},
                    {"label": "execute", "elapsed_ms": 28.0, "start_offset_ms": 1.0}],
        "metadata": {"num_reqs": 2, "total_num_scheduled_tokens": 2},
    }  # fmt: skip
    (tmp_path / "w.log").write_text(f"[vllm-xpu-engine-step] {json.dumps(body)}\n")
    row = steps(read(tmp_path / "w.log")).row(0, named=True)
    assert (row["step"], row["dur_ns"], row["unaccounted_ns"]) == (3, 30_500_000, 1_500_000)
    assert (row["phase"], row["tokens"]) == ("decode", 2)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"num_reqs": 1, "num_tokens_unpadded": 1}, ("decode", 1)),
        ({"num_reqs": 1, "num_tokens_unpadded": 512}, ("prefill", 512)),
        ({"num_reqs": 3, "num_tokens_unpadded": 40}, ("mixed", 40)),
        ({"num_reqs": 1, "num_tokens_unpadded": 4, "use_spec_decode": True}, (None, 4)),
        ({"num_reqs": 2, "num_tokens_unpadded": 9, "decode_req_count": 2, "prefill_req_count": 0}, ("decode", 9)),
        ({"num_reqs": 2, "num_tokens_unpadded": 9, "decode_req_count": 1, "prefill_req_count": 1}, ("mixed", 9)),
        ({}, (None, None)),
    ],
)
def test_phase_and_tokens_of_a_batch(metadata: dict[str, object], expected: tuple[str | None, int | None]) -> None:
    assert batch(metadata) == expected


def made(*rows: tuple[str, int, dict[str, int]]) -> pl.DataFrame:
    """Make steps of (worker, step, ns by category)."""
    frame = pl.DataFrame(
        {
            "worker": [w for w, _, _ in rows],
            "step": [n for _, n, _ in rows],
            "dur_ns": [sum(c.values()) for _, _, c in rows],
            "categories": [[{"category": k, "self_ns": v} for k, v in c.items()] for _, _, c in rows],
        }
    )
    return conform(frame, STEPS)


TWO = made(
    ("a", 0, {"matmul": 60_000_000, "norm": 2_000_000}),
    ("b", 0, {"matmul": 70_000_000}),
    ("a", 1, {"matmul": 62_000_000}),
    ("b", 1, {"matmul": 70_000_000}),
)


def test_a_pipelines_workers_add_and_what_is_left_is_a_row() -> None:
    found = budget(TWO, "ggml", "pipeline", 7.0)
    assert found.per_step_ns == 132_000_000
    assert found.implied_ns == round(1e9 / 7)
    assert found.outside_ns == found.implied_ns - found.per_step_ns
    assert found.frame["per_step_ns"].sum() == found.per_step_ns


def test_parallel_workers_do_not_add() -> None:
    found = budget(TWO, "vllm-xpu", "parallel", None)
    assert found.per_step_ns == 70_000_000
    assert found.frame["worker"].unique().to_list() == ["b"]
    assert found.outside_ns is None


def test_an_inflated_run_has_no_negative_remainder() -> None:
    found = budget(TWO, "ggml", "pipeline", 16.4)
    assert found.outside_ns is None
    assert found.inflation is not None
    assert "timed 132.0 ms, clean 61.0 ms: 2.2 times" in sentences(found)[1]


def test_no_steps_no_budget() -> None:
    with pytest.raises(TracekitError, match="no step was found"):
        budget(TWO.clear(), "ggml", "pipeline", None)


def test_a_topology_is_known_or_refused() -> None:
    assert topology("ggml") == "pipeline"
    assert topology("vllm-xpu") == "parallel"
    assert topology("ggml", "parallel") == "parallel"
    with pytest.raises(UsageError, match="unknown topology"):
        topology("ggml", "ring")


def test_llama_bench_json_and_jsonl(samples: Path, tmp_path: Path) -> None:
    found = read_bench(samples / "bench_rpc.json")
    assert found["what"].to_list() == ["prefill", "decode"]
    lines = tmp_path / "bench.jsonl"
    lines.write_text("".join(json.dumps(r) + "\n" for r in json.loads((samples / "bench_rpc.json").read_text())))
    assert read_bench(lines).equals(found)
    assert decode_tok_s(lines) == found["tok_s"][1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"n_gen": 16, "avg_ts": 3', "cut off"),
        ("{}", "holds no result"),
        ('{"tokens_per_second": 123.0}', "tells no decode throughput"),
    ],
)
def test_other_files_are_refused_with_the_reason(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "b.json").write_text(text)
    with pytest.raises((UsageError, TracekitError), match=message):
        decode_tok_s(tmp_path / "b.json")


def test_which_steps_are_meant() -> None:
    assert Selection.parse(None, None, 0) is None
    assert Selection.parse("decode", "10:20", 3) == Selection("decode", 10, 20)
    assert Selection.parse(None, ":20", 3) == Selection(None, 3, 20)
    for wrong in ("10", "a:b", "-1:3"):
        with pytest.raises(UsageError, match="expected A:B"):
            Selection.parse(None, wrong, 0)
