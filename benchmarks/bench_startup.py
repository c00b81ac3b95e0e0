"""How long a user waits for nothing: `tracekit --help` against ``python -c pass``, and `top` on a thousand lines."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from make_log import write

REPEATS = 15
#: As a user has it: compiled modules are kept.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def median_ms(argv: list[str]) -> float:
    """Return the median wall time of a command in milliseconds."""
    seen = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, env=ENVIRONMENT)
        seen.append(1000 * (time.perf_counter() - start))
    return statistics.median(seen)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        log = Path(made) / "small.log"
        write(log, 1000)
        nothing = median_ms([sys.executable, "-c", "pass"])
        tool = str(Path(sys.executable).parent / "tracekit")
        helped = median_ms([tool, "--help"])
        top = median_ms([tool, "top", str(log)])
    print(f"python -c pass     {nothing:6.0f} ms")
    print(f"tracekit --help    {helped:6.0f} ms ({helped - nothing:.0f} ms more)")
    print(f"top on 1,985 lines {top:6.0f} ms")
