"""Passes that can only be counted: vLLM's labels by forwards, kernel pairs by layers, a benchmark's warm-up."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tracekit.checks import skip_first
from tracekit.passes.moe import layers_of, moe_passes
from tracekit.passes.vllm import uneven
from tracekit.passes.warmup import bench_warm_up
from tracekit.reading import read

SAMPLES = Path(__file__).parent.parent / "samples"
UP, DOWN = "moe ws up routed cutlass int4", "moe ws down cutlass int4"


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("vllm_eager_tp1.log", ["gpu_model_runner.preprocess: 17 against 16"]),
        ("vllm_eager_tp2.log", ["gpu_model_runner.preprocess: 17 against 16"]),
        ("vllm_summary_only.log", ["gpu_model_runner.preprocess: 17 against 16"]),
        ("vllm_compiled_tp1.log", ["gpu_model_runner.preprocess: 17 against 16", "attn.impl_forward: 68 against 64"]),
        # One forward is left behind SKIP_FIRST: one more is no sign of anything.
        ("vllm_bench_skip16_every8_rank0.log", []),
    ],
)
def test_labels_that_ran_once_more_than_the_forward(log: str, told: list[str]) -> None:
    sums = read(SAMPLES / log).summaries.collect()
    labels = sums.select(pl.col("worker").alias("process"), "run", "name", pl.col("calls").alias("call"), "line")
    messages = [f.message for f in uneven(labels)]
    assert len(messages) == bool(told)
    assert all(part in messages[0] for part in told)


def test_labels_of_one_shape_and_lost_calls_are_not_one_pass_more() -> None:
    labels = pl.DataFrame(
        {
            "process": ["0"] * 4,
            "run": [0] * 4,
            "name": ["gpu_model_runner.model_forward", "all_reduce:(1, 256):torch.bfloat16", "m.layer.total", "x:M1"],
            "call": [16, 9 * 17, 63, 17],
            "line": [1, 2, 3, 4],
        }
    )
    assert list(uneven(labels)) == []


def test_two_prompts_are_no_skipped_calls() -> None:
    """Two of sixteen passes are of a prompt, so its collectives come eighteen times: 1 + 2 x 4 layers each."""
    calls = {"gpu_model_runner.model_forward": 16, "m.layer.total": 64, "m.embedding": 16, "short": 18, "long": 126}
    labels = pl.DataFrame(
        {
            "name": list(calls),
            "calls": list(calls.values()),
            "forward": [name.endswith("forward") for name in calls],
            "shaped": [name in ("short", "long") for name in calls],
        }
    )
    assert list(skip_first(labels)) == []


def kernels(devices: int, layers: int, steps: int, *, extra: bool = False) -> pl.DataFrame:
    rng = np.random.default_rng(3)
    names = (["moe topk softmax int4"] if extra else []) + [UP, DOWN]
    rows = [(d, n) for _ in range(steps * layers) for n in names for d in rng.permutation(devices).tolist()]
    frame = pl.DataFrame(rows, schema={"device": pl.Int16, "name": pl.Categorical()}, orient="row")
    return frame.with_row_index("line", 1)


@pytest.mark.parametrize("extra", [False, True])
def test_pairs_of_kernels_are_counted_per_device(extra: bool) -> None:
    rows, told = moe_passes(kernels(4, 62, 4, extra=extra), 62)
    assert told == []
    size = 3 if extra else 2
    for _, own in rows.group_by("device", maintain_order=True):
        assert own["step"].to_list() == np.repeat(np.arange(4), 62 * size).tolist()
        assert own["layer"].to_list() == np.tile(np.repeat(np.arange(62), size), 4).tolist()


def test_the_published_log_has_four_steps_of_62_layers() -> None:
    events = read(SAMPLES / "generated" / "b_moe_kernel_waits.log").events.collect()
    rows, told = moe_passes(events.select("device", "name", "line"), layers_of(248, 4))
    assert told == []
    assert rows.group_by("device", "step").len()["len"].to_list() == [124] * 16


def test_without_the_number_of_layers_there_are_no_steps() -> None:
    rows, told = moe_passes(kernels(2, 62, 4), None)
    assert rows["step"].null_count() == rows.height
    assert told == []
    assert layers_of(248, 0) is None
    assert layers_of(248, 5) is None
    assert layers_of(4, 4) is None


def test_lost_kernels_leave_no_step_and_are_told() -> None:
    whole = kernels(1, 62, 4)
    for lost, code in (([10], "unpaired-kernels"), ([10, 11], "counts-do-not-fit"), ([495], "cut-step")):
        rows, told = moe_passes(whole.filter(~pl.col("line").is_in([n + 1 for n in lost])), 62)
        assert [f.code for f in told] == [code]
        assert rows["step"].null_count() == rows.height


def test_torn_text_whose_device_is_not_known_leaves_no_step() -> None:
    rows = kernels(2, 62, 4).with_columns(pl.when(pl.col("line") == 9).then(None).otherwise("device").alias("device"))
    found, told = moe_passes(rows, 62)
    assert found["step"].null_count() == rows.height
    assert told == []


def test_the_warm_up_of_llama_bench_is_seen_by_its_batches() -> None:
    count, why = bench_warm_up([32] * 3 + [1] * 33) or (0, "")
    assert count == 1
    assert "llama-bench -p 32 -n 16 -r 2" in why
    assert "step 0 and step 3" in why


@pytest.mark.parametrize(
    "widths",
    [[], [1] * 40, [16] + [1] * 16, [32] * 3 + [1] * 32, [32] * 3, [512, 512, 100, 1, 1], [32] * 3 + [1]],
)
def test_other_batches_are_not_llama_benchs(widths: list[int]) -> None:
    assert bench_warm_up(widths) is None


def test_kernel_waits_are_counted_into_steps_and_layers_when_the_layers_are_told() -> None:
    log = SAMPLES / "generated" / "b_moe_kernel_waits.log"
    untold = read(log)
    assert untold.events.collect()["step"].null_count() == 1984
    assert "layers-unknown" in untold.findings.collect()["code"].to_list()
    told = read(log, moe_layers=62)
    events = told.events.collect()
    assert told.findings.collect().is_empty()
    per_layer = events.group_by("worker", "step", "layer").agg(pl.col("name").cast(pl.String).sort())
    assert per_layer.height == 4 * 4 * 62
    assert per_layer["name"].to_list() == [sorted([UP, DOWN])] * per_layer.height
    assert events["layer_inferred"].all()
    wrong = read(log, moe_layers=61)
    assert wrong.events.collect()["step"].null_count() == 1984
    assert set(wrong.findings.collect()["code"]) == {"counts-do-not-fit"}


def test_the_layers_follow_from_forwards_printed_beside(tmp_path: Path) -> None:
    pair = f'[llm-scaler][moe-kernel] device=0 kernel="{UP}" wait_ms=0.5\n'
    pair += f'[llm-scaler][moe-kernel] device=0 kernel="{DOWN}" wait_ms=0.25\n'
    forward = "[vllm-xpu-timing] rank=0 label=gpu_model_runner.model_forward count={} last_ms=9.000000\n"
    log = tmp_path / "rank0.log"
    log.write_text("".join(pair * 3 + forward.format(n) for n in (1, 2, 3, 4)))
    events = read(log).events.filter(pl.col("dialect").cast(pl.String) == "llm-scaler").collect()
    assert events["step"].to_list() == [s for s in range(4) for _ in range(6)]
    assert events["layer"].to_list() == [0, 0, 1, 1, 2, 2] * 4
