"""What runs prove about a ratio: an interval, a test, and the verdict. Arrays over buckets, no loops.

The unit of evidence is the run. Calls within a step and steps within a run share their machine's mood, so a thousand
steps of one run say little about the next run. With repeats the deviation between runs is measured; a side that has one
run takes it as given.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.diff.student import quantile, two_sided

Floats = npt.NDArray[np.float64]

#: Level of the intervals; a test is at one minus it.
LEVEL = 0.95

VERDICTS = ("faster", "slower", "same", "unclear", "only in A", "only in B")


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of one side, per bucket, and the parts of its relative variance with their degrees of freedom.

    Attributes:
        values: [buckets], any unit.
        parts: pairs (relative variance of the mean, degrees of freedom), each [buckets].
    """

    values: Floats
    parts: tuple[tuple[Floats, Floats], ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Per bucket [buckets]: b / a, its interval at `LEVEL`, and the probability of such a ratio if nothing changed.

    NaN where one side has nothing.
    """

    ratio: Floats
    low: Floats
    high: Floats
    p: Floats


def of_repeats(runs: Floats) -> Mean:
    """Return the mean over repeats and its relative variance s^2 / (n m^2), n - 1 degrees of freedom.

    Args:
        runs: [buckets, n], n > 1: a run's mean (or median) per step.
    """
    n = runs.shape[1]
    mean = runs.mean(axis=1)
    return Mean(mean, ((_relative(runs.var(axis=1, ddof=1) / n, mean), np.full(len(runs), n - 1.0)),))


def of_one_run(values: Floats, batches: Floats | None, run_sd: float) -> Mean:
    """Return the mean of a single run: its steps' variance, widened by an assumed deviation between runs.

    Neighbouring steps are alike, so the variance of the mean comes from batch means (Law, Simulation Modeling and
    Analysis, chapter 9): means of consecutive steps, fewer and longer than the steps are correlated.

    Args:
        values: [buckets].
        batches: [buckets, k]: the means of k batches; None where steps are not known.
        run_sd: relative standard deviation between runs, as in 0.025.
    """
    assumed = (np.full(len(values), run_sd**2), np.full(len(values), np.inf))
    if batches is None or batches.shape[1] < 2:
        return Mean(values, (assumed,))
    k = batches.shape[1]
    steps = _relative(batches.var(axis=1, ddof=1) / k, batches.mean(axis=1))
    return Mean(values, ((steps, np.full(len(values), k - 1.0)), assumed))


def compare(a: Mean, b: Mean) -> Evidence:
    """Compare two sides: Welch's t test and interval for the logarithm of b / a.

    The variance of log(b / a) is the sum of both relative variances (the delta method, first order), its degrees of
    freedom are Welch and Satterthwaite's (Welch 1947, Biometrika 34): (sum v)^2 / sum(v^2 / freedom). A percentile
    bootstrap over so few runs covers too little: see docs/diff.md.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where((a.values > 0) & (b.values > 0), b.values / a.values, np.nan)
        parts = (*a.parts, *b.parts)
        variance = np.sum([v for v, _ in parts], axis=0)
        freedom = variance**2 / np.sum([v**2 / f for v, f in parts], axis=0)
    freedom = np.where(np.isfinite(freedom), freedom, 1e5)
    log, error = np.log(ratio), np.sqrt(variance)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        t = np.where(error > 0, log / error, np.where(log == 0, 0.0, np.copysign(1e9, log)))
        wide = quantile(LEVEL, freedom) * error
        p = np.where(np.isnan(ratio), np.nan, two_sided(np.nan_to_num(t), freedom))
        return Evidence(ratio, np.exp(log - wide), np.exp(log + wide), p)


def holm(p: Floats) -> Floats:
    """Return p values corrected for the number of tests along the last axis (Holm 1979); NaN is no test.

    >>> holm(np.array([0.01, 0.04, 0.03, np.nan])).round(3)
    array([0.03, 0.06, 0.06,  nan])
    """
    order = np.argsort(p, axis=-1)  # NaN last
    ordered = np.take_along_axis(p, order, axis=-1)
    tests = np.sum(~np.isnan(p), axis=-1, keepdims=True)
    stepped = np.fmax.accumulate(ordered * np.maximum(tests - np.arange(p.shape[-1]), 1), axis=-1)
    back = np.empty_like(p)
    np.put_along_axis(back, order, np.where(np.isnan(ordered), np.nan, np.minimum(stepped, 1.0)), axis=-1)
    return back


def verdicts(
    a: npt.NDArray[Any], b: npt.NDArray[Any], found: Evidence, adjusted: Floats, min_effect: float
) -> npt.NDArray[np.str_]:
    """Return the verdict on each bucket, of `VERDICTS`.

    Same is shown by the interval, which must lie within the smallest effect that matters; a test that finds nothing
    shows nothing. Faster and slower need the corrected test, and a ratio beyond that effect.

    Args:
        a, b: how much of it each side has, in calls: what has none is on the other side only. Calls that take no time
            are there; their ratio is not known, so neither is their verdict.
        adjusted: the p values, corrected.
        min_effect: as in 0.01: from 1 / 1.01 to 1.01 is the same.
    """
    most = 1 + min_effect
    with np.errstate(invalid="ignore"):
        same = (found.low >= 1 / most) & (found.high <= most)
        changed = adjusted < 1 - LEVEL
        cases = [
            (b == 0) & (a > 0),
            (a == 0) & (b > 0),
            same,
            changed & (found.ratio < 1 / most),
            changed & (found.ratio > most),
        ]
    return np.select(cases, ["only in A", "only in B", "same", "faster", "slower"], "unclear")


def _relative(variance: Floats, mean: Floats) -> Floats:
    return np.divide(variance, mean**2, out=np.zeros_like(mean), where=mean > 0)
