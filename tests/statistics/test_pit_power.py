"""What a band around PIT numbers sees, against simulated counts of bins."""

import numpy as np
import pytest

from specverify.errors import UsageError
from specverify.statistics.pit import pit_band
from specverify.statistics.pit_power import detectable_band, samples_needed_band

RUNS = 300


def left(gap: float, n: int, alpha: float, edge: int) -> float:
    """Share of runs that leave the band where the numbers are off by this much at one edge."""
    rng = np.random.default_rng(edge)
    law = np.full(16, 1 / 16)
    law[:edge] += gap / edge
    law[edge:] -= gap / (16 - edge)
    counts = rng.multinomial(n, law, size=RUNS)
    return sum(pit_band(row, alpha).p_value <= alpha for row in counts) / RUNS


@pytest.mark.parametrize("alpha", [1e-3, 1e-7])
@pytest.mark.parametrize("edge", [1, 8, 13])
def test_the_band_is_left_at_least_as_often_as_promised(alpha, edge):
    n = samples_needed_band(0.02, alpha)
    assert left(0.02, n, alpha, edge) > 0.99
    assert left(0.01, n, alpha, edge) < 0.6
    assert left(0.02, n // 4, alpha, edge) < 0.6


def test_the_promise_is_a_lower_bound_of_the_power():
    """At an extreme edge counts scatter little, so that fewer numbers would do."""
    n = samples_needed_band(0.02, 1e-6)
    assert left(0.02, int(0.8 * n), 1e-6, 1) > 0.99


@pytest.mark.parametrize("gap", [0.7, 0.02, 1e-5])
def test_both_directions_invert_each_other(gap):
    n = samples_needed_band(gap, 1e-6)
    assert detectable_band(n, 1e-6) <= gap
    assert n == 1 or (detectable_band(n - 1, 1e-6) or 1) > gap


def test_the_formula():
    # sqrt(ln 2e6) + sqrt(ln 1000) = 3.809 + 2.628
    assert detectable_band(10**6, 1e-6) == pytest.approx(6.437 / np.sqrt(2e6), rel=1e-3)
    assert detectable_band(4, 1e-6) is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: detectable_band(0, 1e-6),
        lambda: detectable_band(10, 0.0),
        lambda: samples_needed_band(1.0, 1e-6),
        lambda: samples_needed_band(0.1, 1e-6, 1.0),
    ],
)
def test_invalid_input_is_refused(call):
    with pytest.raises(UsageError):
        call()
