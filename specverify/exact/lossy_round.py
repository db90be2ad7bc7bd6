"""What a lossy rule with a declared contract emits in one round."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from specverify.errors import UsageError
from specverify.exact.joint import Tokens
from specverify.exact.round import Round

Rows = NDArray[np.float64]
Step = Callable[[Rows, Rows], Rows]


def lossy_round_distribution(
    acceptance: Step, correction: Step, round: Round
) -> dict[Tokens, float]:
    """The distribution of the emitted tuples, not completed.

    P(x_1..x_i accepted, y the correction) = prod_j q(x_j) a(x_j) * R_i r(y), with the rejected mass
    R_i = sum_x q(x) (1 - a(x)); a block accepted in full ends with a token of the target.

    Args:
        acceptance: rows of p and q, [N, V] each, to the probability a that each token is accepted.
        correction: the same to rows proportional to r.
        round: what the rule is handed.

    Returns:
        Tuples of 1 to K+1 tokens to probability, positive entries only.

    Raises:
        UsageError: an acceptance outside [0, 1], or a correction that is no distribution where
            something is rejected.
    """
    emitted: dict[Tokens, float] = {}
    reached = np.ones(1)
    for depth in range(round.num_draft_tokens):
        p, q = round.p(depth), round.q(depth)
        a = _checked_acceptance(np.asarray(acceptance(p.copy(), q.copy()), np.float64), p.shape)
        rejected = (q * (1 - a)).sum(1)
        law = _normalised(np.asarray(correction(p.copy(), q.copy()), np.float64), rejected)
        _add(emitted, round.prefixes(depth), (reached * rejected)[:, None] * law)
        reached = (reached[:, None] * q * a).reshape(-1)
    last = round.num_draft_tokens
    _add(emitted, round.prefixes(last), reached[:, None] * round.p(last))
    return emitted


def _add(emitted: dict[Tokens, float], prefixes: NDArray[np.int64], masses: Rows) -> None:
    for row, token in np.argwhere(masses > 0):
        emitted[(*map(int, prefixes[row]), int(token))] = float(masses[row, token])


def _checked_acceptance(a: Rows, shape: tuple[int, ...]) -> Rows:
    if a.shape != shape or not bool(((a >= 0) & (a <= 1 + 1e-12)).all()):
        raise UsageError(
            "the acceptance of a lossy contract returns probabilities of the shape of p, "
            f"{list(shape)}; this one returned {list(a.shape)}, between {a.min()} and {a.max()}"
        )
    return np.minimum(a, 1.0)


def _normalised(rows: Rows, rejected: NDArray[np.float64]) -> Rows:
    totals = rows.sum(1, keepdims=True)
    wrong = (rejected > 1e-15) & ~((totals[:, 0] > 0) & (rows >= 0).all(1))
    if bool(wrong.any()):
        raise UsageError(
            "the correction of a lossy contract returns a distribution wherever something is "
            f"rejected; this one returned {rows[wrong][0].tolist()}"
        )
    return np.divide(rows, totals, out=np.zeros_like(rows), where=totals > 0)
