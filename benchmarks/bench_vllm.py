"""What the vLLM plugin costs: processor time of a pass of a tiny model, with and without it, in one run.

``python benchmarks/bench_vllm.py [TURNS]`` with TRACEKIT_VLLM_PYTHON set (docs/testing.md). The ways take turns, each a
process of its own with many rounds of tokens. Engine and worker are in that process, with one thread for the tensors:
its processor time is all that a pass takes, and hardly depends on what else the machine does. A CPU has no device to
wait for, so `_SYNC` adds nothing here.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"
sys.path.insert(0, str(TESTS))
from engine_vllm import environment  # noqa: E402

TOKENS, ROUNDS = 64, 20
TIMING = "VLLM_XPU_DECODE_TIMING"
EVERY = {TIMING: "1", f"{TIMING}_PRINT_EVERY": "1"}
WAYS = {
    "not installed": (False, {}),
    "installed, off": (True, {}),
    "totals only": (True, {TIMING: "1"}),
    "every call": (True, EVERY),
    "every call, synchronised, step lines": (True, {**EVERY, f"{TIMING}_STEP_SUMMARY": "1", f"{TIMING}_SYNC": "1"}),
}


def run(folder: Path, plugin: bool, timing: dict[str, str]) -> tuple[list[float], int]:  # noqa: FBT001
    """Return the processor time of each round but the first, and the lines that were printed for each pass."""
    command = [os.environ["TRACEKIT_VLLM_PYTHON"], TESTS / "engine_vllm.py", folder / "models"]
    options = [f"tokens={TOKENS}", f"rounds={ROUNDS}"]
    site = folder / ("with" if plugin else "without")
    alone = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "0", "OMP_NUM_THREADS": "1"}
    env = {**environment(site, plugin=plugin), **alone, **timing}
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        subprocess.run([*command, *options], stdout=out, stderr=err, check=True, env=env)
    text = (folder / "out").read_text(errors="replace")
    seconds = json.loads(text[text.index('{"tokens"') :].splitlines()[0])["processor"]
    return seconds[1:], text.count("[vllm-xpu-timing] rank=0 ") // (TOKENS * ROUNDS)


def main() -> None:
    """Print a row for each way: milliseconds of a pass, best and median, and the medians' ratio to the first way."""
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    folder = Path(tempfile.mkdtemp())
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    lines = {}
    for _ in range(turns):
        for way, (plugin, timing) in WAYS.items():
            seconds, lines[way] = run(folder, plugin, timing)
            times[way] += seconds
    print(f"{'way':<38}{'best ms':>9}{'median ms':>11}{'ratio':>7}{'lines':>7}{'us/line':>9}")
    base = statistics.median(times["not installed"])
    for way, seconds in times.items():
        best, middle = min(seconds), statistics.median(seconds)
        each = f"{(middle - base) / TOKENS / lines[way] * 1e6:.1f}" if lines[way] else "-"
        columns = f"{best / TOKENS * 1e3:>9.3f}{middle / TOKENS * 1e3:>11.3f}{middle / base:>7.3f}"
        print(f"{way:<38}{columns}{lines[way]:>7}{each:>9}")


if __name__ == "__main__":
    main()
