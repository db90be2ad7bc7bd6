import math

import numpy as np
import pytest
from scipy import stats

from specverify.errors import UsageError
from specverify.statistics.bounds import clopper_pearson_upper, tv_upper_bound
from specverify.statistics.sequences import (
    HalfSpaceSums,
    excess_samples_needed,
    excess_upper,
    leak_upper,
    look_schedule,
    rate_upper_bound_at_looks,
    tv_upper_bound_at_looks,
)

LOOKS = np.unique(np.geomspace(100, 10_000, 40).astype(int))


def best_width(variance, alpha):
    slopes = np.geomspace(1e-6, 0.9999, 20_000)
    return float(((-math.log(alpha) - (np.log1p(-slopes) + slopes) * variance) / slopes).min())


@pytest.mark.parametrize("alpha", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("share", [0.25, 0.02])
def test_width_is_close_to_that_of_the_best_fixed_lambda(alpha, share):
    for n in 10 ** np.arange(2, 10):
        width = n * excess_upper(HalfSpaceSums(int(n), -float(n) / 2, n * share), alpha) + n / 2
        best = best_width(n * share, alpha)
        assert best <= width * (1 + 1e-6)
        assert width <= best * (1.17 if alpha < 1e-3 else 1.26)


def test_width_against_a_single_look():
    n = 10**6
    hoeffding = math.sqrt(math.log(1e6) / (2 * n))
    assert 1.05 < excess_upper(HalfSpaceSums(n, 0.0, n / 4), 1e-6) / hoeffding < 1.15
    assert excess_upper(HalfSpaceSums(n, 0.0, n / 50), 1e-6) < hoeffding / 2.5


def stopped_below(bound, target, truth, runs, rng):
    """Runs that stop at the first look with bound <= target; how many of them claim too little."""
    wrong = 0
    for _ in range(runs):
        # Conditional means that change with time and with the past of the prefix.
        guess = rng.uniform(0.2, 0.8, LOOKS[-1])
        hit = rng.random(LOOKS[-1]) < guess + truth
        excess, variance = np.cumsum(hit - guess), np.cumsum((hit - guess) ** 2)
        for n in LOOKS[excess[LOOKS - 1] <= target * LOOKS]:  # no bound is below the estimate
            if bound(HalfSpaceSums(int(n), float(excess[n - 1]), float(variance[n - 1]))) <= target:
                wrong += 1
                break
    return wrong


def single_look(sums):
    return (sums.excess + stats.norm.isf(0.05) * math.sqrt(sums.variance)) / sums.n


def test_coverage_when_the_run_stops_on_the_bound():
    """The truth is just above the target, so that every stop is an error; alpha is 0.05."""
    runs = 300
    wrong = stopped_below(
        lambda sums: excess_upper(sums, 0.05), 0.0499, 0.05, runs, np.random.default_rng(0)
    )
    assert stats.binom.sf(wrong - 1, runs, 0.05) > 1e-3
    fixed = stopped_below(single_look, 0.0499, 0.05, runs, np.random.default_rng(0))
    assert fixed > 0.1 * runs  # the bound for one look, looked at forty times
    assert stats.binom.sf(fixed - 1, runs, 0.05) < 1e-3


def test_a_correct_sampler_meets_the_target_where_predicted():
    rng, target = np.random.default_rng(2), 0.02
    n = excess_samples_needed(target, 1e-6, power=0.99)
    met = 0
    for _ in range(500):
        hits = int(rng.binomial(n, 0.5))
        met += excess_upper(HalfSpaceSums(n, hits - n / 2, n / 4), 1e-6) <= target
    assert met >= 485
    early = excess_upper(HalfSpaceSums(n // 2, 0.0, n / 8), 1e-6)
    assert early > target
    assert excess_samples_needed(target, 1e-6, variance=0.02) < n / 3


def test_sums_add_and_the_bound_is_capped():
    total = HalfSpaceSums(2, 0.5, 0.3) + HalfSpaceSums(3, -0.25, 0.7)
    assert total == HalfSpaceSums(5, 0.25, 1.0)
    assert excess_upper(total, 1e-6) == 1.0
    assert excess_upper(HalfSpaceSums(), 1e-6) == 1.0
    assert excess_upper(HalfSpaceSums(10**6), 1e-6) < 1e-4  # the guess is never wrong


GRID = np.geomspace(1e-3, 1.0, 25)


def leak_logs(p, q, counts):
    ratio = np.log1p(GRID[:, None] * (q / p - 1))
    return ratio @ counts


@pytest.mark.parametrize("leak", [0.0, 0.03, 0.2])
def test_the_leak_rate_is_covered_at_every_look(leak):
    rng = np.random.default_rng(3)
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    wrong, last = 0, []
    for _ in range(500):
        steps = rng.multinomial(250, (1 - leak) * p + leak * q, 12).cumsum(axis=0)
        bounds = [leak_upper(GRID, leak_logs(p, q, counts), None, 0.05) for counts in steps]
        wrong += min(bounds) < leak
        last.append(bounds[-1])
    assert stats.binom.sf(wrong - 1, 500, 0.05) > 1e-3
    assert np.median(last) < leak + 0.15


def test_leak_bound_by_hand():
    assert leak_upper([0.1, 0.2, 0.5], [0.0, -8.0, -30.0], 0.0, math.exp(-5)) == 0.2
    assert leak_upper([0.1, 0.2, 0.5], [0.0, -4.0, -4.5], 0.0, math.exp(-5)) == 1.0
    assert leak_upper([0.1, 0.2, 0.5], [0.0, -8.0, -math.inf], None, 0.01) == 0.2
    # A mixture that excludes every rate does not reach before the maximum of the likelihood.
    assert leak_upper([0.1, 0.2, 0.5, 0.7], [1.0, 2.0, 1.5, 0.5], 50.0, 0.01) == 0.5


def test_looks_are_geometric_distinct_and_end_as_planned():
    assert look_schedule(64) == (6, 8, 12, 16, 23, 32, 46, 64)
    assert look_schedule(2) == (1, 2)
    assert look_schedule(1) == (1,)
    assert look_schedule(100, 1) == (100,)


def test_a_tv_bound_looked_at_costs_the_log_of_its_looks():
    law, counts = [0.5, 0.5], [600, 400]
    one, many = tv_upper_bound(counts, law, 0.01), tv_upper_bound_at_looks(counts, law, 0.01, 8)
    assert many.alpha == 0.01 / 8
    assert many.bound - many.estimate == pytest.approx(
        (one.bound - one.estimate) * math.sqrt(math.log(800) / math.log(100))
    )


def test_coverage_of_the_tv_bound_over_its_looks():
    """At alpha 0.5, where the union bound has least to give: the smallest of 8 bounds holds."""
    rng, runs = np.random.default_rng(4), 500
    law, actual = np.array([0.5, 0.5]), np.array([0.6, 0.4])
    schedule = look_schedule(64)
    wrong = {8: 0, 1: 0}
    for _ in range(runs):
        counts = rng.multinomial(20, actual, 64).cumsum(axis=0)
        for looks in wrong:
            bounds = [tv_upper_bound_at_looks(counts[s - 1], law, 0.5, looks) for s in schedule]
            wrong[looks] += min(bound.bound for bound in bounds) < 0.1
    assert stats.binom.sf(wrong[8] - 1, runs, 0.5) > 1e-3
    assert wrong[1] > 3 * wrong[8]


def stops_wrong(rates, looks, alpha, rng, runs=2000):
    """How often the run stops at the look whose bound is lowest, and it is below the true rate.

    That is the worst that a choice of when to stop can do, and no run can know it.
    """
    schedule, wrong = [20 * shards for shards in look_schedule(64)], 0
    for _ in range(runs):
        hits = (rng.random(schedule[-1]) < rates).cumsum()
        lowest = min(rate_upper_bound_at_looks(int(hits[n - 1]), n, alpha, looks) for n in schedule)
        wrong += lowest < rates.mean()
    return wrong


@pytest.mark.parametrize("rate", [0.01, 0.2])
def test_coverage_of_the_rate_bound_whatever_look_a_run_stops_at(rate):
    rates, alpha, runs = np.full(1280, rate), 0.2, 1000
    wrong = stops_wrong(rates, 8, alpha, np.random.default_rng(5), runs)
    assert stats.binom.sf(wrong - 1, runs, alpha) > 1e-3
    unshared = stops_wrong(rates, 1, alpha, np.random.default_rng(5), runs)
    assert stats.binom.sf(unshared - 1, runs, alpha) < 1e-3  # the bound for one look, at eight


def test_a_rate_bound_holds_for_the_mean_of_differing_rates():
    """Prompts in turn, three of which never show the event."""
    rates = np.resize([0.0, 0.0, 0.0, 0.2], 1280)
    wrong = stops_wrong(rates, 8, 0.2, np.random.default_rng(6), 1000)
    assert stats.binom.sf(wrong - 1, 1000, 0.2) > 1e-3


def test_a_rate_bound_at_looks_is_that_of_its_share_of_alpha():
    assert rate_upper_bound_at_looks(3, 500, 0.08, 8) == clopper_pearson_upper(3, 500, 0.01)
    assert rate_upper_bound_at_looks(0, 0, 0.01, 8) == 1.0
    alone, shared = (rate_upper_bound_at_looks(0, 10**6, 1e-6, looks) for looks in (1, 8))
    assert shared / alone == pytest.approx(math.log(8e6) / math.log(1e6), rel=1e-4)


@pytest.mark.parametrize(
    "call",
    [
        lambda: excess_upper(HalfSpaceSums(5, 0.0, 6.0), 0.1),
        lambda: excess_upper(HalfSpaceSums(5, 5.5, 1.0), 0.1),
        lambda: excess_upper(HalfSpaceSums(5, math.nan, 1.0), 0.1),
        lambda: excess_upper(HalfSpaceSums(5, 0.0, 1.0), 0.0),
        lambda: excess_samples_needed(0.0, 0.1),
        lambda: excess_samples_needed(0.1, 0.1, variance=0.3),
        lambda: excess_samples_needed(7e-6, 1e-6),
        lambda: leak_upper([0.2, 0.1], [0.0, 0.0], None, 0.1),
        lambda: leak_upper([0.0, 0.1], [0.0, 0.0], None, 0.1),
        lambda: leak_upper([0.1], [0.0, 0.0], None, 0.1),
        lambda: leak_upper([0.1], [math.nan], None, 0.1),
        lambda: look_schedule(0),
        lambda: tv_upper_bound_at_looks([1], [1.0], 0.1, 0),
        lambda: rate_upper_bound_at_looks(1, 2, 0.1, 0),
        lambda: rate_upper_bound_at_looks(3, 2, 0.1, 1),
        lambda: rate_upper_bound_at_looks(1, 2, 1.5, 8),
    ],
)
def test_invalid_input_is_refused(call):
    with pytest.raises(UsageError):
        call()
