import math

import numpy as np
import pytest
from scipy import stats

from specverify.errors import UsageError
from specverify.statistics.goodness import chi_squared, g_test
from specverify.statistics.power import (
    chi_squared_divergence,
    detectable,
    detectable_any,
    noncentrality_needed,
    power_chi_squared,
    samples_needed_any,
    samples_needed_chi_squared,
)


@pytest.mark.parametrize(("df", "expected"), [(4, 62), (124, 154)])
def test_noncentrality_of_algorithms_md(df, expected):
    assert noncentrality_needed(df, 1e-6, 0.99) == pytest.approx(expected, abs=0.5)


def test_one_degree_of_freedom_is_a_two_sided_normal_test():
    shift = 4.0
    limit = stats.norm.isf(0.005)
    expected = stats.norm.sf(limit - shift) + stats.norm.cdf(-limit - shift)
    assert power_chi_squared(shift**2, 1, 0.01) == pytest.approx(expected, rel=1e-9)
    assert power_chi_squared(0.0, 3, 0.01) == 0.01


@pytest.mark.parametrize("df", [1, 30, 5000])
def test_the_two_directions_agree(df):
    found = detectable(50_000, df, 1e-6, 0.999)
    assert power_chi_squared(50_000 * found.divergence, df, 1e-6) == pytest.approx(0.999, abs=1e-9)
    assert samples_needed_chi_squared(found.divergence, df, 1e-6, 0.999) in (50_000, 50_001)


@pytest.mark.parametrize("seed", range(20))
def test_total_variation_guidance_is_on_the_safe_side(seed):
    rng = np.random.default_rng(seed)
    p, a = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
    assert np.abs(a - p).sum() / 2 <= math.sqrt(chi_squared_divergence(a, p)) / 2 + 1e-12


def test_total_variation_guidance_is_attained():
    found = detectable(10**6, 1, 1e-6)
    a = [0.5 + found.tv, 0.5 - found.tv]
    assert chi_squared_divergence(a, [0.5, 0.5]) == pytest.approx(found.divergence)


@pytest.mark.parametrize("test", [chi_squared, g_test])
def test_a_leak_is_detected_with_the_predicted_power(test):
    rng = np.random.default_rng(9)
    p, q = rng.dirichlet(np.full(12, 8.0)), rng.dirichlet(np.full(12, 8.0))
    leaked = 0.95 * p + 0.05 * q
    n = samples_needed_chi_squared(chi_squared_divergence(leaked, p), 11, 1e-4, 0.9)
    draws = rng.multinomial(n, leaked, size=1000)
    seen = sum(test(counts, p).p_value <= 1e-4 for counts in draws)
    assert stats.binomtest(seen, 1000, 0.9).pvalue > 1e-3
    at_half = rng.multinomial(n // 2, leaked, size=1000)
    predicted = power_chi_squared(n // 2 * chi_squared_divergence(leaked, p), 11, 1e-4)
    seen_at_half = sum(test(counts, p).p_value <= 1e-4 for counts in at_half)
    assert seen_at_half / 1000 == pytest.approx(predicted, abs=0.06)
    assert predicted < 0.5


@pytest.mark.parametrize("test", [chi_squared, g_test])
@pytest.mark.parametrize("cells", [2, 16])
def test_the_hardest_deviation_is_seen_with_the_default_power(test, cells):
    """Even cells, half of them raised and half lowered evenly, where chi2 is 4 TV^2."""
    rng, tv, runs = np.random.default_rng(cells), 0.04, 300
    p, n = np.full(cells, 1 / cells), samples_needed_any(tv, cells, 1e-6)

    def seen(distance, n):
        draws = rng.multinomial(n, p + distance * np.resize([2, -2], cells) / cells, size=runs)
        return sum(test(counts, p).p_value <= 1e-6 for counts in draws) / runs

    assert seen(tv, n) > 0.99
    assert seen(tv / 2, n) < 0.2
    assert seen(tv, n // 3) < 0.5


def test_mass_on_an_impossible_cell_is_an_infinite_divergence():
    assert chi_squared_divergence([0.5, 0.5], [1.0, 0.0]) == math.inf
    assert chi_squared_divergence([1.0, 0.0], [1.0, 0.0]) == 0.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: detectable(0, 3, 1e-6),
        lambda: detectable(100, 0, 1e-6),
        lambda: samples_needed_chi_squared(0.0, 3, 1e-6),
        lambda: noncentrality_needed(3, 0.5, 0.4),
        lambda: power_chi_squared(-1.0, 3, 0.1),
    ],
)
def test_invalid_input_is_refused(call):
    with pytest.raises(UsageError):
        call()


@pytest.mark.parametrize("cells", [2, 64, 5000])
def test_any_deviation_both_ways(cells):
    n = samples_needed_any(0.003, cells, 1e-6)
    assert detectable_any(n, cells, 1e-6) == pytest.approx(0.003, rel=1e-5)
    assert detectable_any(25 * cells - 1, cells, 1e-6) is None
    assert samples_needed_any(0.9, cells, 1e-6) >= 25 * cells
    with pytest.raises(UsageError, match=r"got 1\.2"):
        samples_needed_any(1.2, cells, 1e-6)
