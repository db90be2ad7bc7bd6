"""What one round of each verification rule emits, in closed form.

Written from the papers, in numpy, as the reference that rules run under exact steering are held
against; it shares no code with `specverify.verification`. A table has one row for each prefix of
draft tokens, in the order of `Round.p`; all V^i prefixes of i tokens are done at once, so the cost
is a few passes over V^(K+1) numbers.
"""

from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from specverify.errors import UsageError
from specverify.exact.round import Round
from specverify.lookup import did_you_mean

Algorithm = Literal["greedy", "token", "block", "match"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)

Array: TypeAlias = NDArray[np.float64]


def accepted_tables(algorithm: str, round: Round) -> list[Array]:
    """Probability that x^i is drafted and at least its i tokens are accepted, for i = 0 to K.

    Token: product of min(p, q) along x^i. Block: Q(x^i) w(x^i). Match: product of p q. Greedy:
    product of q where x is the argmax, 0 elsewhere (algorithms.md section 0, P5).

    Args:
        algorithm: one of `ALGORITHMS`.
        round: what the rule is handed.

    Returns:
        One table [V^i] for each i.

    Raises:
        UsageError: no such algorithm.
    """
    if checked(algorithm) == "block":
        drafted, weights = _prefix_weights(round)
        return [mass * weight for mass, weight in zip(drafted, weights, strict=True)]
    tables = [np.ones(1)]
    for depth in range(round.num_draft_tokens):
        kept, _ = _step(algorithm, round, depth)
        tables.append((tables[-1][:, None] * kept).reshape(-1))
    return tables


def emission_tables(algorithm: str, round: Round) -> list[Array]:
    """Probability that exactly the i tokens of x^i are accepted and y ends the round.

    Args:
        algorithm: one of `ALGORITHMS`.
        round: what the rule is handed.

    Returns:
        For i = 0 to K a table [V^i, V], indexed by x^i and y. Together they sum to 1.

    Raises:
        UsageError: no such algorithm.
    """
    if checked(algorithm) == "block":
        return _block(round)
    accepted = accepted_tables(algorithm, round)
    width = round.num_draft_tokens
    tables = [
        accepted[depth][:, None] * _step(algorithm, round, depth)[1] for depth in range(width)
    ]
    bonus = _argmax_rows(round, width) if algorithm == "greedy" else round.p(width)
    return [*tables, accepted[-1][:, None] * bonus]


def checked(algorithm: str) -> str:
    """Return the name; raise `UsageError` if there is no such algorithm."""
    if algorithm not in ALGORITHMS:
        raise UsageError(
            f"there is no closed form for algorithm {algorithm!r}"
            f"{did_you_mean(algorithm, ALGORITHMS)}; known are {', '.join(ALGORITHMS)}"
        )
    return algorithm


def _step(algorithm: str, round: Round, depth: int) -> tuple[Array, Array]:
    """One position of a rule that stops at the first rejection, given that it is reached.

    Returns:
        Probability that x is drafted and accepted, and that the round ends here with y; both
        [V^depth, V], their sum over x and y is 1.
    """
    if algorithm == "token":
        return _token_step(round, depth)
    # Greedy decoding is sampling from the argmax, so its rule is the sampler-match of that.
    p = _argmax_rows(round, depth) if algorithm == "greedy" else round.p(depth)
    q = round.q(depth)
    return p * q, p * (1 - q)


def _token_step(round: Round, depth: int) -> tuple[Array, Array]:
    """Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1."""
    p, q = round.p(depth), round.q(depth)
    accept = np.minimum(1.0, _ratio(p, _reported_drafted(round, depth)))
    correction, _ = _residual(np.ones(len(p)), p, _reported(round, depth))
    return q * accept, _mixture(q * (1 - accept), correction)


def _block(round: Round) -> list[Array]:
    """Sun et al. 2024 (arXiv 2403.10444), algorithm 2, from the last position back to the first.

    `tau` is the last position whose coin accepts. What the later coins do depends on the later
    draft tokens, so their failing together is summed over these first. Position 0, which needs no
    coin, falls under the same formula: its w is 1 and so its threshold is 1.
    """
    width, size = round.num_draft_tokens, round.vocab_size
    drafted, weights = _prefix_weights(round)
    tables = [(drafted[width] * weights[width])[:, None] * round.p(width)]
    none_later = 1 - weights[width]
    for depth in reversed(range(width)):
        correction, excess = _residual(weights[depth], round.p(depth), _reported(round, depth))
        threshold = _ratio(excess, excess + (1 - weights[depth][:, None]), undefined=1.0)
        rest = round.q(depth) * none_later.reshape(-1, size)
        tables.append(_mixture(drafted[depth][:, None] * threshold * rest, correction))
        none_later = ((1 - threshold) * rest).sum(1)
    return tables[::-1]


def _prefix_weights(round: Round) -> tuple[list[Array], list[Array]]:
    """Q(x^i) and w(x^i) = min(1, w(x^(i-1)) p(x_i) / q(x_i)), w of nothing 1, each [V^i]."""
    drafted, weights = [np.ones(1)], [np.ones(1)]
    for depth in range(round.num_draft_tokens):
        drafted.append((drafted[-1][:, None] * round.q(depth)).reshape(-1))
        scaled = weights[-1][:, None] * round.p(depth)
        ratio = _ratio(scaled, _reported_drafted(round, depth))
        weights.append(np.minimum(1.0, ratio).reshape(-1))
    return drafted, weights


def _reported(round: Round, depth: int) -> Array:
    """The draft's rows as the rule takes them, [V^depth, 1 or V, V]; if V, by drafted token.

    A rule that is handed no probabilities takes the drafted token's to be 1. Where the draft's rows
    are one-hot indeed, that is what they say already.
    """
    q = round.q(depth)
    if round.one_hot and not (q.max(1) == 1).all():
        return np.broadcast_to(np.eye(round.vocab_size), (len(q), *q.shape[1:], q.shape[1]))
    return q[:, None]


def _reported_drafted(round: Round, depth: int) -> Array:
    """Probability that the rule takes each token to have been drafted with, [V^depth, V]."""
    q = round.q(depth)
    return np.ones_like(q) if round.one_hot else q


def _residual(weights: Array, p: Array, reported: Array) -> tuple[Array, Array]:
    """Normalise (w p - q)+, [N, 1 or V, V]; p where nothing is left.

    Returns:
        The distribution of the correction, and the sums before normalising, [N, 1 or V].
    """
    excess = np.maximum(weights[:, None, None] * p[:, None] - reported, 0.0)
    totals = excess.sum(2)
    # Nothing is left only where the correction has probability 0, or that of a rounding error.
    rows = np.where(totals[:, :, None] > 0, _ratio(excess, totals[:, :, None]), p[:, None])
    return rows, totals


def _mixture(masses: Array, rows: Array) -> Array:
    """Sum over drafted tokens x of masses [N, V] times rows [N, 1 or V, V]."""
    grouped = masses if rows.shape[1] > 1 else masses.sum(1, keepdims=True)
    return np.einsum("nx,nxy->ny", grouped, rows)


def _argmax_rows(round: Round, depth: int) -> Array:
    """The target's greedy choices as one-hot rows; ties go to the first token, as handed."""
    best = round.handed_target[depth].double().numpy().argmax(1)
    return np.eye(round.vocab_size)[best]


def _ratio(numerator: Array, denominator: Array, undefined: float = 0.0) -> Array:
    """Quotient, with x/0 infinite for x > 0 and 0/0 as told; both broadcast."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        quotient = numerator / denominator
    return np.where(np.isnan(quotient), undefined, quotient)
