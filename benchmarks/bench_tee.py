"""What `tracekit run` costs the program that it captures, against redirecting its output to a file.

    python benchmarks/bench_tee.py [--seconds 1.5] [--rounds 9]

A small C program (needs cc) works, prints a line of 80 bytes with one write(2), works again: as engines do with
their unbuffered stderr. How much it works between lines is set so that it prints 1e4, 1e5 and 1e6 lines a second when
redirected to a file. It takes its own time from first to last line, so the start of either side does not count.

That time has three parts: on a CPU, blocked (in write, until there is room), and waiting for a CPU that others have
(/proc/self/schedstat). The last is the neighbours' doing, and that of tracekit's own thread where there is no CPU to
spare; the first two are what the capture costs the program. The two ways alternate. `own` compares the first two, each
way at its best over the rounds; `wall` is the median of the ratio of the whole times in one round. The files lie in a
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
from typing import NamedTuple

SOURCE = r"""
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static double waited(void) {
    unsigned long long cpu = 0, wait = 0;
    FILE *f = fopen("/proc/self/schedstat", "r");
    if (!f || fscanf(f, "%llu %llu", &cpu, &wait) != 2) exit(9);
    fclose(f);
    return wait / 1e9;
}

static double cpu_time(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

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
    double start = now(), start_cpu = cpu_time(), start_wait = waited();
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    long start_stops = u.ru_nvcsw;
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
    double took = now() - start, cpu = cpu_time() - start_cpu, wait = waited() - start_wait;
    getrusage(RUSAGE_SELF, &u);
    FILE *f = fopen(argv[4], "w");
    fprintf(f, "%.9f %.9f %.9f %ld\n", took, cpu, took - cpu - wait, u.ru_nvcsw - start_stops);
    return fclose(f);
}
"""


class Took(NamedTuple):
    """What the program says of itself: seconds, and how often it gave the CPU up to wait."""

    wall: float
    cpu: float
    blocked: float
    stops: int

    @property
    def own(self) -> float:
        """Seconds that are not the neighbours' doing."""
        return self.cpu + max(0.0, self.blocked)


def main() -> None:
    """Compare at three rates."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=1.5, help="how long a run takes")
    options.add_argument("--rounds", type=int, default=9, help="runs of either kind for each rate")
    options.add_argument("--rates", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="lines a second")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as folder:
        bench = Bench(Path(folder))
        load = " ".join(f"{n:.1f}" for n in os.getloadavg())
        print(f"{os.cpu_count()} CPUs, load {load}; a program with its output to a file, and under `tracekit run`")
        print("ratios, tracekit to file; blocked in % of the program's own time\n")
        print("lines/s asked   in file      own   (cpu)  blocked, file  tracekit  stops, file  tracekit     wall")
        for rate in given.rates:
            bench.compare(rate, given.seconds, given.rounds)


class Bench:
    """The program, built, and the two ways to run it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "talk.c").write_text(SOURCE)
        subprocess.run(["cc", "-O2", "-o", folder / "talk", folder / "talk.c"], check=True)

    def _answer(self, command: list[str], error: Path | None = None) -> Took:
        took = self.folder / "took"
        with (error or Path(os.devnull)).open("wb") as err:
            subprocess.run([*command, str(took)], check=True, stdin=subprocess.DEVNULL, stderr=err)
        wall, cpu, blocked, stops = took.read_text().split()
        return Took(float(wall), float(cpu), float(blocked), int(stops))

    def to_file(self, lines: int, work: int, *, quiet: bool = False) -> Took:
        """Run with the lines redirected to a file."""
        log = self.folder / "log"
        command = [str(self.folder / "talk"), str(lines), str(work), str(int(quiet))]
        answer = self._answer(command, log)
        assert quiet or log.stat().st_size == 80 * lines
        log.unlink()
        return answer

    def to_capture(self, lines: int, work: int) -> Took:
        """Run under `tracekit run`."""
        capture = self.folder / "cap"
        command = [sys.executable, "-m", "tracekit", "run", "-o", str(capture), "--show", "none", "--"]
        answer = self._answer([*command, str(self.folder / "talk"), str(lines), str(work), "0"])
        assert (capture / "talk.stderr.log").stat().st_size == 80 * lines
        shutil.rmtree(capture)
        return answer

    def _work(self, rate: int) -> int:
        """Return how much to work between two lines for a rate into a file; 0 if writing alone is slower."""
        per_line = min(self.to_file(200_000, 0).own for _ in range(3)) / 200_000
        per_unit = min(self.to_file(1000, 100_000, quiet=True).own for _ in range(3)) / 1e8
        return max(0, round((1 / rate - per_line) / per_unit))

    def compare(self, rate: int, seconds: float, rounds: int) -> None:
        """Print one row."""
        work, lines = self._work(rate), int(rate * seconds)
        files, captures = [], []
        for _ in range(rounds):
            files.append(self.to_file(lines, work))
            captures.append(self.to_capture(lines, work))
        file, capture = (min(times, key=lambda took: took.own) for times in (files, captures))
        cpu = min(c.cpu for c in captures) / min(f.cpu for f in files)
        wall = statistics.median(c.wall / f.wall for c, f in zip(captures, files, strict=True))
        print(
            f"{rate:>13,}  {lines / file.own:>8,.0f}  {capture.own / file.own:>7.4f}  {cpu:>6.4f}"
            f"  {100 * file.blocked / file.own:>13.2f}  {100 * capture.blocked / capture.own:>8.2f}"
            f"  {file.stops:>11}  {capture.stops:>8}  {wall:>7.4f}"
        )


if __name__ == "__main__":
    main()
