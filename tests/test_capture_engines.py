"""Real engines, captured, read and drawn: ik_llama.cpp, and llama.cpp over two RPC workers. See docs/capture.md."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracekit import manifest
from tracekit.stamps import read_stamps, sidecar

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

ROOT = Path(__file__).parent.parent

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def named(variable: str) -> Path:
    """Return the path that a variable names, or skip."""
    text = os.environ.get(variable)
    if not text:
        pytest.skip(f"{variable} must be set, see docs/capture.md")
    path = Path(text)
    assert path.exists(), f"{variable}={text}: there is nothing"
    return path


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler to build the shim")
    built = tmp_path_factory.mktemp("shim") / "shim.so"
    source = ROOT / "patches" / "ggml" / "tracekit_ggml_shim.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", built, source, "-ldl", "-pthread"], check=True)
    return built


@pytest.fixture
def model() -> Path:
    return named("TRACEKIT_MODEL")


def tracekit(*arguments: object, status: int = 0) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tracekit", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == status, done.stderr
    return done


def loaded(folder: Path) -> manifest.Manifest:
    found = manifest.load(folder)
    assert found is not None
    return found


def top(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of `top`, which must find as many records as the capture counted."""
    content = json.loads(tracekit("top", folder, "--format", "json").stdout)
    return [row for table in content["tables"] for row in table["rows"]]


def convert(folder: Path, trace: Path) -> None:
    tracekit("convert", folder, "-o", trace)
    assert trace.stat().st_size > 10_000


def test_ik_llama_cpp_is_captured_read_and_drawn(shim: Path, model: Path, tmp_path: Path) -> None:
    python = named("TRACEKIT_IK_PYTHON")
    cap = tmp_path / "cap"
    run = ("run", "--preset", "ggml-shim", "--preload", shim, "--name", "ik", "-o", cap, "--")
    tracekit(*run, python, ROOT / "tests" / "engine_ik.py", model, 16)
    found = loaded(cap)
    (process,) = found.processes
    assert found.timed
    assert process.status == 0
    assert process.logs[0].lines == 17
    # One pass for the prompt, one for each token: all alike.
    assert process.logs[1].timing_lines % 17 == 0
    assert process.logs[1].timing_lines > 17 * 200
    assert found.host["python_packages"]["ik-llama-cpp-python"]
    assert any("libggml" in path for path in process.mapped)
    rows = top(cap)
    assert sum(row["calls"] for row in rows) == process.logs[1].timing_lines
    assert {"MUL_MAT", "FUSED_UP_GATE"} <= {row["op"] for row in rows}
    stamps = read_stamps(sidecar(cap / "ik.stderr.log"))
    assert len(stamps.mono_ns) > 17
    convert(cap, tmp_path / "ik.pftrace")


def bench(*more: str) -> tuple[object, ...]:
    build = named("TRACEKIT_LLAMA_BIN")
    return (build / "llama-bench", "-ngl", "99", "-p", "32", "-n", "16", "-r", "2", "-t", "2", "-o", "json", *more)


def test_two_rpc_workers_with_the_shim(shim: Path, model: Path, tmp_path: Path) -> None:
    cap = tmp_path / "cap"
    run = ("run", "--preset", "ggml-rpc", "--preset", "ggml-shim", "--preload", shim, "--workers", 2, "--model", model)
    done = tracekit(*run, "--set", "port=50152", "-o", cap, "--", *bench())
    tests = json.loads(done.stdout)
    assert [(t["n_prompt"], t["n_gen"]) for t in tests] == [(32, 0), (0, 16)]
    found = loaded(cap)
    assert found.outcome is not None
    assert found.outcome.name == "ok"
    assert found.topology == "pipeline"
    workers = found.processes[:2]
    for worker in workers:
        assert worker.logs[1].timing_lines > 1000
        assert worker.stopped_with == "SIGTERM"
        assert worker.status == -signal.SIGTERM
        assert any("libggml-rpc" in path for path in worker.mapped)
    assert found.processes[2].logs[1].timing_lines == 0
    rows = top(cap)
    assert sum(row["calls"] for row in rows) == sum(w.logs[1].timing_lines for w in workers)
    convert(cap, tmp_path / "rpc.pftrace")


def test_plain_rpc_workers_are_told_apart_from_instrumented_ones(model: Path, tmp_path: Path) -> None:
    run = ("run", "--preset", "ggml-rpc", "--workers", 2, "--model", model, "--set", "port=50162")
    refused = tracekit(*run, "-o", tmp_path / "cap", "--", *bench(), status=125)
    assert "this ggml-rpc-server has no GGML_SYCL_OP_TIMING" in refused.stderr
    done = tracekit(*run, "--no-check", "-o", tmp_path / "cap", "--", *bench())
    assert "no line with [SYCL_OP_TIMING] came" in done.stderr
    assert "rpc-0: none of the" in done.stderr


def test_a_pair_gives_a_throughput_to_budget_against(shim: Path, model: Path, tmp_path: Path) -> None:
    cap = tmp_path / "cap"
    run = ("run", "--pair", "--preset", "ggml-rpc", "--preset", "ggml-shim", "--preload", shim, "--workers", 2)
    tracekit(*run, "--model", model, "--set", "port=50172", "-o", cap, "--", *bench())
    clean = loaded(cap / "clean")
    assert sum(log.timing_lines for p in clean.processes for log in p.logs) == 0
    budget = tracekit("budget", cap)
    assert "tokens per second of decoding by the clean run" in budget.stderr
    assert "the throughput implies" in budget.stdout or "use the shares" in budget.stdout
    by_hand = ("--bench", cap / "clean" / "client.stdout.log", "--phase", "decode")
    assert tracekit("budget", cap / "timed", *by_hand).stdout == budget.stdout


def test_a_killed_worker_fails_the_run_and_the_rest_is_stopped(model: Path, tmp_path: Path) -> None:
    cap = tmp_path / "cap"
    command = [sys.executable, "-m", "tracekit", "run", "--preset", "ggml-rpc", "--no-check", "--workers", "2"]
    command += ["--model", str(model), "--set", "port=50182", "-o", str(cap), "--", *map(str, bench("-r", "50"))]
    with (tmp_path / "said").open("wb") as said:
        run = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    try:
        deadline = time.monotonic() + 60
        log = cap / "rpc-1.stdout.log"
        while not (log.exists() and b"Accepted" in log.read_bytes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        pids = [p.pid for p in loaded(cap).processes]
        assert pids[1] is not None
        os.kill(pids[1], signal.SIGKILL)
        assert run.wait(timeout=60) != 0
    finally:
        run.kill()
        run.wait()
    outcome = loaded(cap).outcome
    assert outcome is not None
    assert outcome.name == "failed"
    assert "rpc-1 was killed by SIGKILL while the run was on" in outcome.evidence
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids if pid)
