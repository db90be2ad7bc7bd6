import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from specverify.errors import UsageError
from specverify.statistics.small_samples import (
    exact_p_value,
    monte_carlo_p_value,
    small_sample_p,
)

LAW = np.array([0.6, 0.25, 0.1, 0.05])
NAMES = ["G", "chi-squared"]


def statistic(counts, law, name):
    n = sum(counts)
    pairs = [(int(count), n * p) for count, p in zip(counts, law, strict=True)]
    if name == "G":
        return 2 * sum(count * math.log(count / e) for count, e in pairs if count)
    return sum((count - e) ** 2 / e for count, e in pairs)


def by_hand(counts, law, name):
    """Over all sequences of outcomes, one observation after the other."""
    observed, total = statistic(counts, law, name), 0.0
    for sequence in product(range(len(law)), repeat=int(np.sum(counts))):
        table = [sequence.count(cell) for cell in range(len(law))]
        if statistic(table, law, name) >= observed - 1e-9:
            total += math.prod(law[cell] for cell in sequence)
    return total


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("counts", [[3, 1, 1, 1], [1, 1, 1, 3], [6, 0, 0, 0]])
def test_exact_p_value_by_hand(counts, name):
    assert exact_p_value(counts, LAW, name) == pytest.approx(by_hand(counts, LAW, name), rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("counts", "laws"),
    [
        ([3, 2, 0, 2], LAW),
        ([[3, 2, 0, 2], [1, 4]], [LAW, [0.7, 0.3]]),
    ],
)
def test_simulation_agrees_with_enumeration(counts, laws, name):
    exact, draws = exact_p_value(counts, laws, name), 19_999
    simulated = monte_carlo_p_value(counts, laws, draws=draws, seed=1, statistic=name)
    assert abs(simulated - exact) < 4.5 * math.sqrt(exact / draws) + 2 / draws


@pytest.mark.parametrize("name", NAMES)
def test_simulation_of_mostly_empty_cells(name):
    """Two of three tokens agree, or all three: 1 - (39 38)/40^2."""
    counts, draws = [2, 1] + 38 * [0], 19_999
    simulated = monte_carlo_p_value(
        counts, np.full(40, 1 / 40), draws=draws, seed=1, statistic=name
    )
    exact = 1 - 39 * 38 / 40**2
    assert abs(simulated - exact) < 4.5 * math.sqrt(exact / draws)


@pytest.mark.parametrize("p_value", ["exact", "simulated"])
def test_level_is_kept_where_the_asymptotic_one_is_not(p_value):
    rng, runs = np.random.default_rng(2), 3_000
    law = np.array([0.96, 0.02, 0.01, 0.01])
    tables = rng.multinomial(12, law, runs)
    if p_value == "exact":
        values = {tuple(t): exact_p_value(t, law, "chi-squared") for t in np.unique(tables, axis=0)}
    else:
        values = {
            tuple(t): monte_carlo_p_value(t, law, draws=999, seed=4, statistic="chi-squared")
            for t in np.unique(tables, axis=0)
        }
    found = np.array([values[tuple(table)] for table in tables])
    asymptotic = stats.chi2.sf([statistic(t, law, "chi-squared") for t in tables], 3)
    crossed = int((found <= 0.02).sum())
    assert stats.binom.sf(crossed - 1, runs, 0.02 if p_value == "exact" else 0.026) > 1e-3
    assert (asymptotic <= 0.02).mean() > 0.04


def test_the_floor_of_a_simulation():
    assert monte_carlo_p_value([0, 40], [0.9, 0.1], draws=99, seed=0) == 0.01
    assert exact_p_value([0, 40], [0.9, 0.1]) == pytest.approx(1e-40)


def test_the_same_seed_gives_the_same_p_value_and_leaves_the_global_generator_alone():
    before = np.random.get_state()[1].copy()
    values = {monte_carlo_p_value([3, 9], [0.5, 0.5], draws=500, seed=s) for s in (1, 1, 2)}
    assert len(values) == 2
    assert (np.random.get_state()[1] == before).all()


def test_impossible_hits_are_left_out():
    assert exact_p_value([4, 2, 7], [0.5, 0.5, 0.0]) == exact_p_value([4, 2], [0.5, 0.5])
    result = small_sample_p([4, 2, 7], [0.5, 0.5, 0.0], 0)
    assert result is not None
    assert (result.n, result.cells, result.impossible, result.df) == (13, 2, 7, 0)


def test_convenience_picks_what_can_be_computed():
    few = small_sample_p([[3, 1], [0, 0], [5]], [[0.5, 0.5], [0.5, 0.5], [1.0]], 0)
    many = small_sample_p([[1, 2, 3, 4] * 5] * 2, [np.full(20, 1 / 20)] * 2, 0, draws=200)
    assert few is not None
    assert many is not None
    assert (few.name, few.strata, few.p_value) == ("exact G", 1, exact_p_value([3, 1], [0.5, 0.5]))
    assert many.name == "Monte Carlo G"
    assert many.p_value >= 1 / 201
    assert small_sample_p([[0, 0], [5]], [[0.5, 0.5], [1.0]], 0) is None


def test_a_strong_deviation_in_a_large_vocabulary_is_found():
    law = 1 / np.arange(1, 20_001)
    law /= law.sum()
    counts = np.zeros(20_000, int)
    counts[-9:] = 1
    result = small_sample_p(counts, law, 0, draws=2_000)
    assert result is not None
    assert result.p_value == 1 / 2_001
    typical = np.random.default_rng(5).multinomial(9, law)
    found = small_sample_p(typical, law, 0, draws=2_000)
    assert found is not None
    assert found.p_value > 0.01


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exact_p_value([30] * 30, [1 / 30] * 30), "enumerated; use monte_carlo"),
        (lambda: exact_p_value([1, 2], [0.5, 0.5], "KS"), "statistic must be"),  # type: ignore[arg-type]
        (lambda: monte_carlo_p_value([1, 2], [0.5, 0.5], draws=0, seed=0), "draws=0"),
        (lambda: exact_p_value([1, 2, 3], [0.5, 0.5]), "must match"),
    ],
)
def test_invalid_input_is_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call()
