import math

import numpy as np
import pytest
from scipy import stats

from specverify.errors import UsageError
from specverify.statistics.bounds import (
    clopper_pearson_upper,
    expected_tv_estimate,
    rate_excluded,
    samples_needed,
    samples_needed_to_exclude,
    tv_upper_bound,
)


def zipf(size: int) -> np.ndarray:
    weights = 1 / np.arange(1, size + 1)
    return weights / weights.sum()


def tv(a, p) -> float:
    return float(np.abs(np.asarray(a) - np.asarray(p)).sum() / 2)


def test_value_of_the_bound():
    result = tv_upper_bound([60, 40], [0.5, 0.5], 1e-6)
    assert result.estimate == pytest.approx(0.1)
    assert result.bound == pytest.approx(0.1 + math.sqrt(math.log(1e6) / 200))
    assert (result.alpha, result.n) == (1e-6, 100)


def test_strata_are_weighted_by_sample_share():
    result = tv_upper_bound([[60, 40], [900, 0]], [[0.5, 0.5], [0.5, 0.5]], 0.01)
    assert result.estimate == pytest.approx(0.1 * 0.1 + 0.9 * 0.5)
    assert result.bound == pytest.approx(result.estimate + math.sqrt(math.log(100) / 2000))


def test_hits_on_impossible_cells_count():
    assert tv_upper_bound([9, 0, 1], [1.0, 0.0, 0.0], 0.5).estimate == pytest.approx(0.1)


def test_without_observations_nothing_is_excluded():
    assert tv_upper_bound([0, 0], [0.5, 0.5], 0.1).bound == 1.0


@pytest.mark.parametrize(
    ("size", "n", "expected"), [(64, 10**6, 5.3e-3), (1024, 10**6, 1.2e-2), (50_000, 10**6, 5.6e-2)]
)
def test_attains_the_table_of_statistics_md(size, n, expected):
    law = zipf(size)
    counts = np.random.default_rng(size).multinomial(n, law)
    assert tv_upper_bound(counts, law, 1e-6).bound == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("shift", [0.0, 0.02, 0.2])
def test_coverage(shift):
    """The bound is below the true TV in at most alpha of the runs; the estimate alone is not."""
    rng = np.random.default_rng(11)
    law, actual = np.array([0.5, 0.5]), np.array([0.5 + shift, 0.5 - shift])
    results = [
        tv_upper_bound(counts, law, 0.1) for counts in rng.multinomial(200, actual, size=4000)
    ]
    missed = sum(result.bound < tv(actual, law) for result in results)
    assert missed <= stats.binom.isf(1e-4, 4000, 0.1)
    if shift == 0.2:
        assert sum(result.estimate < tv(actual, law) for result in results) > 1500


def test_coverage_over_strata():
    rng = np.random.default_rng(12)
    laws, sizes = [np.array([0.5, 0.5]), zipf(4)], (50, 150)
    actual = [np.array([0.7, 0.3]), zipf(4)[::-1]]
    truth = sum(n / 200 * tv(a, p) for n, a, p in zip(sizes, actual, laws, strict=True))
    draws = [rng.multinomial(n, a, size=4000) for n, a in zip(sizes, actual, strict=True)]
    missed = sum(tv_upper_bound(pair, laws, 0.1).bound < truth for pair in zip(*draws, strict=True))
    assert missed <= stats.binom.isf(1e-4, 4000, 0.1)


@pytest.mark.parametrize("n", [1, 3, 20, 500])
@pytest.mark.parametrize("size", [1, 2, 30])
def test_expected_estimate_bounds_the_exact_mean(n, size):
    law = zipf(size)
    support = np.arange(n + 1)
    exact = sum(float(stats.binom.pmf(support, n, p) @ np.abs(support / n - p)) for p in law) / 2
    bound = expected_tv_estimate(law, n)
    assert exact <= bound * (1 + 1e-9) + 1e-15
    assert bound <= 1.5 * exact + 1e-15


def test_expected_estimate_over_strata_is_the_weighted_mean():
    mixed = expected_tv_estimate([zipf(4), zipf(9)], 1000, shares=(0.25, 0.75))
    parts = expected_tv_estimate(zipf(4), 250), expected_tv_estimate(zipf(9), 750)
    assert mixed == pytest.approx(0.25 * parts[0] + 0.75 * parts[1])


def test_samples_needed_is_the_smallest_and_suffices():
    law, target, alpha = zipf(64), 0.02, 1e-6
    n = samples_needed(law, target, alpha)
    for size, met in ((n, True), (n - 1, False)):
        predicted = expected_tv_estimate(law, size) + math.sqrt(math.log(1 / alpha) / (2 * size))
        assert (predicted <= target) == met

    def met_in(size: int) -> int:
        draws = np.random.default_rng(1).multinomial(size, law, size=500)
        return sum(tv_upper_bound(counts, law, alpha).bound <= target for counts in draws)

    assert met_in(n) >= 475
    assert met_in(n * 11 // 10) >= 495
    assert met_in(n // 2) == 0


def test_samples_needed_grows_with_strata():
    assert samples_needed([zipf(64)] * 8, 0.02, 1e-6) > 2 * samples_needed(zipf(64), 0.02, 1e-6)


@pytest.mark.parametrize(("successes", "n"), [(0, 50), (3, 50), (49, 50), (120, 10_000)])
def test_clopper_pearson_agrees_with_scipy(successes, n):
    interval = stats.binomtest(successes, n, alternative="less").proportion_ci(0.999, "exact")
    assert clopper_pearson_upper(successes, n, 1e-3) == pytest.approx(interval.high, rel=1e-6)


def test_clopper_pearson_ends():
    assert clopper_pearson_upper(7, 7, 0.01) == 1.0
    assert clopper_pearson_upper(0, 100, 1e-6) == pytest.approx(1 - 1e-6 ** (1 / 100))


@pytest.mark.parametrize("rate", [0.001, 0.05, 0.3, 0.97])
def test_clopper_pearson_coverage_is_exact(rate):
    n, alpha = 60, 0.05
    missed = sum(
        stats.binom.pmf(k, n, rate)
        for k in range(n + 1)
        if clopper_pearson_upper(k, n, alpha) < rate
    )
    assert missed <= alpha


@pytest.mark.parametrize("rate", [0.0, 0.004, 0.05])
def test_a_limit_is_met_with_the_stated_power_at_the_true_rate(rate):
    limit, alpha, runs = rate + 0.02, 1e-6, 300
    n = samples_needed_to_exclude(limit, alpha, rate=rate)
    for size in (n, n - 1):
        most = max(k for k in range(n) if clopper_pearson_upper(k, size, alpha) <= limit or not k)
        met = clopper_pearson_upper(most, size, alpha) <= limit
        power = met * stats.binom.cdf(most, size, rate)
        assert (power >= 0.999) == (size == n)

    def met_in(size: int, limit: float) -> int:
        draws = np.random.default_rng(1).binomial(size, rate, size=runs)
        return sum(clopper_pearson_upper(int(k), size, alpha) <= limit for k in draws)

    assert met_in(n, limit) > 0.99 * runs
    assert met_in(n, rate + 0.01) < 0.5 * runs
    assert met_in(n // 3, limit) < 0.5 * runs


@pytest.mark.parametrize("rate", [0.0, 1e-5, 0.1])
@pytest.mark.parametrize("excess", [1e-5, 1e-3, 0.5])
def test_limit_and_observations_invert_each_other(rate, excess):
    n = samples_needed_to_exclude(rate + excess, 1e-6, rate=rate)
    assert rate_excluded(n, 1e-6, rate=rate) <= rate + excess
    assert rate_excluded(n - 1, 1e-6, rate=rate) > rate + excess
    assert rate_excluded(10 * n, 1e-6, rate=rate) < rate + 0.7 * excess


def test_a_rate_of_zero_is_a_closed_form():
    assert rate_excluded(1000, 1e-6) == pytest.approx(1 - 1e-6 ** (1 / 1000))
    assert samples_needed_to_exclude(1e-3, 1e-6) == math.ceil(math.log(1e6) / -math.log(1 - 1e-3))
    assert rate_excluded(1, 1e-6, rate=0.5) == 1.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: tv_upper_bound([1, 1], [0.5, 0.5], 0.0),
        lambda: samples_needed([0.5, 0.5], 1.0, 0.1),
        lambda: samples_needed([0.5, 0.5], 0.1, 0.1, shares=(0.5, 0.5)),
        lambda: expected_tv_estimate([0.5, 0.5], 0),
        lambda: clopper_pearson_upper(5, 4, 0.1),
        lambda: rate_excluded(0, 0.1),
        lambda: rate_excluded(5, 0.1, rate=1.0),
        lambda: samples_needed_to_exclude(0.1, 0.1, rate=0.1),
        lambda: samples_needed_to_exclude(0.1, 0.1, 1.0),
    ],
)
def test_invalid_input_is_refused(call):
    with pytest.raises(UsageError):
        call()
