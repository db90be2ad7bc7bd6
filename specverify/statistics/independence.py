"""Evidence for coupled randomness: bits that compare randomised PIT numbers with each other.

A decoder that uses one uniform twice can emit tokens each of which has its right distribution while
they depend on one another. Under the null the numbers of `pit` are independent and uniform over
all positions and rows, so events such as "both lie in the same half" and "they are close" are coins
of known rate. Repeated uniforms make them too frequent, reflected ones (u and 1 - u) too rare.

Only counts are kept; those of shards add up.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specverify.errors import UsageError
from specverify.statistics.dirichlet import dirichlet_terms

ORDERS = ("ratio", "index")
"""Token orders of the two arrays of PIT numbers: q/p ascending, token ids ascending."""

# Numbers are compared on a grid of 2^16 places. Where u is uniform its place is too, so the rates
# below are exact for what is counted, and sixteen bits are read four times faster than float64.
_PLACES = 1 << 16
_REACH = 3276
"""Largest circular distance, in places, of two numbers that are close: 0.05."""
_RATES = {"same_half": 0.5, "close": (2 * _REACH + 1) / _PLACES}


@dataclass(frozen=True, eq=False)
class BitCounts:
    """Bits counted by kind, in the order of `bit_names`; counts of calls add with `+`.

    Under the null each bit is a coin of its kind's rate given the past, so ones is about n * rate;
    `count_bits` says why.
    """

    ones: NDArray[np.int64]
    """[K], bits that were 1."""
    n: NDArray[np.int64]
    """[K], bits there were."""

    @classmethod
    def empty(cls, lags: int) -> "BitCounts":
        """Counts before any token: ones = n = 0 for every kind.

        Args:
            lags: see `bit_names`.
        """
        zeros = np.zeros(len(bit_names(lags)), np.int64)
        return cls(zeros, zeros.copy())

    def __add__(self, other: "BitCounts") -> "BitCounts":
        """Counts of both."""
        if self.n.shape != other.n.shape:
            raise UsageError(
                f"counts of {len(self.n)} and of {len(other.n)} kinds of bits do not add up; "
                "count all shards with the same number of lags"
            )
        return BitCounts(self.ones + other.ones, self.n + other.n)


@cache
def bit_names(lags: int) -> tuple[str, ...]:
    """Names of the kinds of bits: the order, what a number is compared with, and in what.

    Such as `index.lag2.close`, `ratio.halves.same_half` or `ratio.majority.same_half`. There are
    K = 2 (2 (lags + 2) + 1): in two orders, both bits against each lag, neighbours and halves, and
    one bit against the majority (elementary: which pairs each kind has, `count_bits` tells).

    Valid as keys as long as `lags` is fixed for a run: other lags give other names.

    Args:
        lags: largest distance within a row, 1 or more; 2(K + 1) spans two whole blocks.

    Raises:
        UsageError: no lag.
    """
    if lags < 1:
        raise UsageError(f"lags={lags}; compare each token with at least the one before it")
    against = [f"lag{k}" for k in range(1, lags + 1)] + ["neighbours", "halves"]
    one_order = [f"{other}.{kind}" for other in against for kind in _RATES]
    one_order.append("majority.same_half")
    return tuple(f"{order}.{name}" for order in ORDERS for name in one_order)


def null_rates(lags: int) -> NDArray[np.float64]:
    """Probability of a 1 for each of `bit_names`, [K]: 1/2 or, on the grid, 0.09999.

    same_half: P = 1/2. close: P = (2 r + 1) / 2^16, r = 3276, the places at a circular distance of
    at most r (elementary: the difference of a uniform place and any other is uniform).

    Valid under the null, where the later number is uniform given the earlier ones; then exact, as
    numbers are compared on that grid.

    Args:
        lags: see `bit_names`.
    """
    return np.array([_RATES[name.rpartition(".")[2]] for name in bit_names(lags)])


def count_bits(u: ArrayLike, present: ArrayLike, lags: int) -> BitCounts:
    """Count the bits of one call of a decoder.

    Within a row each number is compared with those 1 to `lags` tokens before it, and with the half
    in which most of the earlier ones of its row lie (left out where there is a tie): uniforms that
    come back in later blocks keep a run on one side. Between rows, numbers at the same position
    are compared for disjoint pairs of rows, 0 with 1, 2 with 3 and so on, and r with r + R/2; the
    last of an odd number of rows has no partner.

    Validity: order all numbers row by row, each row from its start. The later number of a bit is
    uniform given all before it, so, whatever the earlier one, are their circular difference and
    whether they share a half: each bit is a coin of its rate given the past, and bits of one kind
    are independent. This needs a later number of its own for every bit of a kind, which lags and
    disjoint pairs have; over all pairs of rows the bits would only be pairwise independent (the
    product of three has mean 7.5; statistics.md section 5). `present` may depend on the earlier
    tokens of its row only, as the length of a run does.

    Args:
        u: float [2, R, L], numbers of `pit` for the tokens of R rows decoded in one call, in both
            `ORDERS`; anything where no token is present.
        present: bool [R, L], where there is a token.
        lags: see `bit_names`.

    Returns:
        Counts of this call.

    Raises:
        UsageError: shapes do not match, no lag, or a number present lies outside [0, 1).
    """
    values, there = np.asarray(u, np.float64), np.asarray(present, np.bool_)
    if there.ndim != 2 or values.shape != (len(ORDERS), *there.shape):
        raise UsageError(
            f"needs u [2, R, L] and present [R, L]; got {values.shape} and {there.shape}"
        )
    if lags < 1:
        bit_names(lags)
    full = bool(there.all())
    low = values.min(initial=0.0, where=True if full else there)
    high = values.max(initial=0.0, where=True if full else there)
    if not (low >= 0 and high < 1):
        raise UsageError(
            f"numbers from {low} to {high} lie outside [0, 1); pass numbers of the randomised PIT"
        )
    # Rows of a call are many and runs may be short, so rows go last, where the inner loops are.
    places = np.zeros((len(ORDERS), there.shape[1], there.shape[0]), np.uint16)
    np.multiply(values, _PLACES, out=places.swapaxes(1, 2), where=there, casting="unsafe")
    mask = None if full else np.ascontiguousarray(there.T)
    pairs = _pairs(there.shape[1], there.shape[0], lags)
    compared = [None if mask is None else mask[a] & mask[b] for a, b in pairs]
    counted: list[tuple[int, int]] = []
    for numbers in places:
        for (a, b), both in zip(pairs, compared, strict=True):
            n = numbers[a].size if both is None else int(np.count_nonzero(both))
            for bits in _bits(numbers[a], numbers[b]):
                ones = np.count_nonzero(bits if both is None else bits & both)
                counted.append((int(ones), n))
        counted.append(_majority(numbers, mask))
    ones, n = np.array(counted, np.int64).T
    return BitCounts(ones, n)


_Region = tuple[slice, slice]
"""Positions and rows."""


def _pairs(length: int, rows: int, lags: int) -> list[tuple[_Region, _Region]]:
    """What is compared with what, in the order of `bit_names`."""
    everything, half = slice(None), rows // 2
    lagged = [
        ((slice(0, max(length - k, 0)), everything), (slice(k, None), everything))
        for k in range(1, lags + 1)
    ]
    neighbours = (everything, slice(0, 2 * half, 2)), (everything, slice(1, None, 2))
    halves = (everything, slice(0, half)), (everything, slice(half, 2 * half))
    return [*lagged, neighbours, halves]


def _bits(a: NDArray[np.uint16], b: NDArray[np.uint16]) -> tuple[NDArray[np.bool_], ...]:
    """Both kinds of bits; differences of unsigned numbers wrap around, so they are circular."""
    return (a ^ b) < _PLACES // 2, (a - b + np.uint16(_REACH)) <= 2 * _REACH


def _majority(numbers: NDArray[np.uint16], mask: NDArray[np.bool_] | None) -> tuple[int, int]:
    """How many numbers lie in the half where most earlier ones of their row do, and of how many."""
    upper = numbers >= _PLACES // 2
    sides = 2 * upper.view(np.int8) - 1
    if mask is not None:
        sides *= mask
    balance = sides.cumsum(0, dtype=np.int32)[:-1]
    compared = balance != 0
    if mask is not None:
        compared &= mask[1:]
    hits = ((balance > 0) == upper[1:]) & compared
    return int(np.count_nonzero(hits)), int(np.count_nonzero(compared))


def log_independence(counts: BitCounts, *, slack: float = 0.0) -> tuple[float, dict[str, float]]:
    """Logarithm of an e-value against independence, with that of every kind of bit.

    Each kind is bet on by the mixture of Krichevsky and Trofimov (1981), a Beta(1/2, 1/2) prior on
    its rate: for n bits of null rate r, n1 of them 1 and n0 of them 0,
    E = Gamma(n1 + 1/2) Gamma(n0 + 1/2) / (pi Gamma(n + 1) r^n1 (1 - r)^n0).
    The result is the mean of these e-values, an e-process again: looked at after any number of
    calls it ever reaches 1/alpha with probability at most alpha (Ville).

    It also grows where tokens have a wrong distribution, since their numbers then crowd together;
    it points to coupling only where the numbers by themselves look uniform. (Rows that share their
    uniforms unsettle those too, since many rows then count like one.)

    Args:
        counts: of all calls so far.
        slack: ln of the factor by which a token's reference probability may be exceeded without
            being a fault; both tokens of each bit are allowed it.

    Returns:
        ln E, and ln E of every kind by its name.

    Raises:
        UsageError: counts that `count_bits` does not give, or a negative slack.
    """
    if not slack >= 0:
        raise UsageError(f"slack={slack!r} must be 0 or more; 0 allows nothing")
    ones, n = counts.ones, counts.n
    lags, rest = divmod(len(n) // len(ORDERS) - 5, 2)
    if rest or lags < 1 or ones.shape != (len(bit_names(lags)),) or n.shape != ones.shape:
        raise UsageError(
            f"counts of shapes {ones.shape} and {n.shape} fit no number of lags; pass sums of "
            "what count_bits returns"
        )
    rates = null_rates(lags)
    zeros = n - ones
    fair = dirichlet_terms(np.stack([ones, zeros], -1), [0.5, 0.5], [1.0])[:, 0]
    by_kind = fair - ones * np.log(2 * rates) - zeros * np.log(2 * (1 - rates)) - 2 * slack * n
    log_e = float(np.logaddexp.reduce(by_kind)) - math.log(len(by_kind))
    return log_e, dict(zip(bit_names(lags), by_kind.tolist(), strict=True))
