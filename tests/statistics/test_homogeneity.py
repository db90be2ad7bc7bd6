import numpy as np
import pytest
from scipy import stats

from specverify.errors import UsageError
from specverify.statistics.homogeneity import homogeneity

STATISTICS = {"G": "log-likelihood", "chi-squared": "pearson"}


def zipf(size):
    weights = 1 / np.arange(1, size + 1)
    return weights / weights.sum()


@pytest.mark.parametrize("statistic", list(STATISTICS))
def test_agrees_with_scipy(statistic):
    a, b = np.array([300, 200, 100]), np.array([150, 160, 90])
    expected = stats.contingency.chi2_contingency(
        np.stack([a, b]), correction=False, lambda_=STATISTICS[statistic]
    )
    result = homogeneity(a, b, statistic=statistic)
    assert result.statistic == pytest.approx(expected.statistic, rel=1e-9)
    assert result.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    assert (result.df, result.cells, result.n) == (2, 3, 1000)


@pytest.mark.parametrize("statistic", list(STATISTICS))
def test_level(statistic):
    rng, law, runs = np.random.default_rng(1), zipf(64), 1_000
    a, b = rng.multinomial(2_000, law, runs), rng.multinomial(6_000, law, runs)
    p = np.array(
        [homogeneity(x, y, statistic=statistic).p_value for x, y in zip(a, b, strict=True)]
    )
    for alpha in (0.1, 0.01):
        assert stats.binom.sf((p <= alpha).sum() - 1, runs, 1.1 * alpha) > 1e-3
        assert stats.binom.cdf((p <= alpha).sum(), runs, 0.9 * alpha) > 1e-3
    # Negative control: taking one sample as the law doubles the variance and more.
    wrong = ((a - b / 3) ** 2 / np.maximum(b / 3, 1e-9)).sum(axis=1)
    assert (stats.chi2.sf(wrong, 63) <= 0.01).mean() > 0.03


def test_a_deviation_is_seen_and_the_same_law_at_another_size_is_not():
    rng, law = np.random.default_rng(2), zipf(64)
    other = 0.9 * law + 0.1 * law[::-1]
    assert homogeneity(rng.multinomial(20_000, law), rng.multinomial(20_000, other)).p_value < 1e-9
    assert homogeneity(rng.multinomial(20_000, law), rng.multinomial(2_000, law)).p_value > 1e-3


def test_pooling_looks_at_the_sum_of_both_samples_alone():
    a, b = np.array([500, 40, 30, 0, 0]), np.array([500, 10, 20, 50, 0])
    result, swapped = homogeneity(a, b), homogeneity(b, a)
    assert result.cells == swapped.cells == 3 + (50 * 570 / 1150 >= 25) - 1
    assert result.statistic == pytest.approx(swapped.statistic)


def test_strata_add_and_empty_samples_compare_nothing():
    a, b = [300, 200, 100], [150, 160, 90]
    one = homogeneity(a, b)
    two = homogeneity([a, b, [5, 5, 5]], [b, a, [0, 0, 0]])
    assert two.statistic == pytest.approx(2 * one.statistic)
    assert (two.df, two.strata, two.n) == (4, 3, 2015)
    assert homogeneity([1, 2], [2, 1]).p_value == 1.0  # too few to keep two cells


@pytest.mark.parametrize(
    "call",
    [
        lambda: homogeneity([1, 2], [1, 2, 3]),
        lambda: homogeneity([1, -2], [1, 2]),
        lambda: homogeneity([1, 0.5], [1, 2]),
        lambda: homogeneity([1, 2], [1, 2], statistic="KS"),  # type: ignore[arg-type]
    ],
)
def test_invalid_input_is_refused(call):
    with pytest.raises(UsageError):
        call()
