"""Benchmarks of the engines, and all-reduces timed alone, become frames."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracekit.bench import BENCH, COLLECTIVES, decode_tok_s, read_bench, read_collectives
from tracekit.errors import TracekitError, UsageError

LATENCY = {
    "avg_latency": 1.5,
    "latencies": [1.4, 1.5, 1.6],
    "percentiles": {"10": 1.42, "25": 1.45, "50": 1.5, "75": 1.55, "90": 1.58, "99": 1.598},
}
THROUGHPUT = {
    "elapsed_time": 2.0,
    "num_requests": 8,
    "total_num_tokens": 4608,
    "requests_per_second": 4.0,
    "tokens_per_second": 2304.0,
}
SERVE = {
    "model_id": "models/qwen",
    "completed": 4,
    "output_throughput": 37.5,
    "total_token_throughput": 75.0,
    "mean_ttft_ms": 20.5,
    "median_ttft_ms": 20.0,
    "std_ttft_ms": 0.5,
    "p99_ttft_ms": 21.0,
    "ttfts": [0.02, 0.021],
    "mean_itl_ms": 26.9,
    "itls": [[0.0269], [0.0270]],
}
#: The published probe: an all-reduce of so many bytes took so many ms on four cards.
PROBE = {
    "label": "standalone all-reduce",
    "results": [
        {"label": "minimax_hidden_fp16", "bytes": 6144, "avgMs": 0.015159},
        {"label": "small_64kb_fp16", "bytes": 65536, "avgMs": 0.014835},
    ],
}


def written(folder: Path, content: object) -> Path:
    path = folder / "b.json"
    path.write_text(json.dumps(content))
    return path


def test_llama_bench(samples: Path) -> None:
    found = read_bench(samples / "bench_rpc.json")
    assert dict(found.schema) == BENCH
    decode = found.row(1, named=True)
    assert (decode["n_prompt"], decode["n_gen"], decode["tok_s"]) == (0, 16, 27.454699)
    assert decode["samples_ns"] == [580374316, 585202072]
    assert (decode["mean_ns"], decode["stddev_ns"]) == (582788194, 3413739)


@pytest.mark.parametrize("name", ["bench_minimax", "bench_minimax_kqv_offload"])
def test_repeats_have_their_deviation(samples: Path, name: str) -> None:
    row = read_bench(samples / "generated" / f"{name}.jsonl").row(0, named=True)
    assert len(row["samples_tok_s"]) == 3
    assert row["tok_s"] == pytest.approx(sum(row["samples_tok_s"]) / 3, abs=1e-4)
    assert 0 < row["stddev_tok_s"] < 0.5


def test_vllm_throughput_counts_prompt_and_output(tmp_path: Path) -> None:
    row = read_bench(written(tmp_path, THROUGHPUT)).row(0, named=True)
    assert (row["what"], row["tok_s"], row["mean_ns"]) == ("total", 2304.0, 2_000_000_000)
    with pytest.raises(UsageError, match="tells no decode throughput"):
        decode_tok_s(tmp_path / "b.json")


def test_vllm_latency_is_of_a_batch(tmp_path: Path) -> None:
    row = read_bench(written(tmp_path, LATENCY)).row(0, named=True)
    assert (row["what"], row["tok_s"], row["mean_ns"]) == ("batch", None, 1_500_000_000)
    assert (row["stddev_ns"], row["p50_ns"], row["p99_ns"]) == (100_000_000, 1_500_000_000, 1_598_000_000)
    assert row["samples_ns"] == [1_400_000_000, 1_500_000_000, 1_600_000_000]


def test_vllm_serve_tells_throughput_and_latencies(tmp_path: Path) -> None:
    found = read_bench(written(tmp_path, SERVE))
    assert found["what"].to_list() == ["decode", "total", "ttft", "itl"]
    assert found["mean_ns"].to_list() == [None, None, 20_500_000, 26_900_000]
    assert found["samples_ns"].to_list()[2] == [20_000_000, 21_000_000]
    assert decode_tok_s(tmp_path / "b.json") == 37.5


@pytest.mark.parametrize("form", ["object", "array", "lines", "snake"])
def test_all_reduces(tmp_path: Path, form: str) -> None:
    path = written(tmp_path, PROBE if form == "object" else PROBE["results"])
    if form == "lines":
        path.write_text("\n".join(map(json.dumps, PROBE["results"])))
    if form == "snake":
        path.write_text(path.read_text().replace("avgMs", "avg_ms"))
    found = read_collectives(path)
    assert dict(found.schema) == COLLECTIVES
    assert found.rows() == [("minimax_hidden_fp16", 6144, 15159), ("small_64kb_fp16", 65536, 14835)]


@pytest.mark.parametrize(
    "record",
    [
        {"avg_ts": float("nan"), "n_gen": 1},
        {"avg_ts": True, "n_gen": 1},
        {"avg_ts": 1e300, "n_gen": 1},
        {"avg_ts": 3.0, "n_gen": 1, "samples_ts": "3"},
        {"avg_ts": 3.0, "n_gen": {}},
        {"avg_latency": 1.5, "latencies": [1.0, "x"]},
        {"avg_latency": 1e12},
    ],
)
def test_numbers_that_are_none_are_refused(tmp_path: Path, record: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="holds no number"):
        read_bench(written(tmp_path, record))


def test_what_holds_no_benchmark_is_refused(tmp_path: Path) -> None:
    for content in ([], {}, [1, "x", None], {"label": "x", "bytes": 4}):
        with pytest.raises(UsageError, match="holds no"):
            read_bench(written(tmp_path, content))
        with pytest.raises(UsageError, match="holds no"):
            read_collectives(tmp_path / "b.json")
    (tmp_path / "b.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(UsageError, match="no UTF-8"):
        read_bench(tmp_path / "b.json")


KEYS = [*THROUGHPUT, *LATENCY, *SERVE, "avg_ts", "n_gen", "n_prompt", "samples_ts", "bytes", "avgMs", "results"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=8))
def test_any_json_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, record: dict[str, Any]) -> None:
    path = written(tmp_path_factory.getbasetemp(), record)
    for reader, schema in ((read_bench, BENCH), (read_collectives, COLLECTIVES)):
        try:
            found = reader(path)
        except TracekitError:
            continue
        assert dict(found.schema) == schema
        assert found.height
