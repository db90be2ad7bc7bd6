"""What two samples show, against simulated ones."""

import numpy as np
import pytest

from specverify.errors import UsageError
from specverify.statistics.homogeneity import homogeneity
from specverify.statistics.homogeneity_power import (
    detectable_two_samples,
    samples_needed_two_samples,
)
from specverify.statistics.power import detectable_any, samples_needed_any

RUNS, ALPHA = 300, 1e-6


@pytest.mark.parametrize("statistic", ["G", "chi-squared"])
@pytest.mark.parametrize(("cells", "ratio"), [(2, 1.0), (16, 1.0), (16, 0.25), (16, 4.0)])
def test_the_hardest_laws_of_that_distance_are_told_apart(statistic, cells, ratio):
    rng, tv = np.random.default_rng(cells), 0.06
    n = samples_needed_two_samples(tv, cells, ALPHA, ratio=ratio)

    def seen(distance: float, n: int) -> float:
        # Half of the cells raised evenly, half lowered: what Cauchy-Schwarz makes hardest.
        moved = distance * np.resize([1, -1], cells) * 2 / cells
        laws = 1 / cells + moved / 2, 1 / cells - moved / 2
        assert np.abs(laws[0] - laws[1]).sum() / 2 == pytest.approx(distance)
        draws = [
            rng.multinomial(s, a, RUNS) for s, a in zip((n, int(ratio * n)), laws, strict=True)
        ]
        results = [homogeneity(a, b, statistic=statistic) for a, b in zip(*draws, strict=True)]
        return sum(result.p_value <= ALPHA for result in results) / RUNS

    assert seen(tv, n) > 0.99
    assert seen(tv / 2, n) < 0.2
    assert seen(tv, n // 3) < 0.5


@pytest.mark.parametrize("cells", [2, 64, 5000])
@pytest.mark.parametrize("tv", [0.9, 0.05, 1e-4])
def test_both_directions_invert_each_other(cells, tv):
    n = samples_needed_two_samples(tv, cells, ALPHA)
    found = detectable_two_samples(n, n, cells, ALPHA)
    filled = n == 25 * cells
    assert found <= tv
    assert filled or found == pytest.approx(tv, rel=0.02)
    fewer = detectable_two_samples(n - 1, n - 1, cells, ALPHA)
    assert fewer is None or fewer > tv


def test_two_samples_cost_twice_as_much_each_as_a_known_law():
    known = samples_needed_any(0.01, 64, ALPHA)
    assert samples_needed_two_samples(0.01, 64, ALPHA) == pytest.approx(2 * known, rel=1e-4)
    assert samples_needed_two_samples(0.01, 64, ALPHA, ratio=1e6) == pytest.approx(known, rel=1e-4)
    assert detectable_two_samples(10**6, 10**12, 64, ALPHA) == pytest.approx(
        detectable_any(10**6, 64, ALPHA), rel=1e-4
    )


def test_too_small_samples_see_nothing():
    assert detectable_two_samples(25 * 64 - 1, 10**9, 64, ALPHA) is None
    assert detectable_two_samples(50, 50, 2, 1e-300) is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: detectable_two_samples(0, 10, 2, ALPHA),
        lambda: detectable_two_samples(10, 10, 1, ALPHA),
        lambda: samples_needed_two_samples(0.0, 2, ALPHA),
        lambda: samples_needed_two_samples(0.1, 2, ALPHA, ratio=0.0),
        lambda: samples_needed_two_samples(0.1, 2, 0.5, 0.4),
    ],
)
def test_invalid_input_is_refused(call):
    with pytest.raises(UsageError):
        call()
