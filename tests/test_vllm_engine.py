"""The plugin in a real vLLM on the CPU. Skipped unless --engines is given: docs/testing.md."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from engine_vllm import SIZES, ask, environment, make_model

from tracekit.capture.procfs import is_taken
from tracekit.reading import Run, read
from tracekit.stepping import steps

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

DRIVER = Path(__file__).parent / "engine_vllm.py"
TIMING = "VLLM_XPU_DECODE_TIMING"
EVERY = {TIMING: "1", f"{TIMING}_PRINT_EVERY": "1", f"{TIMING}_STEP_SUMMARY": "1"}
LAYERS = int(str(SIZES["num_hidden_layers"]))
TOKENS = 8
PORT = 8231

RUNNER = (
    *("preprocess", "model_forward", "postprocess", "compute_logits", "sample", "bookkeep", "eplb"),
    "ModelRunnerOutput",
)
KERNELS = ("attn.impl_forward", "attn.kv_cache_update")
LAYER = (
    *("layer.total", "input_layernorm", "post_attention_layernorm", "attn.total", "attn.qkv_proj", "attn.rope"),
    *("attn.core", *KERNELS, "attn.o_proj"),
)
MOE = ("moe.total", "moe.router", "moe.experts_total", "moe.select_experts", "moe.fused_experts")
NORMS = ("attn.q_norm", "attn.k_norm")
MODELS = {
    "qwen3_moe": (*LAYER, *MOE, *NORMS),
    "minimax_m2": (*LAYER, *MOE, "attn.qk_norm"),
    "llama": (*LAYER, "mlp.total", "mlp.gate_up_proj", "mlp.down_proj"),
}


def python() -> Path:
    value = os.environ.get("TRACEKIT_VLLM_PYTHON")
    if not value:
        pytest.skip("TRACEKIT_VLLM_PYTHON is not set, see docs/testing.md")
    return Path(value)


class Ran:
    """A run of the driver: what it printed, and the tokens it made. A copy of the logs is kept where asked for."""

    def __init__(self, folder: Path, timing: dict[str, str], ranks: int = 1, **options: object) -> None:
        given = {"tokens": TOKENS, "tp": ranks, **options}
        command = [python(), DRIVER, folder / "models", *(f"{k}={v}" for k, v in given.items())]
        self.log, self.errors = folder / "vllm.stdout.log", folder / "vllm.stderr.log"
        with self.log.open("wb") as out, self.errors.open("wb") as err:
            env = {**environment(folder / "site", ranks), **timing}
            subprocess.run(command, stdout=out, stderr=err, check=True, timeout=300, env=env)
        self.err = self.errors.read_text(errors="replace")
        text = self.log.read_text(errors="replace")
        self.tokens = json.loads(text[text.index('{"tokens"') :].splitlines()[0])["tokens"]
        self.timing_lines = text.count("[vllm-xpu-timing")

    def read(self) -> Run:
        strict(self.log)
        return read(self.log)


def strict(log: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tracekit", "top", "--strict", log],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert ", 0 rejected, 0 faults, 0 notes" in done.stdout


def counts(run: Run, rank: int) -> tuple[Counter[str], Counter[str]]:
    """Return how often each label was printed by a rank: collectives by the shape that they tell, and the others."""
    names = run.events.filter(pl.col("rank") == rank).select(pl.col("name").cast(pl.String)).collect()
    found = Counter(names["name"].to_list())
    collectives = Counter({name: n for name, n in found.items() if name.startswith(("all_reduce", "all_gather"))})
    return collectives, found - collectives


def expected(passes: int, model: str, *layer: str, once: tuple[str, ...] = ("embedding", "final_norm")) -> Counter[str]:
    """Return how often each label must be printed: parts once a layer, what surrounds them once a pass."""
    around = [*(f"gpu_model_runner.{phase}" for phase in RUNNER), *(f"{model}.{part}" for part in once)]
    return Counter({f"{model}.{part}": passes * LAYERS for part in layer}) + Counter(dict.fromkeys(around, passes))


def summarised(run: Run, ranks: int, passes: int) -> None:
    """Every rank printed its totals, the engine and the main process too, and they agree with the calls (strict)."""
    sums = run.summaries.filter(pl.col("step").is_null()).collect()
    forward = sums.filter(pl.col("name") == "gpu_model_runner.model_forward")
    assert sorted(forward.select("rank", "calls").rows()) == [(rank, passes) for rank in range(ranks)]
    assert sums.filter(pl.col("rank").is_null())["worker"].n_unique() == 2


def stepped(run: Run, ranks: int, passes: int, prompt: int = 32) -> None:
    """Each pass is listed once: its step line and its calls tell the same time, to the nanosecond."""
    found = steps(run)
    per_rank = [(n, "prefill" if n == 1 else "decode", prompt if n == 1 else 1, "ok") for n in range(1, passes + 1)]
    assert found.select("step", "phase", "tokens", "status").rows() == per_rank * ranks


@pytest.mark.parametrize(("model", "ranks"), [("qwen3_moe", 1), ("qwen3_moe", 2), ("minimax_m2", 2)])
def test_eager_prints_what_the_layers_demand(tmp_path: Path, model: str, ranks: int) -> None:
    """A prompt and seven single tokens: eight passes. MiniMax norms q and k over all ranks, with its own reduction."""
    run = Ran(tmp_path, EVERY, ranks, model=model).read()
    joint = model == "minimax_m2"
    for rank in range(ranks):
        collectives, others = counts(run, rank)
        assert others == expected(TOKENS, model, *MODELS[model])
        reductions = sum(n for name, n in collectives.items() if name.startswith("all_reduce"))
        a_pass = 0 if ranks == 1 else 1 + 2 * LAYERS + (LAYERS if joint else 0)
        assert reductions == TOKENS * a_pass
        assert sum(collectives.values()) - reductions == (TOKENS if ranks > 1 else 0)  # the logits are gathered
    summarised(run, ranks, TOKENS)
    stepped(run, ranks, TOKENS)


def test_a_dense_model_with_several_requests(tmp_path: Path) -> None:
    """Prompts meet in one pass with the first one's tokens, so passes are counted by the step lines."""
    run = Ran(tmp_path, EVERY, model="llama", requests=4).read()
    found = steps(run)
    passes = found["step"].n_unique()
    assert found.height == passes >= TOKENS
    assert set(found["phase"]) >= {"decode"}
    assert found["tokens"].sum() == 4 * (32 + TOKENS - 1)
    _, others = counts(run, 0)
    assert others == expected(passes, "llama", *MODELS["llama"])
    summarised(run, 1, passes)


@pytest.mark.parametrize("ranks", [1, 2])
def test_compiled_it_says_what_cannot_be_seen(tmp_path: Path, ranks: int) -> None:
    ran = Ran(tmp_path, EVERY, ranks, eager=0)
    run = ran.read()
    for rank in range(ranks):
        collectives, others = counts(run, rank)
        assert others == expected(TOKENS, "qwen3_moe", *KERNELS, once=())
        assert set(collectives) == ({"all_gather:(1, 512):torch.bfloat16"} if ranks > 1 else set())
        [told] = [line for line in ran.err.splitlines() if f"rank={rank} torch.compile hides these" in line]
        hidden = set(told.partition("fast: ")[2].split(", "))
        parts = {
            f"qwen3_moe.{part}" for part in (*MODELS["qwen3_moe"], "embedding", "final_norm") if part not in KERNELS
        }
        assert hidden == parts | ({"all_reduce"} if ranks > 1 else set())
    findings = read(ran.errors).findings.collect()
    assert findings.filter(pl.col("code") == "hidden-regions")["count"].to_list() == [ranks]
    summarised(run, ranks, TOKENS)
    stepped(run, ranks, TOKENS)


def test_the_tokens_are_the_same_and_without_the_variable_nothing_is_printed(tmp_path: Path) -> None:
    timed, plain = tmp_path / "timed", tmp_path / "plain"
    timed.mkdir()
    plain.mkdir()
    one, other = Ran(timed, {TIMING: "1"}), Ran(plain, {})
    assert one.tokens == other.tokens
    assert len(one.tokens[0]) == TOKENS
    assert one.timing_lines > 0
    assert other.timing_lines == 0
    assert "[tracekit-vllm]" not in other.err


# -- servers


def test_a_server_of_two_ranks_captured_by_the_preset(tmp_path: Path) -> None:
    """The topology vllm-tp: server, client, an orderly end."""
    model = make_model(tmp_path / "models", "qwen3_moe")
    folder = tmp_path / "capture"
    run = [sys.executable, "-m", "tracekit", "run", "--preset", "vllm-tp", "--workers", "2", "--model", model]
    sets = (f"server={python().parent / 'vllm'}", f"port={PORT}", "server_args=--load-format dummy --max-model-len 512")
    options = [word for value in sets for word in ("--set", value)] + ["--env", f"{TIMING}_STEP_SUMMARY=1"]
    client = [python(), DRIVER, tmp_path / "models", f"port={PORT}", f"tokens={TOKENS}"]
    env = environment(tmp_path / "site", 2)
    done = subprocess.run(
        [*run, *options, "-o", folder, "--", *client], check=False, timeout=350, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    log = folder / "server.stdout.log"
    strict(log)
    captured = read(log)
    for rank in range(2):
        _, others = counts(captured, rank)
        assert others == expected(TOKENS, "qwen3_moe", *MODELS["qwen3_moe"])
    sums = captured.summaries.filter(pl.col("step").is_null()).collect()
    assert set(sums["rank"].drop_nulls()) == {0, 1}
    stepped(captured, 2, TOKENS)


def test_a_server_that_is_terminated_prints_its_totals(tmp_path: Path) -> None:
    model = make_model(tmp_path / "models", "qwen3_moe")
    command = [
        python().parent / "vllm",
        "serve",
        model,
        "--enforce-eager",
        "--port",
        str(PORT),
        "--max-model-len",
        "512",
    ]
    env = {**environment(tmp_path / "site"), TIMING: "1"}
    log = tmp_path / "server.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [*command, "--load-format", "dummy"], stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True
        )
        try:
            deadline = time.monotonic() + 200
            while not is_taken("127.0.0.1", PORT):
                assert server.poll() is None, log.read_text(errors="replace")[-2000:]
                assert time.monotonic() < deadline
                time.sleep(0.5)
            ask(PORT, model, TOKENS)
            server.send_signal(signal.SIGTERM)
            server.wait(60)
        finally:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()
    sums = read(log).summaries.collect()
    assert sums.filter(pl.col("name") == "gpu_model_runner.model_forward")["calls"].to_list() == [TOKENS]
