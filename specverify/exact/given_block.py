"""What each verification rule emits for a draft block that is given, in closed form.

`closed_forms` sums over the draft blocks; here the block is known, so that what a rule does with
the token it rejects shows too. Written from the papers in other steps than those sums, and tested
against them.
"""

import numpy as np
from numpy.typing import NDArray

from specverify.exact.closed_forms import checked

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


def emission_given_block(algorithm: str, blocks: Ints, q: Array, p: Array) -> Array:
    """Probability that exactly i tokens of a block are accepted and y ends the round.

    Token: the draft tokens are accepted with probability min(1, p/q) one after the other, and the
    correction is drawn from (p - q)+, whichever token was rejected (Leviathan et al. 2023, arXiv
    2211.17192, algorithm 1). Block: the last i whose coin accepts, of threshold S_i / (S_i + 1 -
    w_i) with S_i the sum of (w_i p - q)+, from which the correction is drawn (Sun et al. 2024,
    arXiv 2403.10444, algorithm 2). Match: y ~ p ends the round where it is not the draft token, so
    the correction depends on that. Greedy: the same with the argmax.

    Args:
        algorithm: greedy, token, block or match.
        blocks: [B, K], drafted with positive probability.
        q: [B, K, V], what they were drawn from.
        p: [B, K+1, V], the target's distributions.

    Returns:
        float64 [B, K+1, V]; the entries of a block sum to 1.

    Raises:
        UsageError: no such algorithm.
    """
    checked(algorithm)
    rows, width = blocks.shape
    index = np.arange(rows)[:, None], np.arange(width), blocks
    if algorithm in ("match", "greedy"):
        drawn = np.eye(p.shape[2])[p.argmax(2)] if algorithm == "greedy" else p
        others = drawn[:, :width].copy()
        others[index] = 0.0
        accepted = _products(drawn[index])
        return np.concatenate([others, drawn[:, width:]], 1) * accepted[:, :, None]
    ratios = p[index] / q[index]
    if algorithm == "token":
        accept = np.minimum(1.0, ratios)
        masses = _products(accept) * np.append(1 - accept, np.ones((rows, 1)), 1)
        weights = np.ones((rows, width))
    else:
        weights = np.ones((rows, width + 1))
        for i in range(width):
            weights[:, i + 1] = np.minimum(1.0, weights[:, i] * ratios[:, i])
        masses, weights = _last_accepted(weights, q, p), weights[:, :width]
    excess = np.maximum(weights[:, :, None] * p[:, :width] - q, 0.0)
    return np.concatenate([_normalised(excess, p[:, :width]), p[:, width:]], 1) * masses[:, :, None]


def _products(accept: Array) -> Array:
    """Probability that the first i are accepted, [B, K+1]."""
    factors = np.append(np.ones((len(accept), 1)), accept, 1)
    return np.cumprod(factors, axis=1, dtype=np.float64)


def _last_accepted(weights: Array, q: Array, p: Array) -> Array:
    """Probability that i is the last position whose coin accepts, [B, K+1]; position 0 always."""
    width = q.shape[1]
    excess = np.maximum(weights[:, :width, None] * p[:, :width] - q, 0.0).sum(2)
    rest = excess + 1 - weights[:, :width]
    coin = np.divide(excess, rest, out=np.ones_like(excess), where=rest > 0)
    coin = np.append(coin, weights[:, width:], 1)
    none_later = np.cumprod((1 - coin)[:, :0:-1], axis=1, dtype=np.float64)[:, ::-1]
    return coin * np.append(none_later, np.ones((len(coin), 1)), 1)


def _normalised(weights: Array, otherwise: Array) -> Array:
    """Rows that sum to 1; those without weight are never drawn from, and are as told."""
    total = weights.sum(2, keepdims=True)
    return np.where(total > 0, weights / np.where(total > 0, total, 1.0), otherwise)
