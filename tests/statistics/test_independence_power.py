"""What bits of one kind see, by exact binomial laws and by bits of simulated PIT numbers."""

import math

import numpy as np
import pytest
from scipy import stats

from specverify.errors import UsageError
from specverify.statistics.dirichlet import log_kt
from specverify.statistics.independence import bit_names, count_bits, log_independence
from specverify.statistics.independence_power import (
    detectable_bits,
    ones_to_reject,
    samples_needed_bits,
)

THRESHOLD = math.log(1e6)
CLOSE = 0.09999


@pytest.mark.parametrize("rate", [0.5, CLOSE])
@pytest.mark.parametrize("n", [30, 1000, 10**7])
def test_ones_to_reject_is_the_first_that_does(n, rate):
    ones = ones_to_reject(n, THRESHOLD, rate=rate)
    assert log_kt(ones, n, rate) >= THRESHOLD > log_kt(ones - 1, n, rate)


@pytest.mark.parametrize("rate", [0.5, CLOSE])
def test_power_is_exact(rate):
    n = samples_needed_bits(0.05, THRESHOLD, rate=rate)
    ones = ones_to_reject(n, THRESHOLD, rate=rate)
    assert stats.binom.sf(ones - 1, n, rate + 0.05) >= 0.999
    ones = ones_to_reject(n - 1, THRESHOLD, rate=rate)
    assert stats.binom.sf(ones - 1, n - 1, rate + 0.05) < 0.999
    draws = np.random.default_rng(1).binomial(n, [[rate + 0.05], [rate + 0.025]], (2, 300))
    full, half = (sum(log_kt(int(k), n, rate) >= THRESHOLD for k in row) / 300 for row in draws)
    assert full > 0.99
    assert half < 0.2


def test_the_decision_over_all_kinds_sees_tokens_that_are_alike():
    """Pairs of rows that share a half 6 times in 100, where chance has it 50: 3 % too often."""
    rng, shared, threshold = np.random.default_rng(2), 0.06, THRESHOLD + math.log(len(bit_names(1)))
    pairs = samples_needed_bits(shared / 2, threshold)

    def seen(share: float) -> float:
        alarms = 0
        for _ in range(100):
            u = rng.random((2, 2 * pairs, 1))
            same = rng.random(pairs) < share
            # In one order and between neighbours only, so that one kind of bits sees it.
            half = (np.floor(2 * u[1, ::2, 0]) + rng.random(pairs)) / 2
            u[1, 1::2, 0] = np.where(same, half, u[1, 1::2, 0])
            log_e, _ = log_independence(count_bits(u, np.ones((2 * pairs, 1), bool), 1))
            alarms += log_e >= THRESHOLD
        return alarms / 100

    assert seen(shared) > 0.98
    assert seen(shared / 2) < 0.2


@pytest.mark.parametrize("excess", [1e-5, 0.004, 0.3, 0.49])
def test_both_directions_invert_each_other(excess):
    n = samples_needed_bits(excess, THRESHOLD)
    found, fewer = detectable_bits(n, THRESHOLD), detectable_bits(n - 1, THRESHOLD)
    assert found == pytest.approx(excess, rel=0.02)
    assert found <= excess < fewer
    assert detectable_bits(4 * n, THRESHOLD) < 0.7 * excess


def test_too_few_bits_see_nothing():
    assert detectable_bits(5, THRESHOLD) is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: ones_to_reject(0, 10.0),
        lambda: ones_to_reject(5, 0.0),
        lambda: detectable_bits(5, 10.0, 1.0),
        lambda: detectable_bits(5, 10.0, rate=0.0),
        lambda: samples_needed_bits(0.5, 10.0),
        lambda: samples_needed_bits(0.0, 10.0),
        lambda: samples_needed_bits(1e-12, 10.0),
    ],
)
def test_invalid_input_is_refused(call):
    with pytest.raises(UsageError):
        call()
