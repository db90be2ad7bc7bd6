import math

import numpy as np
import pytest
from scipy.special import gammaln

from specverify.errors import UsageError
from specverify.statistics.dirichlet import (
    CONCENTRATIONS,
    dirichlet_terms,
    log_dirichlet,
    log_kt,
)


def direct(counts, law, k):
    counts, law = np.asarray(counts, float), np.asarray(law)
    n = counts.sum()
    cells = gammaln(counts + k * law) - gammaln(k * law) - counts * np.log(law)
    return gammaln(k) - gammaln(n + k) + cells.sum()


def summed(counts, law, k):
    """The same, summed exactly: the product of 1 + i/(k P_b) over that of 1 + i/k."""
    terms = [np.log1p(np.arange(c) / (k * p)) for c, p in zip(counts, law, strict=True)]
    terms.append(-np.log1p(np.arange(sum(counts)) / k))
    return math.fsum(value for part in terms for value in part.tolist())


@pytest.mark.parametrize("k", CONCENTRATIONS)
def test_equals_the_formula(k):
    counts, law = [3, 0, 40, 7], [0.1, 0.2, 0.5, 0.2]
    assert log_dirichlet(counts, law, [k]) == pytest.approx(direct(counts, law, k), abs=1e-6)


def test_mixes_concentrations_with_equal_weights():
    counts, law = [30, 5], [0.5, 0.5]
    each = [math.exp(direct(counts, law, k)) for k in (1, 10)]
    assert log_dirichlet(counts, law, [1, 10]) == pytest.approx(math.log(sum(each) / 2), rel=1e-12)


def test_is_a_product_over_strata_within_each_concentration():
    counts, laws = [[30, 5], [1, 2, 9]], [[0.5, 0.5], [0.25, 0.25, 0.5]]
    each = [
        math.exp(sum(direct(c, p, k) for c, p in zip(counts, laws, strict=True))) for k in (1, 10)
    ]
    assert log_dirichlet(counts, laws, [1, 10]) == pytest.approx(math.log(sum(each) / 2), rel=1e-12)


@pytest.mark.parametrize("k", [0.5, 1e3, 1e6, 1e9])
@pytest.mark.parametrize("skew", [0.0, 1e-3, 0.3])
def test_keeps_its_digits_where_gammaln_loses_them(k, skew):
    law = np.full(16, 1 / 16)
    moved = law * (1 + skew * np.linspace(-1, 1, 16))
    counts = np.random.default_rng(0).multinomial(400_000, moved).tolist()
    expected = summed(counts, law, k)
    assert log_dirichlet(counts, law, [k]) == pytest.approx(expected, abs=1e-9, rel=1e-12)


def test_the_accuracy_check_would_catch_the_direct_formula():
    law, counts = np.full(16, 1 / 16), np.full(16, 25_000)
    assert abs(direct(counts, law, 1e9) - summed(counts.tolist(), law, 1e9)) > 1e-6


def test_impossible_cells_are_left_out():
    assert log_dirichlet([3, 9, 4], [0.5, 0.0, 0.5]) == log_dirichlet([3, 4], [0.5, 0.5])


def test_no_observations_are_no_evidence():
    assert log_dirichlet([0, 0], [0.3, 0.7]) == pytest.approx(0, abs=1e-15)
    assert log_kt(0, 0) == pytest.approx(0, abs=1e-15)


def test_has_mean_one_under_the_null():
    """Exact: all outcomes of twelve tokens, so every digit of the mean is known."""
    law = [0.2, 0.5, 0.3]
    outcomes = [(a, b, 12 - a - b) for a in range(13) for b in range(13 - a)]
    chance = [
        math.exp(math.lgamma(13) - sum(math.lgamma(c + 1) for c in o))
        * math.prod(p**c for p, c in zip(law, o, strict=True))
        for o in outcomes
    ]
    values = [math.exp(log_dirichlet(o, law)) for o in outcomes]
    assert np.dot(chance, values) == pytest.approx(1, rel=1e-12)


def test_crosses_no_more_often_than_promised_wherever_one_looks():
    rng = np.random.default_rng(1)
    shards = rng.multinomial(200, np.full(16, 1 / 16), size=(4000, 25)).cumsum(1)
    terms = dirichlet_terms(shards, np.full(16, 1 / 16))
    best = (np.logaddexp.reduce(terms, -1) - math.log(len(CONCENTRATIONS))).max(1)
    for alpha in (0.1, 0.01):
        crossed = int((best >= -math.log(alpha)).sum())
        assert crossed <= 4000 * alpha + 3 * math.sqrt(4000 * alpha)


def test_finds_a_shifted_bin_and_not_a_fair_one():
    law = np.full(16, 1 / 16)
    shifted = law.copy()
    shifted[-1] *= 1.2
    shifted[0] *= 0.8
    rng = np.random.default_rng(2)
    assert log_dirichlet(rng.multinomial(20_000, shifted), law) > 13.8
    assert log_dirichlet(rng.multinomial(20_000, law), law) < 2


@pytest.mark.parametrize("rate", [0.5, 0.1, 0.9])
def test_kt_is_the_beta_mixture(rate):
    n1, n0 = 60, 13
    expected = (
        gammaln(n1 + 0.5) + gammaln(n0 + 0.5) - gammaln(n1 + n0 + 1) - math.log(math.pi)
        - n1 * math.log(rate) - n0 * math.log(1 - rate)
    )  # fmt: skip
    assert log_kt(n1, n1 + n0, rate) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("rate", [0.5, 0.1])
def test_kt_has_mean_one_and_finds_another_rate(rate):
    n = 40
    chance = [math.comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in range(n + 1)]
    values = [math.exp(log_kt(k, n, rate)) for k in range(n + 1)]
    assert np.dot(chance, values) == pytest.approx(1, rel=1e-12)
    assert log_kt(round((rate + 0.1) * 4000), 4000, rate) > 13.8
    assert log_kt(round(rate * 4000), 4000, rate) < 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: log_dirichlet([1, 2], [0.5, 0.5], []), "positive numbers"),
        (lambda: log_dirichlet([1, 2], [0.5, 0.5], [0.0]), "positive numbers"),
        (lambda: log_dirichlet([1, 2], [0.5, 0.6]), "no distribution"),
        (lambda: log_dirichlet([1.5, 2], [0.5, 0.5]), "whole"),
        (lambda: log_kt(3, 2), "ones=3"),
        (lambda: log_kt(1, 2, 1.0), "rate must lie"),
    ],
)
def test_invalid_input_is_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call()
