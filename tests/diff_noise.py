"""Made measurements with the noise of real ones: runs that differ, steps that are alike, now and then a hiccup."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.diff import evidence

Floats = npt.NDArray[np.float64]

BUCKETS = 6


@dataclass(frozen=True)
class Noise:
    """How one configuration varies; relative standard deviations.

    `shared` is the part of the variance between runs that all buckets have in common (clocks, temperature).
    """

    run_sd: float = 0.025
    shared: float = 0.5
    step_sd: float = 0.05
    correlation: float = 0.5
    outliers: float = 0.0


def side(rng: np.random.Generator, experiments: int, runs: int, noise: Noise, effect: Floats | None = None) -> Floats:
    """Return costs per step [experiments, buckets, runs, steps]: 60 steps, large buckets and small ones."""
    shape = (experiments, BUCKETS, runs, 60)
    common = rng.normal(0, noise.run_sd * np.sqrt(noise.shared), (experiments, 1, runs))
    own = rng.normal(0, noise.run_sd * np.sqrt(1 - noise.shared), shape[:3])
    fresh = rng.normal(0, 1, shape)
    steps = np.empty(shape)
    steps[..., 0] = fresh[..., 0]
    for step in range(1, shape[-1]):
        steps[..., step] = (
            noise.correlation * steps[..., step - 1] + np.sqrt(1 - noise.correlation**2) * fresh[..., step]
        )
    sizes = np.geomspace(1, 0.01, BUCKETS) * (1 if effect is None else effect)
    cost = sizes[:, None, None] * np.exp(common + own)[..., None] * np.exp(noise.step_sd * steps)
    hiccup = rng.random((experiments, 1, runs, shape[-1])) < noise.outliers
    return np.where(hiccup, 10 * cost, cost)


def judge(
    a: Floats, b: Floats, center: str = "mean", run_sd: float = 0.025
) -> tuple[evidence.Evidence, npt.NDArray[np.str_]]:
    """Return the evidence [experiments x buckets] and the verdicts [experiments, buckets]."""
    means = [_mean(x, center, run_sd) for x in (a, b)]
    found = evidence.compare(*means)
    adjusted = evidence.holm(found.p.reshape(len(a), BUCKETS)).reshape(-1)
    words = evidence.verdicts(means[0].values, means[1].values, found, adjusted, 0.01)
    return found, words.reshape(len(a), BUCKETS)


def _mean(x: Floats, center: str, run_sd: float) -> evidence.Mean:
    middle = np.median if center == "median" else np.mean
    runs = middle(x, axis=-1).reshape(-1, x.shape[2])
    if x.shape[2] > 1:
        return evidence.of_repeats(runs)
    batches = np.stack([middle(part, axis=1) for part in np.array_split(x.reshape(len(runs), -1), 10, axis=1)], axis=1)
    return evidence.of_one_run(runs[:, 0], batches, run_sd)
