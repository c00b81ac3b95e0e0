"""Torn llm-scaler records: what `rebuild` gets back of text that processes really tore on one pipe.

The peer is the truth: what each process meant to write, kept aside by `tests/torn_writer.py`. Run as::

    python benchmarks/bench_torn.py             # one run of each case
    python benchmarks/bench_torn.py --runs 3
    python benchmarks/bench_torn.py --keep tests/torn_captures  # keep the first run of each for the tests

How badly a pipe tears differs from run to run and from machine to machine: the column ``torn`` says how badly it did.
"""

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import polars as pl

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from tabulate import tabulate
from torn_writer import DOWN, TOPK, UP, Truth, keep, torn

from tracekit.parsers.torn import rebuild
from tracekit.parsers.torn_pieces import INTACT


@dataclass(frozen=True)
class Case:
    """How one pipe is torn; `pause` is how often a writer gives way, by sleeping or only by yielding."""

    name: str
    processes: int
    records: int
    pause: float
    sleep: bool = True
    kernels: tuple[str, ...] = (UP, DOWN)


CASES = (
    Case("4_light", 4, 600, 0.025),
    Case("4_light_yield", 4, 600, 0.03, sleep=False),
    Case("2_heavy", 2, 1000, 0.25),
    Case("2_heavy_yield", 2, 1000, 0.8, sleep=False),
    Case("4_heavy", 4, 600, 0.2),
    Case("4_heavy_yield", 4, 600, 0.8, sleep=False),
    Case("4_worst", 4, 600, 0.35),
    Case("4_three_kernels", 4, 400, 0.06, kernels=(UP, DOWN, TOPK)),
    Case("8_processes", 8, 60, 0.05),
    Case("1_process", 1, 1000, 1.0),
)


@dataclass(frozen=True)
class Score:
    """How a rebuilt text compares with the truth; parts are of all true records."""

    torn: float  # part of the lines that are not one whole record
    recovered: float
    invented: int  # values that nobody wrote there
    changed: int  # whole records that are told as something else
    sum_error: float
    attributed: float  # device told
    wrong: float
    kernel: float
    kernel_wrong: float
    seconds: float  # of the processor's time


def ns(text: str) -> int:
    """Return the nanoseconds of a printed wait."""
    return round(float(text) * 1e6)


def frame(text: str) -> pl.DataFrame:
    """Return the lines of a text as `rebuild` wants them."""
    rows = text.removesuffix("\n").split("\n")
    return pl.DataFrame({"line": pl.Series(range(1, len(rows) + 1), dtype=pl.UInt32), "text": rows})


def score(text: str, truth: list[Truth]) -> Score:
    """Rebuild a text and compare it with the truth, value by value at its line."""
    lines = frame(text)
    whole = lines["text"].map_elements(lambda t: INTACT.fullmatch(t) is not None, return_dtype=pl.Boolean)
    before = time.process_time()
    found = rebuild(lines)
    seconds = time.process_time() - before
    if found is None:  # not torn: the dialect reads such lines itself
        return Score(1 - float(whole.mean() or 0), 1.0, 0, 0, 0.0, 1.0, 0.0, 1.0, 0.0, seconds)
    events, count = found.events, len(truth)
    values = Counter((t.line, ns(t.text)) for t in truth)
    seen = Counter(events.select("line", "dur_ns").iter_rows())
    records = Counter((t.line, ns(t.text), t.device, t.kernel) for t in truth)
    intact = Counter(events.filter(~pl.col("recovered")).select("line", "dur_ns", "device", "kernel").iter_rows())
    part = {}
    for name, owner in (("device", Counter((t.line, ns(t.text), t.device) for t in truth)),
                        ("kernel", Counter((t.line, ns(t.text), t.kernel) for t in truth))):  # fmt: skip
        told = Counter(events.drop_nulls(name).select("line", "dur_ns", name).iter_rows())
        part[name] = told.total() / count, (told - owner).total() / count
    return Score(
        torn=1 - float(whole.mean() or 0),
        recovered=(values & seen).total() / count,
        invented=(seen - values).total(),
        changed=(intact - records).total(),
        sum_error=events["dur_ns"].sum() / sum(ns(t.text) for t in truth) - 1,
        attributed=part["device"][0],
        wrong=part["device"][1],
        kernel=part["kernel"][0],
        kernel_wrong=part["kernel"][1],
        seconds=seconds,
    )


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=1, help="runs of each case")
    options.add_argument("--keep", type=Path, help="directory in which the first run of each case is kept")
    chosen = options.parse_args()
    rows = []
    for case in CASES:
        for run in range(chosen.runs):
            text, truth = torn(case.processes, case.records, case.pause, case.kernels, 1 + 100 * run, sleep=case.sleep)
            if chosen.keep and not run and case.processes > 1:
                keep(chosen.keep / f"{case.name}.json.gz", text, truth)
            got = score(text, truth)
            rows.append([case.name, len(truth), f"{got.torn:.1%}", f"{got.recovered:.2%}", got.invented, got.changed,
                         f"{got.sum_error:+.2%}", f"{got.attributed:.1%}", f"{got.wrong:.2%}", f"{got.kernel:.1%}",
                         f"{got.kernel_wrong:.2%}", f"{len(truth) / got.seconds:,.0f}"])  # fmt: skip
    head = ["case", "records", "torn", "values", "invented", "changed", "sum", "device", "wrong", "kernel", "wrong",
            "records/s"]  # fmt: skip
    sys.stdout.write(tabulate(rows, head, tablefmt="github", disable_numparse=True) + "\n")


if __name__ == "__main__":
    main()
