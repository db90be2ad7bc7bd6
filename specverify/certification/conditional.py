"""Closed forms of the token that ends a round, for the algorithms a subject can declare.

The bonus token after full acceptance follows the target's next distribution under every lossless
rule. The correction after a rejection depends on the rule, so it is judged only where the subject
declares one (algorithms.md sections 1.3, 1.4 and 1.7, P7).
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

WITH_CORRECTION = frozenset({"token", "block", "match"})
"""Algorithms whose correction has a closed form given the accepted tokens alone."""


def correction_distribution(
    algorithm: str, p_path: Array, q_path: Array, accepted: NDArray[np.int64]
) -> Array:
    """Distribution of the correction, given exactly the accepted draft tokens of its round.

    Args:
        algorithm: one of `WITH_CORRECTION`.
        p_path: float64 [N, i+1, V], the target's distributions after 0 to i accepted tokens; the
            last of them is enough unless the algorithm is block.
        q_path: float64 [N, i+1, V], the draft's, at the same places.
        accepted: integers [N, i], the accepted tokens.

    Returns:
        float64 [N, V]; a row is all zero where a rejection is impossible.
    """
    p, q = p_path[:, -1], q_path[:, -1]
    if algorithm == "match":
        # The draw y ~ p is kept; it ends the round if and only if it differs from x ~ q.
        weights = p * (1.0 - q)
    elif algorithm == "block":
        weights = np.maximum(_acceptance_so_far(p_path, q_path, accepted)[:, None] * p - q, 0.0)
    else:
        weights = np.maximum(p - q, 0.0)
    total = weights.sum(1, keepdims=True)
    return np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)


def _acceptance_so_far(p_path: Array, q_path: Array, accepted: NDArray[np.int64]) -> Array:
    """p_i of Sun et al. 2024 (arXiv 2403.10444): running min(1, p_{i-1} p(x_i) / q(x_i))."""
    running = np.ones(len(accepted))
    rows = np.arange(len(accepted))
    for i in range(accepted.shape[1]):
        p, q = p_path[rows, i, accepted[:, i]], q_path[rows, i, accepted[:, i]]
        ratio = np.divide(p, q, out=np.full_like(p, np.inf), where=q > 0)
        running = np.minimum(1.0, running * ratio)
    return running
