"""What the preload shim costs: processor time of llama.cpp's own programs with it and without it, in one run.

``python benchmarks/bench_shim.py [ROUNDS]`` with TRACEKIT_LLAMA_BIN and TRACEKIT_GGUF set (docs/testing.md). Processor
time rather than tokens per second, because it hardly depends on what else the machine does; one thread each, because
idle threads of ggml spin. Rounds alternate; medians are compared.
"""

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tracekit.shimbuild import build_shim

BIN, MODEL = Path(os.environ["TRACEKIT_LLAMA_BIN"]), os.environ["TRACEKIT_GGUF"]
BENCH = [BIN / "llama-bench", "-m", MODEL, "-p", "0", "-n", "32", "-r", "1", "-t", "1", "--no-warmup"]


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def spent(process: "subprocess.Popen[bytes]") -> float:
    """Wait for a process and return its processor time in seconds."""
    _, process.returncode, used = os.wait4(process.pid, 0)
    return used.ru_utime + used.ru_stime


def start(command: list[str | Path], shim: Path | None, log: Path) -> "subprocess.Popen[bytes]":
    """Start a program, its standard error in a file as in use."""
    env = {**os.environ, "GGML_NO_BACKTRACE": "1", **({"LD_PRELOAD": str(shim)} if shim else {})}
    with log.open("wb") as err:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err, env=env)


def workers(shim: Path | None, place: Path) -> dict[str, float]:
    """Return the processor time of two RPC workers over one run of an untimed client."""
    ports = [free_port(), free_port()]
    running = [
        start([BIN / "ggml-rpc-server", "-H", "127.0.0.1", "-p", str(port), "-t", "1"], shim, place / f"worker {i}")
        for i, port in enumerate(ports)
    ]
    time.sleep(2)
    ends = ",".join(f"127.0.0.1:{port}" for port in ports)
    client = start([*BENCH, "--rpc", ends, "-ngl", "99"], None, place / "client")
    client.wait()
    for process in running:
        process.terminate()
    return {f"worker {i}": spent(process) for i, process in enumerate(running)}


def main() -> None:
    """Print a row per program: seconds without and with, their ratio, and microseconds per line."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    place = Path(tempfile.mkdtemp())
    shim = build_shim(place / "shim.so").path
    times: dict[tuple[str, bool], list[float]] = {}
    for _ in range(rounds):
        for timed in (False, True):
            used = workers(shim if timed else None, place)
            used["scheduler"] = spent(start(BENCH, shim if timed else None, place / "scheduler"))
            for name, seconds in used.items():
                times.setdefault((name, timed), []).append(seconds)
    print(f"{'program':<12}{'without s':>10}{'with s':>8}{'ratio':>7}{'lines':>8}{'us/line':>9}")
    for name in ("worker 0", "worker 1", "scheduler"):
        without, timed_s = (statistics.median(times[name, timed]) for timed in (False, True))
        lines = (place / name).read_bytes().count(b"[SYCL_OP_TIMING]")
        each = (timed_s - without) / lines * 1e6
        print(f"{name:<12}{without:>10.3f}{timed_s:>8.3f}{timed_s / without:>7.3f}{lines:>8}{each:>9.1f}")


if __name__ == "__main__":
    main()
