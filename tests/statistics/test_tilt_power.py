"""What a learned tilt sees, against simulated shards."""

import math

import numpy as np
import pytest

from specverify.errors import UsageError
from specverify.statistics.tilt import TiltProcess
from specverify.statistics.tilt_power import (
    detectable_tilt,
    samples_needed_tilt,
    tilt_evidence,
)

THRESHOLD = 18.4
RUNS = 200


@pytest.mark.parametrize(
    ("vocab", "groups", "shards", "tv"),
    [(8, 1, 16, 0.05), (8, 5, 8, 0.08), (32, 2, 32, 0.08), (300, 1, 32, 0.002)],
)
def test_alarms_come_as_predicted_and_rarely_with_half_of_it(vocab, groups, shards, tv):
    rng = np.random.default_rng(vocab + groups)
    law = rng.dirichlet(np.full(vocab, 3.0), size=groups)
    shift = rng.normal(size=law.shape)
    shift -= (law * shift).sum(1, keepdims=True)
    divergence = 4 * tv * tv
    wrong = law * (1 + shift * math.sqrt(divergence / (law * shift**2).sum(1).mean()))
    assert wrong.min() > 0
    n = samples_needed_tilt(divergence, shards, groups * (vocab - 1), THRESHOLD)

    def alarms(total: float) -> float:
        tokens, seen = round(total / shards / groups), 0
        for _ in range(RUNS):
            process = TiltProcess(groups, vocab)
            for _ in range(shards):
                counts = np.stack([rng.multinomial(tokens, row) for row in wrong])
                process.update(counts, tokens * law)
            seen += process.log_e >= THRESHOLD
        return seen / RUNS

    assert alarms(n) >= 0.99
    assert alarms(n / 3) < 0.5


def test_a_prior_that_is_too_weak_is_counted():
    """The best kappa would be 5e8, 500 times the largest: tilts follow noise, and it takes more."""
    free, divergence = 50_000, 1e-4
    n = int(free / divergence)
    assert tilt_evidence(divergence, n, 32, free) < 0
    oracle = sum(n / 32 * divergence / 2 * s / (s + 32) for s in range(1, 32))
    assert tilt_evidence(divergence, n, 32, free) < oracle
    assert samples_needed_tilt(divergence, 32, free, THRESHOLD) > n
    mild = sum(312.5 * 0.01 / 2 * s * 3.125 / (s * 3.125 + 7) for s in range(1, 32))
    assert tilt_evidence(0.01, 10_000, 32, 7) == pytest.approx(mild)


@pytest.mark.parametrize("divergence", [1e-4, 1e-3, 0.05])
@pytest.mark.parametrize(("shards", "free"), [(2, 1), (16, 7), (64, 400)])
def test_both_directions_invert_each_other(divergence, shards, free):
    n = samples_needed_tilt(divergence, shards, free, THRESHOLD)
    assert detectable_tilt(n, shards, free, THRESHOLD) == pytest.approx(divergence, rel=0.01)
    assert detectable_tilt(4 * n, shards, free, THRESHOLD) < divergence


def test_nothing_is_bet_on_the_first_shard():
    assert tilt_evidence(0.1, 1_000, 1, 7) == 0
    assert detectable_tilt(1_000, 1, 7, THRESHOLD) is None
    assert tilt_evidence(0.1, 1_000, 64, 7) < 1_000 * 0.1 / 2


def test_bad_numbers_are_refused():
    with pytest.raises(UsageError, match="threshold=0"):
        detectable_tilt(10, 2, 1, 0.0)
    with pytest.raises(UsageError, match="shards=1"):
        samples_needed_tilt(0.1, 1, 3, THRESHOLD)
    with pytest.raises(UsageError, match="power=1"):
        detectable_tilt(10, 2, 1, 18.0, power=1.0)
