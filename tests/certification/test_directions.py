"""Bounds and detectable deviations in single directions, read off token scores."""

import numpy as np

from specverify.certification.directions import detectable_leak, directional_bounds
from specverify.sampling.token_scores import ScoredTokens, TokenScores
from specverify.statistics.bets import Bets

BETS = Bets.standard(raw=False)
P = np.array([0.6, 0.4, 0.0, 0.0])
Q = np.array([0.2, 0.799, 0.0005, 0.0005])
"""Some of the draft's mass is on tokens that a truncation excludes: a leak seldom shows there."""
ALPHA = 0.1


def scores(tokens: np.ndarray, p: np.ndarray = P) -> TokenScores:
    found = TokenScores(strata=1, bets=BETS, lags=1)
    zeros = np.zeros(len(tokens), np.int64)
    ones = np.ones(len(tokens), np.int64)
    found.bet(ScoredTokens(tokens, zeros, ones, zeros, p[None], Q[None], None, None))
    return found


def leak(tokens: np.ndarray) -> float:
    return directional_bounds(scores(tokens), ALPHA, None)[-1].value


def test_the_leak_rate_is_covered_where_the_target_is_truncated() -> None:
    """A leak moves mass to excluded tokens as well, whose loss is not made up for."""
    rng = np.random.default_rng(0)
    for rate in (BETS.leak_grid[3], BETS.leak_grid[-4]):
        law = (1 - rate) * P + rate * Q
        bounds = [leak(rng.choice(4, 800, p=law)) for _ in range(200)]
        assert np.mean(np.array(bounds) < rate) <= ALPHA
    right = [leak(rng.choice(4, 4_000, p=P)) for _ in range(20)]
    assert np.median(right) < 0.2


def test_an_impossible_token_excludes_no_rate() -> None:
    tokens = np.random.default_rng(1).choice(4, 4_000, p=P)
    assert leak(tokens) < 1
    tokens[17] = 2
    found = scores(tokens)
    assert found.hits.tolist() == [1]
    assert leak(tokens) == 1


def test_sums_of_parts_are_those_of_the_whole() -> None:
    tokens = np.random.default_rng(2).choice(4, 500, p=(P + Q) / 2)
    whole, first = scores(tokens), scores(tokens[:200])
    first.merge(scores(tokens[200:]))
    np.testing.assert_allclose(first.leaks, whole.leaks)
    assert first.hits == whole.hits
    assert whole.hits[0] > 0


def test_what_is_taken_off_for_rounding_is_not_seen() -> None:
    """A leak that gains less a token than the rounding that is allowed for never crosses."""
    law = np.array([0.5, 0.3, 0.15, 0.05])
    found = scores(np.random.default_rng(3).choice(4, 200_000, p=law), law)
    exact, slack = detectable_leak(found, 20.0, 0.0), detectable_leak(found, 20.0, 2e-3)
    assert exact is not None
    assert slack is not None
    assert exact.value < slack.value
    assert detectable_leak(found, 20.0, 5.0) is None
    least = detectable_leak(found, 20.0, 1e-7)
    assert least is not None
    assert least.value == exact.value
