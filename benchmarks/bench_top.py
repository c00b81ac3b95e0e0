"""`tracekit top` against the plain loop of `re_loop.py`, side by side in one run, start-up included.

``bench_top.py [LINES...]`` (default: 2000000, a log of 150 MB). Runs alternate; medians and their ratio are printed.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from make_log import write

HERE = Path(__file__).parent
REPEATS = 3
#: As a user has it: compiled modules are kept.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def measured(argv: list[str]) -> tuple[float, float]:
    """Return wall seconds and peak resident megabytes of a process."""
    start = time.perf_counter()
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{argv}: status {status}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def compare(lines: int, folder: Path) -> None:
    """Measure both on one log and print the ratios."""
    log = folder / "decode.log"
    write(log, lines)
    commands = {
        "tracekit top": [sys.executable, "-m", "tracekit", "top", str(log)],
        "re loop": [sys.executable, str(HERE / "re_loop.py"), str(log)],
    }
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for turn in range(REPEATS):
        for name in sorted(commands, reverse=bool(turn % 2)):
            seen[name].append(measured(commands[name]))
    time_s = {name: statistics.median(t for t, _ in runs) for name, runs in seen.items()}
    peak = {name: statistics.median(m for _, m in runs) for name, runs in seen.items()}
    print(f"{log.stat().st_size / 1e6:.0f} MB, {lines} lines")
    for name in commands:
        print(f"  {name:14} {time_s[name]:7.2f} s {peak[name]:7.0f} MB")
    ratio = time_s["re loop"] / time_s["tracekit top"]
    print(f"  {ratio:.1f} times as fast with {100 * peak['tracekit top'] / peak['re loop']:.0f} % of the memory")
    log.unlink()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        for count in map(int, sys.argv[1:] or ["2000000"]):
            compare(count, Path(made))
