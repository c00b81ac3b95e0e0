"""What `tracekit run` costs the program that it captures, against redirecting its output to a file.

    python benchmarks/bench_tee.py [--seconds 1.5] [--rounds 9]

A small C program (needs cc) works, prints a line of 80 bytes with one write(2), works again: as engines do with
their unbuffered stderr. How much it works between lines is set so that it prints 1e4, 1e5 and 1e6 lines a second when
redirected to a file. It takes its own time from first to last line, so the start of either side does not count.
The two ways alternate; the figure is the median over rounds of the ratio of the two times in one round. On a machine
that does other work too, the best time of each side and the CPU time say more than the median. The files lie in a
temporary directory (TMPDIR).
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    long lines = atol(argv[1]), work = atol(argv[2]);
    int quiet = atoi(argv[3]);
    volatile uint64_t x = 88172645463325252ull;
    char line[80];
    memset(line, 'x', sizeof line);
    line[79] = '\n';
    double start = now();
    for (long i = 0; i < lines; i++) {
        for (long k = 0; k < work; k++) { x ^= x << 13; x ^= x >> 7; x ^= x << 17; }
        if (!quiet) {
            snprintf(line, 12, "%010ld", i);
            line[10] = ' ';
            for (size_t done = 0; done < sizeof line;) {
                ssize_t n = write(2, line + done, sizeof line - done);
                if (n < 0) return 1;
                done += (size_t)n;
            }
        }
    }
    double took = now() - start;
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    double cpu = u.ru_utime.tv_sec + u.ru_utime.tv_usec / 1e6 + u.ru_stime.tv_sec + u.ru_stime.tv_usec / 1e6;
    FILE *f = fopen(argv[4], "w");
    fprintf(f, "%.9f %.9f\n", took, cpu);
    return fclose(f);
}
"""


def main() -> None:
    """Compare at three rates."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=1.5, help="how long a run takes")
    options.add_argument("--rounds", type=int, default=9, help="runs of either kind for each rate")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as folder:
        bench = Bench(Path(folder))
        print(f"{os.cpu_count()} CPUs; program alone and on `tracekit run --show none`, {given.rounds} rounds\n")
        print(
            "lines/s asked  lines/s in file  wall time, ratio (quartiles)  best to best  CPU time of the program, ratio"
        )
        for rate in (10_000, 100_000, 1_000_000):
            bench.compare(rate, given.seconds, given.rounds)


class Bench:
    """The program, built, and the two ways to run it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "talk.c").write_text(SOURCE)
        subprocess.run(["cc", "-O2", "-o", folder / "talk", folder / "talk.c"], check=True)

    def _answer(self, command: list[str], error: Path | None = None) -> tuple[float, float]:
        took = self.folder / "took"
        with (error or Path(os.devnull)).open("wb") as err:
            subprocess.run([*command, str(took)], check=True, stdin=subprocess.DEVNULL, stderr=err)
        wall, cpu = map(float, took.read_text().split())
        return wall, cpu

    def to_file(self, lines: int, work: int, *, quiet: bool = False) -> tuple[float, float]:
        """Run with the lines redirected to a file; return wall and CPU time in seconds."""
        log = self.folder / "log"
        command = [str(self.folder / "talk"), str(lines), str(work), str(int(quiet))]
        answer = self._answer(command, log)
        assert quiet or log.stat().st_size == 80 * lines
        log.unlink()
        return answer

    def to_capture(self, lines: int, work: int) -> tuple[float, float]:
        """Run under `tracekit run`; return wall and CPU time of the program in seconds."""
        capture = self.folder / "cap"
        command = [sys.executable, "-m", "tracekit", "run", "-o", str(capture), "--show", "none", "--"]
        answer = self._answer([*command, str(self.folder / "talk"), str(lines), str(work), "0"])
        assert (capture / "talk.stderr.log").stat().st_size == 80 * lines
        shutil.rmtree(capture)
        return answer

    def _work(self, rate: int) -> int:
        """Return how much to work between two lines for a rate into a file; 0 if writing alone is slower."""
        per_line = min(self.to_file(200_000, 0)[0] for _ in range(3)) / 200_000
        per_unit = min(self.to_file(1000, 100_000, quiet=True)[0] for _ in range(3)) / 1e8
        return max(0, round((1 / rate - per_line) / per_unit))

    def compare(self, rate: int, seconds: float, rounds: int) -> None:
        """Print one row."""
        work, lines = self._work(rate), int(rate * seconds)
        files, captures, cpus = [], [], []
        for _ in range(rounds):
            file_wall, file_cpu = self.to_file(lines, work)
            wall, cpu = self.to_capture(lines, work)
            files.append(file_wall)
            captures.append(wall)
            cpus.append(cpu / file_cpu)
        low, middle, high = statistics.quantiles([c / f for c, f in zip(captures, files, strict=True)], n=4)
        print(
            f"{rate:>13,}  {lines / statistics.median(files):>15,.0f}  {middle:>9.4f} ({low:.4f} to {high:.4f})"
            f"  {min(captures) / min(files):>12.4f}  {statistics.median(cpus):>30.4f}"
        )


if __name__ == "__main__":
    main()
