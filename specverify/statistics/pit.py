"""Randomised probability integral transform: tokens of many distributions, one uniform law."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specverify.errors import UsageError
from specverify.statistics.goodness import g_test
from specverify.statistics.result import TestResult
from specverify.statistics.strata import OneOrMore, as_arrays


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
    `support.support_test`.

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
    return np.minimum(u, np.nextafter(1.0, 0.0))


def ratio_order(p: ArrayLike, q: ArrayLike) -> NDArray[np.intp]:
    """Order tokens by q/p ascending, ties by id; tokens with p = 0 come last.

    In this order a leak of draft mass into the output shifts U upwards, and the largest gap
    between the law of U and uniformity is the leak's total variation (statistics.md section 2).

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


def bin_counts(u: ArrayLike, bins: int = 16) -> NDArray[np.int64]:
    """Count numbers of [0, 1) in equal bins; counts of shards add up to the counts of the whole.

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

    Below 25 numbers a bin all bins of a stratum merge and it contributes nothing. Error rates:
    those of `goodness.g_test`.

    Args:
        counts: int [bins] as `bin_counts` gives them, or one array a stratum.

    Raises:
        UsageError: the counts are no counts.
    """
    rows = as_arrays(counts)
    return g_test(rows, [np.full(len(row), 1 / len(row)) for row in rows])
