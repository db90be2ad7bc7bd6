"""What is known of single directions: how much mass may have moved towards the draft."""

import math

import numpy as np

from specverify.certification.registry import Bound, Detectable
from specverify.sampling.token_scores import RATIOS, TokenScores
from specverify.statistics.e_power import detectable_kl
from specverify.statistics.mixture import ALL_WEIGHT, BETS_WEIGHT
from specverify.statistics.sequences import excess_upper, leak_upper


def directional_bounds(scores: TokenScores, alpha: float, limit: float | None) -> tuple[Bound, ...]:
    """Upper confidence sequences on the mass moved to tokens that the draft prefers.

    The half-spaces are model-free: whatever the subject does, on average no more mass than this
    lies on tokens with q > c p beyond what p puts there. The leak rate is a bound within the family
    (1 - d) p + d q only.

    Args:
        scores: of all tokens so far.
        alpha: of all half-spaces together, and of the leak rate.
        limit: largest half-space bound at which a case is preserved, None if that is not asked.
    """
    share = alpha / len(RATIOS)
    n = int(scores.n.sum())
    halves = tuple(
        Bound(
            f"mass moved to where q > {ratio:g} p",
            excess_upper(scores.half_space(index), share),
            share,
            n,
            limit,
        )
        for index, ratio in enumerate(RATIOS)
    )
    # A hit is infinitely more likely under any leak than under p, so that nothing is excluded.
    rate = 1.0 if scores.hits[0] else leak_upper(scores.bets.leak_grid, scores.leaks, None, alpha)
    return (*halves, Bound("leak rate d, within (1 - d) p + d q", rate, alpha, n))


def detectable_leak(scores: TokenScores, threshold: float, slack: float) -> Detectable | None:
    """Smallest leak rate towards q that the bets would have shown with probability 0.999.

    Under the null a bet on rate d loses KL(p || (1 - d) p + d q) a token on average, which for
    small d is what it gains a token if the leak is there; what it lost is read off the tokens seen,
    so the answer varies with them, by about a fifth of that loss at the smallest leak.

    Args:
        scores: of all tokens so far.
        threshold: ln E at which the mixture rejects.
        slack: what a bet has to gain a token before it counts, see `DecoderCase.slack`.
    """
    n = int(scores.n.sum())
    if not n:
        return None
    bets = scores.bets
    weights = bets.log_weights[bets.leak_index]
    losses = -scores.logs.sum(0)[bets.leak_index] / n
    share = math.log(ALL_WEIGHT * BETS_WEIGHT)
    needed = np.array([detectable_kl(n, threshold - w - share) for w in weights])
    seen = np.flatnonzero(losses - slack >= needed)
    if not len(seen):
        return None
    return Detectable(float(bets.leak_grid[seen[0]]), "leak rate towards the draft")
