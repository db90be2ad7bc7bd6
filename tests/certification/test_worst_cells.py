"""The two tests of a comparison, and the cells it points to, against scipy."""

import numpy as np
import pytest
from scipy.stats import chi2, power_divergence

from specverify.certification.worst_cells import SHOWN, Strata, compare, worst_cells

LAW = np.array([0.5, 0.25, 0.125, 0.125])


def strata(counts, laws):
    return Strata(counts, laws, lambda stratum, cell: f"cell {cell} of {stratum}")


def test_chi_squared_and_g_are_scipys():
    rng = np.random.default_rng(0)
    laws = [LAW, rng.dirichlet(np.full(6, 5.0))]
    counts = [rng.multinomial(n, law) for n, law in zip((1000, 3000), laws, strict=True)]
    outcome = compare(strata(counts, laws), 2.5)
    (decides,) = outcome.tests
    assert (decides.name, decides.statistic, decides.n) == ("e-process", 2.5, 4000)
    assert decides.p_value == pytest.approx(np.exp(-2.5))
    assert [test.name for test in outcome.reported] == ["chi-squared", "G"]
    for test, name in zip(outcome.reported, ("pearson", "log-likelihood"), strict=True):
        parts = [
            power_divergence(c, c.sum() * law, lambda_=name)
            for c, law in zip(counts, laws, strict=True)
        ]
        statistic = sum(part.statistic for part in parts)
        assert test.statistic == pytest.approx(statistic)
        assert test.df == 3 + 5
        assert test.p_value == pytest.approx(chi2.sf(statistic, 8))
        assert test.n == 4000


def test_nothing_to_compare():
    outcome = compare(strata([], []), 0.0)
    assert outcome.not_applicable
    assert not outcome.tests


def test_small_counts_are_compared_without_pooling():
    """Three runs of four cells: no two cells of 25 expected counts, but few enough to enumerate."""
    (exact,) = compare(strata([np.array([0, 0, 0, 3])], [LAW]), 0.0).reported
    assert exact.name == "exact G"
    assert exact.p_value == pytest.approx(2 * 0.125**3, rel=1e-9)
    many = [np.full(300, 1 / 300)] * 2
    (simulated,) = compare(strata([np.eye(300, dtype=int)[0] * 9] * 2, many), 0.0).reported
    assert simulated.name == "Monte Carlo G"
    assert simulated.p_value == pytest.approx(1 / 2000)


def test_between_looks_only_what_decides_is_computed():
    outcome = compare(strata([np.array([5, 3, 1, 1])], [LAW]), 0.0, full=False)
    assert outcome.tests
    assert not outcome.reported
    assert not outcome.details


def test_the_worst_cell_comes_first():
    counts = [np.array([50, 25, 13, 12]), np.array([40, 25, 12, 23])]
    worst = worst_cells(strata(counts, [LAW, LAW]))
    assert len(worst) == SHOWN
    first = {"stratum": 1, "cell": 3, "label": "cell 3 of 1", "observed": 23, "expected": 12.5}
    assert worst[0] == first
    assert worst[1]["stratum"] == 1
    assert worst[1]["cell"] == 0


def test_an_impossible_cell_that_was_hit_outranks_noise():
    worst = worst_cells(strata([np.array([5_020, 4_970, 10])], [np.array([0.5, 0.5, 0.0])]))
    assert (worst[0]["cell"], worst[0]["observed"], worst[0]["expected"]) == (2, 10, 0.0)


def test_no_observations():
    assert worst_cells(strata([np.zeros(4, np.int64)], [LAW]))[0]["observed"] == 0
