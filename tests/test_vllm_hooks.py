"""The hooks of the vLLM instrument, on a stand-in for what they wrap: `fake_vllm.py`, run as a program."""

import contextlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from tracekit.instrument import hooks
from tracekit.instrument.settings import Settings
from tracekit.instrument.timing import Recorder
from tracekit.reading import Run, read
from tracekit.stepping import steps

ROOT = Path(__file__).parent.parent
LAYERS = 2
EVERY = {"PRINT_EVERY": "1", "STEP_SUMMARY": "1"}


class Ran:
    """What a run of the stand-in printed."""

    def __init__(self, folder: Path, timing: dict[str, str] | None, **options: str) -> None:
        names = {f"VLLM_XPU_DECODE_TIMING_{k}" if k != k.lower() else k: v for k, v in (timing or {}).items()}
        switch = {} if timing is None else {"VLLM_XPU_DECODE_TIMING": "1"}
        show = {"FAKE_SHOW_WAITS": "1"} if "SYNC" in (timing or {}) else {}
        done = subprocess.run(
            [sys.executable, "tests/fake_vllm.py", *(f"{k}={v}" for k, v in options.items())],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **names, **switch, **show},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        self.out, self.err = done.stdout, done.stderr
        self.log = folder / "vllm.log"
        self.log.write_text(self.out)

    def read(self) -> Run:
        """Read the log, of which every line must be understood."""
        run = read(self.log)
        assert run.rejects.collect().is_empty()
        assert run.findings.collect().is_empty(), run.findings.collect()
        return run

    def counts(self, rank: int = 0) -> Counter[str]:
        names = self.read().events.filter(pl.col("rank") == rank).select(pl.col("name").cast(pl.String)).collect()
        return Counter(names["name"].to_list())


ATTENTION = ("total", "qkv_proj", "rope", "core", "kv_cache_update", "impl_forward", "o_proj")
MOE = ("total", "router", "select_experts", "fused_experts", "experts_total")
RUNNER = ("preprocess", "model_forward", "postprocess", "compute_logits", "sample")


def expected(passes: int, *parts: str) -> Counter[str]:
    """Return how often each label must be printed: parts once a layer, what surrounds them once a pass."""
    layer = ("layer.total", "input_layernorm", "post_attention_layernorm", *(f"attn.{p}" for p in ATTENTION), *parts)
    once = (*(f"fake.{p}" for p in ("embedding", "final_norm")), *(f"gpu_model_runner.{p}" for p in RUNNER))
    return Counter({f"fake.{p}": passes * LAYERS for p in layer}) + Counter(dict.fromkeys(once, passes))


NORMS = ("attn.q_norm", "attn.k_norm")


def test_every_part_of_every_layer_in_every_pass(tmp_path: Path) -> None:
    """The profile run is no pass, and a scheduler's step without tokens is none."""
    ran = Ran(tmp_path, EVERY, model="moe", tokens="4")
    assert ran.counts() == expected(4, *NORMS, *(f"moe.{p}" for p in MOE))


def test_a_dense_model(tmp_path: Path) -> None:
    ran = Ran(tmp_path, EVERY, model="dense")
    assert ran.counts() == expected(3, *NORMS, "mlp.total", "mlp.gate_up_proj", "mlp.down_proj")


def test_a_norm_of_q_and_k_together_is_one_region(tmp_path: Path) -> None:
    """One of its methods calls the other: that is not a second call."""
    ran = Ran(tmp_path, EVERY, model="joint")
    assert ran.counts() == expected(3, "attn.qk_norm", "mlp.total", "mlp.gate_up_proj", "mlp.down_proj")


def test_collectives_by_shape_on_every_rank(tmp_path: Path) -> None:
    """One for the embedding, one behind attention and one behind the experts of every layer."""
    ran = Ran(tmp_path, EVERY, ranks="2", tokens="4")
    a_pass = 1 + 2 * LAYERS
    for rank in (0, 1):
        counts = ran.counts(rank)
        assert counts.pop("all_reduce:(32, 256):torch.bfloat16") == a_pass
        assert counts.pop("all_reduce:(1, 256):torch.bfloat16") == 3 * a_pass
        assert counts == expected(4, *NORMS, *(f"moe.{p}" for p in MOE))
    assert "this vLLM has no GroupCoordinator._reduce_scatter_out_place: reduce_scatter is not timed" in ran.err


def test_the_regions_nest_as_they_were_called(tmp_path: Path) -> None:
    events = Ran(tmp_path, EVERY, ranks="2").read().events.filter(pl.col("rank") == 0).collect()
    depths = dict(events.group_by(pl.col("name").cast(pl.String)).agg(pl.col("depth").unique()).iter_rows())
    inside = {
        0: ["gpu_model_runner.model_forward"],
        1: ["fake.layer.total", "fake.embedding", "fake.final_norm", "gpu_model_runner.compute_logits"],
        2: ["fake.attn.total", "fake.moe.total", "fake.input_layernorm", "fake.post_attention_layernorm"],
        3: ["fake.attn.core", "fake.attn.o_proj", "fake.attn.rope", "fake.moe.router", "fake.moe.experts_total"],
        4: ["fake.attn.kv_cache_update", "fake.attn.impl_forward", "fake.moe.fused_experts"],
    }
    assert {name: depths[name] for names in inside.values() for name in names} == {
        name: [depth] for depth, names in inside.items() for name in names
    }
    outermost = events.filter(pl.col("depth") == 0)["dur_ns"].sum()
    assert events["self_ns"].sum() == outermost


def test_the_step_lines_tell_what_the_calls_add_up_to(tmp_path: Path) -> None:
    """A pass that stood as calls and as a step line with another sum would be listed twice."""
    found = steps(Ran(tmp_path, EVERY, tokens="4").read())
    assert found.select("step", "phase", "tokens", "status").rows() == [
        (1, "prefill", 32, "ok"),
        *((n, "decode", 1, "ok") for n in (2, 3, 4)),
    ]


def test_an_exception_of_the_model_reaches_the_engine(tmp_path: Path) -> None:
    """The pass ends as an error; what the exception left is no call; the next pass is a pass like any other."""
    ran = Ran(tmp_path, EVERY, fail="2", tokens="4")
    assert ran.err.count("came through: in the body of a layer") == 1
    run = read(ran.log)
    assert run.printed_steps["status"].to_list() == ["ok", "error", "ok", "ok"]
    counts = Counter(run.events.filter(pl.col("rank") == 0).collect()["name"].cast(pl.String).to_list())
    assert counts["gpu_model_runner.model_forward"] == 3
    assert counts["fake.layer.total"] == 3 * LAYERS
    assert counts["fake.embedding"] == 4


@pytest.mark.parametrize("model", ["moe", "opaque"])
def test_compiled_the_hidden_labels_are_named(tmp_path: Path, model: str) -> None:
    """What torch.compile traces is left alone; the runner's phases and the opaque kernels of attention are seen."""
    ran = Ran(tmp_path, EVERY, compiled="1", ranks="2", model=model)
    counts = ran.counts()
    kernels = ["attn.impl_forward", "attn.kv_cache_update"]
    if model == "opaque":
        kernels += ["moe.select_experts", "moe.fused_experts"]
    seen = {f"fake.{kernel}": 3 * LAYERS for kernel in kernels}
    runner = {f"gpu_model_runner.{p}": 3 for p in RUNNER}
    reduces = {"all_reduce:(32, 256):torch.bfloat16": 5, "all_reduce:(1, 256):torch.bfloat16": 10}
    assert counts == seen | runner | reduces  # the stand-in compiles nothing, so its collectives are still called
    [told] = [line for line in ran.err.splitlines() if "rank=0 torch.compile hides these" in line]
    hidden = set(told.partition("fast: ")[2].split(", "))
    expect = set(expected(1, *NORMS, *(f"moe.{p}" for p in MOE))) - set(counts) | {"all_reduce"}
    assert hidden == expect
    assert "device graphs are on (PIECEWISE)" in ran.err
    assert "--enforce-eager" in ran.err


def test_the_runner_that_marks_no_scopes(tmp_path: Path) -> None:
    counts = Ran(tmp_path, EVERY, runner="second").counts()
    phases = {name: n for name, n in counts.items() if name.startswith("gpu_model_runner.")}
    assert phases == {f"gpu_model_runner.{p}": 3 for p in RUNNER if p != "postprocess"}


@pytest.mark.parametrize("end", ["shutdown", "exit"])
def test_every_process_prints_its_totals_once(tmp_path: Path, end: str) -> None:
    """Workers leave as children of multiprocessing do, past atexit."""
    ran = Ran(tmp_path, {}, ranks="2", end=end)
    sums = ran.read().summaries.collect()
    forward = sums.filter(pl.col("name") == "gpu_model_runner.model_forward")
    assert sorted(forward.select("rank", "calls").rows()) == [(0, 3), (1, 3)]
    assert ran.out.count("] begin\n") == ran.out.count("] end\n") == 3
    [engine] = sums.filter(pl.col("rank").is_null())["name"].to_list()
    assert engine == "llm_engine.get_output"


def test_the_device_is_waited_for_before_and_after_each_region(tmp_path: Path) -> None:
    ran = Ran(tmp_path, {**EVERY, "SYNC": "1"})
    assert ran.err.count("waited\n") == 2 * ran.counts().total()
    assert "waiting for the device around each region" in ran.err


def test_only_the_labels_that_are_asked_for(tmp_path: Path) -> None:
    counts = Ran(tmp_path, {"PRINT_EVERY": "1", "LABEL_REGEX": r"o_proj$|^all_reduce"}, ranks="2").counts()
    assert set(counts) == {"fake.attn.o_proj", *(f"all_reduce:({n}, 256):torch.bfloat16" for n in (1, 32))}


def test_only_the_rank_that_is_asked_for(tmp_path: Path) -> None:
    ran = Ran(tmp_path, {**EVERY, "RANK": "1"}, ranks="2")
    assert set(ran.read().events.select("rank").collect()["rank"]) == {1}


def test_a_model_without_decoder_layers_is_told(tmp_path: Path) -> None:
    ran = Ran(tmp_path, EVERY, model="none")
    assert "no decoder layers were recognised" in ran.err
    assert ran.counts()["gpu_model_runner.model_forward"] == 3


def test_without_the_variable_nothing_is_printed(tmp_path: Path) -> None:
    ran = Ran(tmp_path, None, ranks="2")
    assert (ran.out, ran.err) == ("", "")


def test_a_vllm_that_times_itself_is_left_alone(tmp_path: Path) -> None:
    """Both listen to one variable: every call would be printed twice."""
    patched = tmp_path / "vllm" / "v1" / "timing.py"
    patched.parent.mkdir(parents=True)
    patched.write_text('ON = os.environ.get("VLLM_XPU_DECODE_TIMING") == "1"\n')
    ran = Ran(tmp_path, EVERY, own=str(tmp_path / "vllm"))
    assert ran.out == ""
    [told] = ran.err.splitlines()
    assert f"{patched} listens to VLLM_XPU_DECODE_TIMING too" in told


def test_the_plugin_is_registered_with_vllm() -> None:
    import tomllib

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    module, _, function = declared["vllm.general_plugins"]["tracekit"].partition(":")
    assert callable(getattr(__import__(module, fromlist=[function]), function))


# -- pieces


def test_a_profiler_of_the_users_own_keeps_its_scopes() -> None:
    seen: list[str] = []

    @contextlib.contextmanager
    def profiler(name: str) -> Any:
        seen.append(f"in {name}")
        yield
        seen.append(f"out {name}")

    lines: list[str] = []
    recorder = Recorder(Settings(print_every=1), write=lambda _, text: lines.append(text))
    utils = SimpleNamespace(_PROFILER_FUNC=profiler)
    hooks.hook_scopes(recorder, utils)
    with utils._PROFILER_FUNC("schedule: allocate_slots"):
        pass
    assert seen == ["in schedule: allocate_slots", "out schedule: allocate_slots"]
    assert " label=schedule.allocate_slots count=1 " in lines[0]


def test_ranks_of_several_engines_are_apart() -> None:
    def worker(engine: int | None, rank: int) -> SimpleNamespace:
        config = SimpleNamespace(data_parallel_index=engine, data_parallel_rank=engine, world_size=2)
        return SimpleNamespace(parallel_config=config, rank=rank)

    asked = [(None, 0), (None, 1), (1, 0), (1, 1)]
    assert [hooks.global_rank(worker(*each)) for each in asked] == [0, 1, 2, 3]


def test_while_a_graph_is_recorded_the_device_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []
    capturing = [True, False]
    torch = SimpleNamespace(
        accelerator=SimpleNamespace(synchronize=lambda: waits.append("waited")),
        xpu=SimpleNamespace(is_current_stream_capturing=lambda: capturing.pop(0)),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    wait = hooks.device_wait(SimpleNamespace(device=SimpleNamespace(type="xpu")))
    assert wait is not None
    wait()
    assert waits == []
    wait()
    assert waits == ["waited"]
    assert hooks.device_wait(SimpleNamespace(device=SimpleNamespace(type="cpu"))) is None
