"""Randomised probability integral transform: tokens of many distributions, one uniform law."""

import math
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specverify.errors import UsageError
from specverify.statistics.goodness import g_test
from specverify.statistics.result import TestResult
from specverify.statistics.strata import OneOrMore, as_arrays

PitOrder: TypeAlias = Literal["ratio", "probability", "index"]
"""By q/p ascending, by p descending, by id; ties by id."""

_BELOW_ONE = float(np.nextafter(1.0, 0.0))
_ENTRIES = 1 << 14
"""Vocabulary entries compared at once: as in `bets`, arrays of so many stay in the cache."""


def randomised_pit(
    probs: ArrayLike, tokens: ArrayLike, v: ArrayLike, order: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Map tokens to numbers that are i.i.d. uniform on [0, 1) if each has the stated law.

    U = sum of p(y) over the tokens y that come before x in `order`, plus v p(x). Source:
    Rosenblatt (1952), randomised for atoms; algorithms.md section 0, P4.

    Valid if p is the law of the token given the prefix, `order` depends on the prefix alone, and v
    is uniform and independent of everything the implementation drew. Also valid in strata known
    before the token, such as "position i of the block was reached"; not given "this token was
    accepted". Any fixed order is valid; which deviations show depends on it: `ratio_order` exposes
    faults of the rule, index order faults of inverse-CDF samplers (statistics.md section 2).

    A token of probability 0 gets the number at which its empty interval lies; count it for
    `support.support_e_value`.

    Args:
        probs: float [N, V], each row summing to 1.
        tokens: integers [N], the tokens emitted.
        v: uniforms [N] in [0, 1), from a generator the implementation cannot see.
        order: [V] or [N, V], tokens from first to last; ascending ids when omitted.

    Returns:
        float64 [N] in [0, 1).

    Raises:
        UsageError: shapes do not match, a token lies outside the vocabulary, or v outside [0, 1).
    """
    p = np.asarray(probs, np.float64)
    x, coins = np.asarray(tokens), np.asarray(v, np.float64)
    if p.ndim != 2 or x.shape != p.shape[:1] or coins.shape != x.shape:
        raise UsageError(
            f"needs probs [N, V], tokens [N] and v [N]; got {p.shape}, {x.shape}, {coins.shape}"
        )
    if len(x) and not (x.min() >= 0 and x.max() < p.shape[1]):
        raise UsageError(f"tokens run from {x.min()} to {x.max()}, outside 0 to {p.shape[1] - 1}")
    if len(x) and not (coins.min() >= 0 and coins.max() < 1):
        raise UsageError(f"v must lie in [0, 1), got {coins.min()} to {coins.max()}")
    place = x[:, None]
    if order is not None:
        ranks = np.broadcast_to(np.asarray(order), p.shape)
        p = np.take_along_axis(p, ranks, axis=1)
        place = (ranks == place).argmax(axis=1)[:, None]
    cumulative = np.cumsum(p, axis=1)
    # Dividing by the last partial sum, not by p.sum(), keeps the ends exactly at 0 and 1.
    upper = np.take_along_axis(cumulative, place, axis=1)[:, 0]
    before = np.take_along_axis(cumulative, np.maximum(place - 1, 0), axis=1)[:, 0]
    lower = np.where(place[:, 0] > 0, before, 0.0)
    u = (lower + coins * (upper - lower)) / cumulative[:, -1]
    return np.minimum(u, _BELOW_ONE)


def ratio_order(p: ArrayLike, q: ArrayLike) -> NDArray[np.intp]:
    """Order tokens by q/p ascending, ties by id; tokens with p = 0 come last.

    Key q(x)/p(x): the first tokens up to any place are, ties aside, a set {q/p <= c}, as are the
    likelihood-ratio tests of Neyman and Pearson (1933). For a leak a = (1 - e) p + e q they include
    the one on which p - a is largest (elementary: {q <= p}), so in this order U shifts upwards, and
    the largest gap between its law and uniformity is the leak's total variation (statistics.md
    section 2).

    Valid as an order of `randomised_pit` if p and q depend on the prefix alone. Probabilities are
    not checked.

    Args:
        p: target probabilities [..., V].
        q: draft probabilities [..., V].

    Returns:
        Token ids [..., V], first to last.
    """
    target, draft = np.asarray(p, np.float64), np.asarray(q, np.float64)
    possible = target > 0
    ratio = np.where(possible, draft / np.where(possible, target, 1.0), np.inf)
    return np.argsort(ratio, axis=-1, kind="stable")


def pit_interval(
    p: ArrayLike, tokens: ArrayLike, order: PitOrder, q: ArrayLike | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Interval of [0, 1) that each token has in a randomised PIT, found without sorting.

    lower + v width is the number `randomised_pit` gives for the coin v, up to rounding: lower is
    the mass of the tokens that come before x, width is p(x): lower = sum p(y) over y before x, so
    that U = lower + v width is uniform (Rosenblatt 1952, randomised for atoms). Comparing every
    token with x takes one pass over the vocabulary. In any order a token of probability 0 has width
    0; leave it out.

    Valid where `randomised_pit` is: p is the law of the token given the prefix, q depends on the
    prefix alone, v is independent of both.

    Args:
        p: [N, V], normalised here in float64.
        tokens: integers [N], the tokens emitted.
        order: "ratio", by q/p ascending, impossible tokens last, as `ratio_order`;
            "probability", by p descending; "index", by id. Ties by id.
        q: [N, V], the draft's probabilities, for order "ratio".

    Returns:
        lower and width, float64 [N]; lower + v width lies in [0, 1) for every v in [0, 1).

    Raises:
        UsageError: shapes do not match, q is missing, the order is unknown, or a token lies outside
            the vocabulary.
    """
    laws, x = np.asarray(p), np.asarray(tokens)
    if order not in ("ratio", "probability", "index"):
        raise UsageError(f"order must be ratio, probability or index, got {order!r}")
    drafts = np.asarray(q) if order == "ratio" and q is not None else laws
    if laws.ndim != 2 or x.shape != laws.shape[:1] or drafts.shape != laws.shape:
        raise UsageError(
            f"needs p [N, V], tokens [N] and q [N, V]; got {laws.shape}, {x.shape}, {drafts.shape}"
        )
    if order == "ratio" and q is None:
        raise UsageError("order 'ratio' sorts by q/p: pass q")
    if len(x) and not (x.min() >= 0 and x.max() < laws.shape[1]):
        raise UsageError(
            f"tokens run from {x.min()} to {x.max()}, outside 0 to {laws.shape[1] - 1}"
        )
    lower, width = np.zeros(len(x)), np.zeros(len(x))
    step = max(1, _ENTRIES // max(laws.shape[1], 1))
    for start in range(0, len(x), step):
        rows = slice(start, start + step)
        mass = np.asarray(laws[rows], np.float64)
        before = _before(mass, drafts[rows], x[rows, None], order)
        total = mass.sum(-1)
        lower[rows] = np.einsum("nv,nv->n", mass, before) / total
        width[rows] = np.take_along_axis(mass, x[rows, None], -1)[:, 0] / total
    lower = np.minimum(lower, _BELOW_ONE)
    width = np.minimum(width, _BELOW_ONE - lower)
    return lower, np.where(lower + width < 1, width, np.nextafter(width, 0.0))


def pit_lower(p: ArrayLike, order: PitOrder, q: ArrayLike | None = None) -> NDArray[np.float64]:
    """Where the intervals of all tokens begin: `pit_interval` for whole rows, by sorting.

    lower(x) = sum p(y) over the tokens y before x in the order: cumulative sums of the sorted row
    less the token's own mass. The intervals [lower, lower + p) partition [0, 1) up to rounding.
    Source: Rosenblatt (1952), as for `randomised_pit`; valid where that is.

    Args:
        p: [N, V], normalised here in float64.
        order: see `pit_interval`.
        q: [N, V], for order "ratio".

    Returns:
        float64 [N, V].

    Raises:
        UsageError: q is missing.
    """
    mass = np.asarray(p, np.float64)
    mass = mass / mass.sum(-1, keepdims=True)
    if order == "index":
        ranks = np.broadcast_to(np.arange(mass.shape[1]), mass.shape)
    elif order == "probability":
        ranks = np.argsort(-mass, axis=-1, kind="stable")
    elif q is None:
        raise UsageError("order 'ratio' sorts by q/p: pass q")
    else:
        ranks = ratio_order(mass, q)
    sorted_mass = np.take_along_axis(mass, ranks, -1)
    lower = np.empty_like(mass)
    np.put_along_axis(lower, ranks, np.cumsum(sorted_mass, -1) - sorted_mass, -1)
    return np.clip(lower, 0.0, _BELOW_ONE)


def _before(mass: NDArray, draft: NDArray, place: NDArray, order: PitOrder) -> NDArray[np.bool_]:
    """Which tokens [N, V] come before the token at `place` [N, 1]."""
    earlier = np.arange(mass.shape[1]) < place
    if order == "index":
        return earlier
    if order == "probability":
        key = -mass
    else:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            key = np.asarray(draft, np.float64) / mass
        key[mass <= 0] = np.inf
    pivot = np.take_along_axis(key, place, -1)
    return (key < pivot) | ((key == pivot) & earlier)


class PitBand(NamedTuple):
    """How far binned numbers are from uniform: D, p = min(1, 2 exp(-2 n D^2)), half-width.

    `pit_band` gives source and validity: n is fixed beforehand.
    """

    distance: float
    """Largest gap between their distribution function at an edge of bins and the uniform one."""

    p_value: float
    """Probability of such a gap, or more, under the null: an upper bound."""

    width: float
    """Half-width of the band that the distribution function leaves with probability alpha."""


def pit_band(counts: ArrayLike, alpha: float) -> PitBand:
    """Simultaneous band around the distribution function of binned PIT numbers.

    D = max over edges |F_n - F|, p = min(1, 2 exp(-2 n D^2)): Dvoretzky, Kiefer and Wolfowitz
    (1956) with the constant of Massart (1990). Where PIT numbers leave the band one sees what is
    wrong (Säilynoja et al., 2022).

    Validity: n fixed, every n, no asymptotics. Bins only hide gaps, so the p-value is conservative;
    it is an upper bound besides. Not for decisions while tokens arrive: those are `mixture`'s.

    Args:
        counts: int [bins] as `bin_counts` gives them.
        alpha: 1 minus the confidence of the band.

    Returns:
        Distance, p-value and half-width; 0, 1 and 1 without numbers.

    Raises:
        UsageError: the counts are no counts of at least 2 bins, or alpha outside (0, 1).
    """
    observed = np.asarray(counts)
    if observed.ndim != 1 or len(observed) < 2 or (observed < 0).any():
        raise UsageError(f"needs nonnegative counts of at least 2 bins, got {counts!r}")
    if not 0 < alpha < 1:
        raise UsageError(f"alpha must lie strictly between 0 and 1, got {alpha}")
    n = int(observed.sum())
    if n == 0:
        return PitBand(0.0, 1.0, 1.0)
    edges = np.arange(1, len(observed) + 1) / len(observed)
    distance = float(np.abs(observed.cumsum() / n - edges).max())
    p_value = min(1.0, 2 * math.exp(-2 * n * distance**2))
    return PitBand(distance, p_value, min(1.0, math.sqrt(math.log(2 / alpha) / (2 * n))))


def bin_counts(u: ArrayLike, bins: int = 16) -> NDArray[np.int64]:
    """Count numbers of [0, 1) in equal bins; counts of shards add up to the counts of the whole.

    N_b = #{i : b/B <= u_i < (b + 1)/B} (elementary). For i.i.d. uniform u, as those of
    `randomised_pit` under the null, N is multinomial(n; 1/B, ..., 1/B). Valid for any numbers of
    [0, 1), up to the rounding of B u: one next to an edge may fall on its other side.

    Args:
        u: [N] in [0, 1).
        bins: number of bins.

    Returns:
        int64 [bins].

    Raises:
        UsageError: fewer than 2 bins, or a number outside [0, 1).
    """
    values = np.asarray(u, np.float64)
    if bins < 2:
        raise UsageError(f"needs at least 2 bins, got {bins}")
    if not ((values >= 0) & (values < 1)).all():
        raise UsageError("numbers to bin must lie in [0, 1); pass the output of randomised_pit")
    # Rounding in u * bins may reach bins for the numbers next below 1.
    indices = np.minimum((values * bins).astype(np.int64), bins - 1)
    return np.bincount(indices, minlength=bins)


def uniformity_test(counts: OneOrMore) -> TestResult:
    """G test of binned PIT numbers against uniformity, over one or several strata.

    G = 2 sum N_b ln(B N_b / n), B - 1 degrees of freedom a stratum (Wilks 1938), on numbers that
    are uniform under the null (Rosenblatt 1952). Below 25 numbers a bin all bins of a stratum merge
    and it contributes nothing.

    Valid for numbers of `randomised_pit` at a sample size fixed beforehand; strata are known before
    the token. Where an e-process or a bound chose when to stop, the p-value is descriptive. Error
    rates: those of `goodness.g_test`.

    Args:
        counts: int [bins] as `bin_counts` gives them, or one array a stratum.

    Raises:
        UsageError: the counts are no counts.
    """
    rows = as_arrays(counts)
    return g_test(rows, [np.full(len(row), 1 / len(row)) for row in rows])
