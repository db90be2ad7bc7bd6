import dataclasses
import json

import numpy as np
import pytest
from scipy import stats

from specverify.errors import UsageError
from specverify.statistics.goodness import chi_squared, g_test, pool

TESTS = [(chi_squared, "pearson"), (g_test, "log-likelihood")]


def zipf(size: int) -> np.ndarray:
    weights = 1 / np.arange(1, size + 1)
    return weights / weights.sum()


@pytest.mark.parametrize(("test", "lambda_"), TESTS)
@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_scipy_on_full_cells(test, lambda_, seed):
    rng = np.random.default_rng(seed)
    law = rng.dirichlet(np.full(12, 5.0))
    counts = rng.multinomial(20_000, rng.dirichlet(1e4 * law))
    result = test(counts, law)
    expected = stats.power_divergence(counts, 20_000 * law, lambda_=lambda_)
    assert result.statistic == pytest.approx(expected.statistic, rel=1e-9)
    assert result.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    assert (result.df, result.cells, result.n) == (11, 12, 20_000)


@pytest.mark.parametrize(("test", "lambda_"), TESTS)
def test_agrees_with_scipy_on_pooled_cells(test, lambda_):
    law = np.array([0.5, 0.3, 0.1, 0.06, 0.04])
    counts = np.array([110, 55, 23, 9, 3])
    result = test(counts, law)  # expected 100, 60, 20, 12, 8: the last three merge
    expected = stats.power_divergence([110, 55, 35], [100, 60, 40], lambda_=lambda_)
    assert result.statistic == pytest.approx(expected.statistic, rel=1e-12)
    assert result.p_value == pytest.approx(expected.pvalue, rel=1e-12)
    assert result.cells == 3


@pytest.mark.parametrize(("test", "lambda_"), TESTS)
def test_strata_add_statistics_and_degrees_of_freedom(test, lambda_):
    rng = np.random.default_rng(7)
    laws = [np.array([0.5, 0.5]), rng.dirichlet(np.full(6, 9.0)), np.array([1.0])]
    counts = [rng.multinomial(n, law) for n, law in zip((500, 3000, 40), laws, strict=True)]
    result = test(counts, laws)
    parts = [
        stats.power_divergence(c, c.sum() * law, lambda_=lambda_)
        for c, law in zip(counts[:2], laws[:2], strict=True)
    ]
    assert result.statistic == pytest.approx(sum(part.statistic for part in parts), rel=1e-9)
    assert (result.df, result.strata, result.n) == (6, 3, 3540)
    assert result.p_value == pytest.approx(stats.chi2.sf(result.statistic, 6), rel=1e-12)


def test_p_values_stay_accurate_far_in_the_tail():
    result = chi_squared([700, 300], [0.5, 0.5])
    assert result.p_value == pytest.approx(2 * stats.norm.sf(np.sqrt(160)), rel=1e-9)
    assert 0 < result.p_value < 1e-35


@pytest.mark.parametrize("test", [chi_squared, g_test])
def test_level_under_the_null(test):
    """Uneven laws, two strata, one with a pooled tail: exceedances are binomial at the level."""
    rng = np.random.default_rng(2024)
    laws = [zipf(200), np.array([0.7, 0.2, 0.1])]
    counts = [rng.multinomial(n, law, size=4000) for n, law in zip((5000, 400), laws, strict=True)]
    p_values = np.array([test(pair, laws).p_value for pair in zip(*counts, strict=True)])
    assert test([rows[0] for rows in counts], laws).cells == pool(laws[0], 5000).cells + 3
    for level in (0.5, 0.1, 0.01):
        exceeded = int((p_values <= level).sum())
        assert stats.binom.ppf(1e-4, 4000, level) <= exceeded
        assert exceeded <= stats.binom.isf(1e-4, 4000, 1.1 * level)


def test_conditioning_on_a_random_number_of_observations_keeps_the_level():
    rng = np.random.default_rng(5)
    law = zipf(8)
    p_values = [
        chi_squared(rng.multinomial(n, law), law).p_value for n in rng.binomial(4000, 0.3, 4000)
    ]
    assert stats.binom.ppf(1e-4, 4000, 0.01) <= sum(p <= 0.01 for p in p_values)
    assert sum(p <= 0.01 for p in p_values) <= stats.binom.isf(1e-4, 4000, 0.011)


@pytest.mark.parametrize("n", [100, 1000, 20_000])
def test_far_tail_by_exact_enumeration(n):
    """One cell of 25 expected: G keeps its level down to 1e-9, Pearson's statistic does not."""
    law = np.array([25 / n, 1 - 25 / n])
    rare = np.arange(min(n, 200) + 1)
    masses = stats.binom.pmf(rare, n, law[0])
    for level in (1e-3, 1e-6, 1e-9):
        exact = {
            test: masses[[test([k, n - k], law).p_value <= level for k in rare.tolist()]].sum()
            for test in (chi_squared, g_test)
        }
        assert 0.5 * level < exact[g_test] < 1.7 * level
        if n > 100 and level == 1e-9:
            assert exact[chi_squared] > 30 * level


@pytest.mark.parametrize("test", [chi_squared, g_test])
def test_a_deviation_in_one_stratum_is_seen(test):
    rng = np.random.default_rng(3)
    laws = [zipf(16)] * 4
    wrong = 0.9 * laws[0] + 0.1 / 16
    counts = [rng.multinomial(20_000, law) for law in [*laws[:3], wrong]]
    assert test(counts, laws).p_value < 1e-12


def test_pool_looks_at_expected_counts_only():
    pooling = pool([0.5, 0.25, 0.24, 0.007, 0.003], 10_000)
    assert pooling.labels.tolist() == [0, 1, 2, 3, 4]
    assert pool([0.5, 0.25, 0.24, 0.007, 0.003], 1000).labels.tolist() == [0, 1, 2, 2, 2]
    assert pool([0.5, 0.25, 0.22, 0.02, 0.01], 1000).labels.tolist() == [0, 1, 2, 3, 3]


def test_pool_leaves_impossible_cells_out():
    pooling = pool([0.0, 0.5, 0.0, 0.499, 0.001], 1000)
    assert pooling.labels.tolist() == [-1, 0, -1, 1, 1]
    assert (pooling.cells, pooling.df) == (2, 1)


@pytest.mark.parametrize(("law", "n"), [([1.0], 1000), ([0.6, 0.4], 30), ([0.999, 0.001], 100)])
def test_a_stratum_of_one_cell_compares_nothing(law, n):
    assert pool(law, n).df == 0
    result = chi_squared([n] + [0] * (len(law) - 1), law)
    assert (result.df, result.statistic, result.p_value) == (0, 0.0, 1.0)


def test_no_observations_compare_nothing():
    assert g_test([0, 0, 0], zipf(3)).p_value == 1.0


def test_hits_on_impossible_cells_are_reported_and_taken_out():
    with_hits = chi_squared([500, 480, 7], [0.5, 0.5, 0.0])
    without = chi_squared([500, 480], [0.5, 0.5])
    assert (with_hits.impossible, with_hits.n, without.impossible) == (7, 987, 0)
    assert with_hits.statistic == without.statistic
    assert with_hits.df == 1


@pytest.mark.parametrize(("minimum", "n"), [(0, 10), (25, -1)])
def test_pool_refuses_what_means_nothing(minimum, n):
    with pytest.raises(UsageError, match="minimum > 0"):
        pool([0.5, 0.5], n, minimum)


def test_results_are_json():
    record = json.loads(json.dumps(dataclasses.asdict(g_test([40, 60], [0.5, 0.5]))))
    assert record["name"] == "G"
    assert record["p_value"] == pytest.approx(stats.chi2.sf(record["statistic"], record["df"]))
