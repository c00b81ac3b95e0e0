"""What the vLLM plugin costs: processor time of a pass of a tiny model, timed and not timed, in one process.

``python benchmarks/bench_vllm.py [ROUNDS]`` with TRACEKIT_VLLM_PYTHON set (docs/testing.md). Engine and worker are in
one process with one thread for the tensors, so its processor time is all that a pass takes. Every second round is not
timed: what else the machine does falls on both. The peer still has the plugin's wrappers, 0.3 us a call; where the
plugin is not switched on there are none. A CPU has no device to wait for, so `_SYNC` adds nothing here.
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

TOKENS = 32
TIMING = "VLLM_XPU_DECODE_TIMING"
WAYS = {
    "totals only": {},
    "every call": {f"{TIMING}_PRINT_EVERY": "1"},
    "every call, step lines": {f"{TIMING}_PRINT_EVERY": "1", f"{TIMING}_STEP_SUMMARY": "1"},
}


def run(folder: Path, timing: dict[str, str], rounds: int) -> tuple[list[float], list[float], float]:
    """Return the processor time of timed rounds, of the others, and the regions that a timed pass has."""
    command = [os.environ["TRACEKIT_VLLM_PYTHON"], TESTS / "engine_vllm.py", folder / "models"]
    options = [f"tokens={TOKENS}", f"rounds={rounds + 2}", "alternate=1"]
    alone = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "0", "OMP_NUM_THREADS": "1"}
    env = {**environment(folder / "site"), **alone, TIMING: "1", **timing}
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        subprocess.run([*command, *options], stdout=out, stderr=err, check=True, env=env)
    text = (folder / "out").read_text(errors="replace")
    spent = json.loads(text[text.index('{"tokens"') :].splitlines()[0])["processor"][2:]
    sums = [line for line in text.splitlines() if line.startswith("[vllm-xpu-timing-summary] rank=0 ")]
    inside = [line for line in sums if "label=schedule." not in line and "label=llm_engine." not in line]
    regions = sum(int(line.split(" count=")[1].split()[0]) for line in inside)
    return spent[::2], spent[1::2], regions / (TOKENS * (rounds + 2) / 2)


def main() -> None:
    """Print a row for each way: milliseconds of a pass, medians of rounds, their ratio, microseconds of a region."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 80
    folder = Path(tempfile.mkdtemp())
    print(f"{'way':<24}{'untimed ms':>11}{'timed ms':>10}{'ratio':>7}{'regions':>9}{'us/region':>11}")
    for way, timing in WAYS.items():
        timed, untimed, regions = run(folder, timing, rounds)
        more = statistics.median(a - b for a, b in zip(timed, untimed, strict=True))
        base = statistics.median(untimed)
        row = f"{base / TOKENS * 1e3:>11.3f}{(base + more) / TOKENS * 1e3:>10.3f}{(base + more) / base:>7.3f}"
        print(f"{way:<24}{row}{regions:>9.1f}{more / TOKENS / regions * 1e6:>11.1f}")


if __name__ == "__main__":
    main()
