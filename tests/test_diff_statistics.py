"""What the verdicts of a comparison are worth: measured on made pairs whose truth is known, and against scipy."""

import numpy as np
import pytest
from diff_noise import BUCKETS, Noise, judge, side
from scipy import stats

from tracekit.diff import evidence
from tracekit.diff.student import quantile, two_sided

SEEDS = 400
CHANGED = 1  # a bucket with 40 % of the largest one's time

FASTER = np.where(np.arange(BUCKETS) == CHANGED, 0.95, 1.0)


def bound(trials: int, rate: float = 0.05) -> float:
    """Return the rate that a true rate of 5 % stays below in 97.5 % of such counts."""
    return float(stats.binom.ppf(0.975, trials, rate)) / trials


def test_the_t_distribution_is_scipys() -> None:
    rng = np.random.default_rng(0)
    t = np.abs(rng.standard_cauchy(4000)) * 2
    freedom = np.exp(rng.uniform(0, np.log(9e4), 4000))
    np.testing.assert_allclose(two_sided(t, freedom), 2 * stats.t.sf(t, freedom), rtol=1e-7, atol=1e-300)
    np.testing.assert_allclose(quantile(0.95, freedom), stats.t.ppf(0.975, freedom), rtol=1e-9)
    endless = np.array([np.inf])
    np.testing.assert_allclose(quantile(0.95, endless), stats.norm.ppf(0.975), rtol=2e-5)


@pytest.mark.parametrize(("runs_a", "runs_b"), [(2, 2), (3, 5), (5, 5), (8, 3)])
def test_tests_and_intervals_are_welchs(runs_a: int, runs_b: int) -> None:
    rng = np.random.default_rng(runs_a)
    a, b = rng.normal(10, 0.3, (200, runs_a)), rng.normal(10.2, 0.5, (200, runs_b))
    found = evidence.compare(evidence.of_repeats(a), evidence.of_repeats(b))
    # On the logarithm's scale: the mean's is log m, its deviation s / m.
    moments = [(np.log(x.mean(1)), x.std(1, ddof=1) / x.mean(1), x.shape[1]) for x in (b, a)]
    welch = stats.ttest_ind_from_stats(*moments[0], *moments[1], equal_var=False)
    np.testing.assert_allclose(found.p, welch.pvalue, rtol=1e-7)
    # Runs that deviate little have logarithms that deviate alike: the plain test on logarithms says the same.
    logs = stats.ttest_ind(np.log(b), np.log(a), axis=1, equal_var=False)
    low, high = logs.confidence_interval(0.95)
    np.testing.assert_allclose(np.log(found.low), low, atol=0.15 * (high - low).max())
    np.testing.assert_allclose(np.log(found.high), high, atol=0.15 * (high - low).max())


def test_equivalence_is_the_interval_of_scipy() -> None:
    a, b = np.array([[10.0, 10.01, 9.99, 10.0]]), np.array([[10.01, 10.0, 10.02, 9.99]])
    found = evidence.compare(evidence.of_repeats(a), evidence.of_repeats(b))
    low, high = stats.ttest_ind(np.log(b[0]), np.log(a[0]), equal_var=False).confidence_interval(0.95)
    np.testing.assert_allclose([found.low[0], found.high[0]], np.exp([low, high]), rtol=1e-5)


def test_holm_is_what_it_says() -> None:
    rng = np.random.default_rng(3)
    for p in rng.random((200, 7)) ** 3:
        order = np.sort(p)
        by_hand = [max(min(1, (7 - k) * order[k]) for k in range(place + 1)) for place in range(7)]
        np.testing.assert_allclose(np.sort(evidence.holm(p)), by_hand)
    assert np.isnan(evidence.holm(np.array([np.nan, 0.01]))).tolist() == [True, False]
    assert evidence.holm(np.array([np.nan, 0.01]))[1] == 0.01  # what is no test does not count


@pytest.mark.parametrize("runs", [1, 3, 4, 5])
def test_equal_pairs_raise_no_more_alarms_than_they_may(runs: int) -> None:
    rng = np.random.default_rng(10 + runs)
    found, words = judge(side(rng, SEEDS, runs, Noise()), side(rng, SEEDS, runs, Noise()))
    alarms = np.isin(words, ["faster", "slower"]).any(axis=1).mean()
    assert alarms <= bound(SEEDS), alarms
    raw = (found.p.reshape(SEEDS, BUCKETS) < 0.05).mean(axis=0)
    assert (raw <= stats.binom.ppf(0.9999, SEEDS, 0.05) / SEEDS).all(), raw  # uncorrected, bucket by bucket
    assert raw.mean() > 0.01  # and the test is one


@pytest.mark.parametrize("runs", [1, 3, 4, 5])
@pytest.mark.parametrize("run_sd", [0.01, 0.025, 0.1])
def test_intervals_cover_the_truth(runs: int, run_sd: float) -> None:
    rng = np.random.default_rng(round(1000 * run_sd) + runs)
    noise = Noise(run_sd=run_sd)
    found, _ = judge(side(rng, 1000, runs, noise), side(rng, 1000, runs, noise, FASTER), run_sd=run_sd)
    truth = np.tile(FASTER, 1000)
    covered = ((found.low <= truth) & (truth <= found.high)).reshape(1000, BUCKETS).mean(axis=0)
    assert (covered >= 0.92).all(), covered
    assert (covered <= 0.98).all(), covered


def test_a_bootstrap_over_so_few_runs_covers_too_little() -> None:
    """Why the interval is Student's: resampled runs deviate by (n - 1) / n of what they should, and have no tails."""
    rng = np.random.default_rng(5)
    for runs, most in ((3, 0.88), (5, 0.92)):
        a, b = (side(rng, 1000, runs, Noise()).mean(axis=-1)[:, 0] for _ in range(2))
        drawn = [rng.integers(0, runs, (999, runs)) for _ in range(2)]
        ratio = b[:, drawn[1]].mean(axis=-1) / a[:, drawn[0]].mean(axis=-1)
        low, high = np.quantile(ratio, [0.025, 0.975], axis=1)
        assert ((low <= 1) & (high >= 1)).mean() < most


@pytest.mark.parametrize("run_sd", [0.005, 0.01])
def test_a_kernel_five_percent_faster_is_named_where_five_repeats_can_tell(run_sd: float) -> None:
    rng = np.random.default_rng(20)
    noise = Noise(run_sd=run_sd)
    _, words = judge(side(rng, SEEDS, 5, noise), side(rng, SEEDS, 5, noise, FASTER))
    assert (words[:, CHANGED] == "faster").mean() >= 0.9
    others = np.delete(words, CHANGED, axis=1)
    assert np.isin(others, ["faster", "slower"]).any(axis=1).mean() <= bound(SEEDS)


@pytest.mark.parametrize(("runs", "noise"), [(1, Noise(run_sd=0.01)), (3, Noise()), (5, Noise())])
def test_what_cannot_be_told_is_unclear(runs: int, noise: Noise) -> None:
    """Five percent against runs that deviate by 2.5 %, and against a single run a side."""
    rng = np.random.default_rng(30)
    _, words = judge(side(rng, SEEDS, runs, noise), side(rng, SEEDS, runs, noise, FASTER))
    changed = words[:, CHANGED]
    assert set(changed) <= {"unclear", "faster"}  # never the same, never the other way
    assert (changed == "unclear").mean() > 0.6


def test_one_layer_slower_is_named() -> None:
    rng = np.random.default_rng(40)
    effect = np.where(np.arange(BUCKETS) == 4, 1.2, 1.0)
    _, words = judge(side(rng, SEEDS, 5, Noise()), side(rng, SEEDS, 5, Noise(), effect))
    assert (words[:, 4] == "slower").mean() >= 0.9
    assert np.isin(np.delete(words, 4, axis=1), ["faster", "slower"]).any(axis=1).mean() <= bound(SEEDS)


def test_a_pair_full_of_outliers() -> None:
    """One step in fifty takes ten times as long: means say that they do not know, medians know."""
    rng = np.random.default_rng(50)
    noise = Noise(run_sd=0.005, outliers=0.02)
    a, b, equal = (side(rng, SEEDS, 5, noise, effect) for effect in (None, FASTER, None))
    _, means = judge(a, b)
    assert (means[:, CHANGED] == "unclear").mean() > 0.9
    _, medians = judge(a, b, "median")
    assert (medians[:, CHANGED] == "faster").mean() >= 0.9
    for center in ("mean", "median"):
        _, words = judge(a, equal, center)
        assert np.isin(words, ["faster", "slower"]).any(axis=1).mean() <= bound(SEEDS)


def test_the_same_is_shown_where_runs_are_alike_enough() -> None:
    rng = np.random.default_rng(60)
    noise = Noise(run_sd=0.002, step_sd=0.005)
    _, words = judge(side(rng, SEEDS, 5, noise), side(rng, SEEDS, 5, noise))
    assert (words == "same").mean() > 0.9
    slower = np.full(BUCKETS, 1.01)  # just what matters: half of the intervals would have to miss the truth
    _, words = judge(side(rng, SEEDS, 5, noise), side(rng, SEEDS, 5, noise, slower))
    assert (words == "same").mean() <= 0.05


def test_what_is_on_one_side_only() -> None:
    a, b = (
        evidence.of_repeats(np.array([[1.0, 1.1], [0.0, 0.0]])),
        evidence.of_repeats(np.array([[0.0, 0.0], [2.0, 2.1]])),
    )
    found = evidence.compare(a, b)
    assert np.isnan(found.ratio).all()
    assert np.isnan(found.p).all()
    words = evidence.verdicts(a.values, b.values, found, evidence.holm(found.p), 0.01)
    assert words.tolist() == ["only in A", "only in B"]


def test_runs_without_any_deviation() -> None:
    same = evidence.of_repeats(np.array([[5.0, 5.0]]))
    other = evidence.of_repeats(np.array([[6.0, 6.0]]))
    found = evidence.compare(same, same)
    assert (found.ratio[0], found.low[0], found.high[0], found.p[0]) == (1, 1, 1, 1)
    assert evidence.compare(same, other).p[0] < 1e-6
