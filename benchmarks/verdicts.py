"""What the verdicts of ``tracekit diff`` are worth, on made pairs whose truth is known: the tables of docs/diff.md.

``python benchmarks/verdicts.py`` (a minute).
"""

import sys
from pathlib import Path

import numpy as np
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from diff_noise import BUCKETS, Noise, judge, side

PAIRS = 1000
CHANGED = 1
FASTER = np.where(np.arange(BUCKETS) == CHANGED, 0.95, 1.0)


def coverage(runs: int) -> list[object]:
    """Return how often intervals cover the truth and how often equal pairs raise an alarm."""
    rng = np.random.default_rng(runs)
    a, b = side(rng, PAIRS, runs, Noise()), side(rng, PAIRS, runs, Noise())
    found, words = judge(a, b)
    covered = ((found.low <= 1) & (found.high >= 1)).mean()
    alarms = np.isin(words, ["faster", "slower"]).any(axis=1).mean()
    return [runs, f"{100 * covered:.1f} %", _bootstrap(rng, a, b, runs), f"{100 * alarms:.1f} %"]


def _bootstrap(rng: np.random.Generator, a: np.ndarray, b: np.ndarray, runs: int) -> str:
    if runs == 1:
        return "-"
    drawn = [rng.integers(0, runs, (999, runs)) for _ in range(2)]
    ratio = b.mean(-1)[:, 0][:, drawn[1]].mean(-1) / a.mean(-1)[:, 0][:, drawn[0]].mean(-1)
    low, high = np.quantile(ratio, [0.025, 0.975], axis=1)
    return f"{100 * ((low <= 1) & (high >= 1)).mean():.1f} %"


def named(runs: int, noise: Noise, center: str = "mean") -> str:
    """Return how often a bucket that became 5 % faster is called so."""
    rng = np.random.default_rng(100 * runs)
    _, words = judge(side(rng, PAIRS, runs, noise), side(rng, PAIRS, runs, noise, FASTER), center)
    return f"{100 * (words[:, CHANGED] == 'faster').mean():.0f} %"


def main() -> None:
    """Print the tables."""
    headers = ["repeats a side", "interval covers", "a bootstrap would", "equal pairs with an alarm"]
    print(tabulate([coverage(n) for n in (1, 2, 3, 4, 5, 8)], headers, tablefmt="pipe"), "\n")
    kinds = [(f"{100 * sd:g} %", Noise(run_sd=sd), "mean") for sd in (0.005, 0.01, 0.025)]
    odd = Noise(run_sd=0.005, outliers=0.02)
    kinds += [("0.5 %, outliers", odd, "mean"), ("0.5 %, outliers, `--center median`", odd, "median")]
    rows = [[what, *(named(n, noise, center) for n in (1, 3, 5, 8))] for what, noise, center in kinds]
    print(tabulate(rows, ["deviation between runs", "1 run", "3", "5", "8"], tablefmt="pipe"))


if __name__ == "__main__":
    main()
