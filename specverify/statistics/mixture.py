"""The decision about sampled tokens: one mixture e-process of fixed and of learned bets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specverify.errors import UsageError
from specverify.statistics.bets import Bets
from specverify.statistics.dirichlet import CONCENTRATIONS, dirichlet_terms

BINS = 16
"""Equal bins of the randomised-PIT numbers."""

ORDERS = ("q/p", "p", "index")
"""The orders of those numbers: by q/p ascending, by p descending, and by token id, in which coins
used again by an inverse CDF show (statistics.md section 5)."""

ALL_WEIGHT = 0.5
"""Of all tokens together; the strata share the rest."""

BETS_WEIGHT, BINS_WEIGHT = 0.75, 0.25 / len(ORDERS)
"""Of the fixed bets, and of the learned ones in each order."""


@dataclass
class TokenSums:
    """What is kept of tokens; sums of disjoint sets of tokens add up to those of the union.

    Strata are disjoint, and known before the token: position in the block, whether the previous
    token was a correction. Tokens of probability 0 count in `n` alone.
    """

    n: NDArray[np.int64]
    """[S], tokens by stratum."""

    logs: NDArray[np.float64]
    """[S, J], sums of `Bets.log_ratios`."""

    bins: NDArray[np.int64]
    """[3, S, 16], randomised-PIT numbers in equal bins, in the `ORDERS`."""

    @staticmethod
    def zeros(strata: int, components: int) -> "TokenSums":
        """Sums of no tokens: n = 0, logs = 0 and bins = 0, in the shapes of the class."""
        return TokenSums(
            np.zeros(strata, np.int64),
            np.zeros((strata, components)),
            np.zeros((len(ORDERS), strata, BINS), np.int64),
        )

    @staticmethod
    def of(
        log_ratios: NDArray[np.float64],
        numbers: Sequence[NDArray[np.float64]],
        stratum: ArrayLike,
        strata: int,
        possible: ArrayLike | None = None,
    ) -> "TokenSums":
        """Sums of single tokens.

        n_s = #{t : s_t = s}, logs_sj = sum over those of ln b_j(x_t)/p_t(x_t), bins_osb = how many
        possible ones have their number of order o in [b/16, (b + 1)/16) (elementary). Valid if s_t
        is known before token t; that is not seen here.

        Args:
            log_ratios: [N, J] of `Bets.log_ratios`.
            numbers: randomised-PIT numbers [N] in [0, 1), one array for each of the `ORDERS`.
            stratum: int [N], 0 to strata - 1.
            strata: how many there are.
            possible: bool [N], tokens with p > 0; all when omitted.

        Raises:
            UsageError: a stratum is out of range, or there is not one array of numbers an order.
        """
        place = np.asarray(stratum, np.int64)
        if len(place) and not (place.min() >= 0 and place.max() < strata):
            raise UsageError(f"strata run from {place.min()} to {place.max()} of {strata}")
        if len(numbers) != len(ORDERS):
            raise UsageError(f"needs PIT numbers in the orders {ORDERS}, got {len(numbers)} arrays")
        kept = np.ones(len(place), bool) if possible is None else np.asarray(possible, bool)
        member = (place == np.arange(strata)[:, None]).astype(np.float64)
        # Rounding in u * BINS may reach BINS for the numbers next below 1.
        cells = [place * BINS + np.minimum((u * BINS).astype(np.int64), BINS - 1) for u in numbers]
        bins = [np.bincount(cell[kept], minlength=strata * BINS) for cell in cells]
        return TokenSums(
            np.bincount(place, minlength=strata),
            member @ log_ratios,
            np.stack(bins).reshape(len(ORDERS), strata, BINS),
        )

    def __add__(self, other: "TokenSums") -> "TokenSums":
        return TokenSums(self.n + other.n, self.logs + other.logs, self.bins + other.bins)


@dataclass(frozen=True)
class Mixture:
    """Value of the mixture e-process, and of its parts: E = sum of exp(components).

    Valid at every look, see `log_mixture`.
    """

    log_e: float
    """ln E. Reject at level alpha once it reaches ln(1/alpha)."""

    components: dict[str, float] = field(repr=False)
    """ln of weight times value, by name; their exponentials sum to E.

    Fixed bets have the names of `Bets.names`, learned ones are "bins in q/p order" and
    so on; those on one stratum begin with "stratum s: ".
    """

    def best(self) -> tuple[str, float]:
        """Name of the largest component, and its share of E: a diagnosis, not a test.

        max_j w_j E_j / E. Chosen after the data, so no error rate holds for the name.
        """
        name = max(self.components, key=self.components.__getitem__)
        return name, math.exp(min(0.0, self.components[name] - self.log_e))


def log_mixture(sums: TokenSums, bets: Bets, *, slack: float = 0.0) -> Mixture:
    """Evaluate E = E(all)/2 + mean over strata of E(s)/2 for tokens that should have law p.

    E(.) = 3/4 sum_j w_j prod_t b_j,t(x_t)/p_t(x_t) + 1/4 of the mean of D(q/p), D(p) and D(id), D
    the Dirichlet mixture of `dirichlet` on 16 bins of the randomised PIT, whose law under the null
    is uniform. In order of q/p a leak raises the last bins, in order of p a wrong temperature the
    first or the last, in order of ids a coin that an inverse CDF uses again.

    Validity: every factor is a ratio of a law chosen before the token to the law of the token, so E
    is a martingale (a supermartingale for laws of less mass) with mean 1 under the null, for any
    prefixes, and P(sup E >= 1/alpha) <= alpha (Ville, 1939) wherever one stops. Strata must be
    known before the token, their number before the first. See Grünwald, de Heide and Koolen (2024),
    "Safe testing", and statistics.md section 2. Error rates: no approximation anywhere. Power: a
    weight w costs ln(1/w) nats; `benchmarks/samples_to_reject.py` prints what remains.

    Tolerance: under a law with a(x) <= (1 + eta) p(x) for every x each factor has mean at most
    1 + eta; with `slack` = ln(1 + eta) taken off for every token E stays a supermartingale.

    Args:
        sums: of the tokens so far.
        bets: those that gave `sums.logs`.
        slack: ln(1 + eta) a token.

    Returns:
        ln E and its components. A stratum without tokens contributes 1.

    Raises:
        UsageError: the shapes do not match each other or the bets, or `slack` is negative.
    """
    strata = len(sums.n)
    shapes = ((strata, len(bets.names)), (len(ORDERS), strata, BINS))
    if strata < 1 or sums.logs.shape != shapes[0] or sums.bins.shape != shapes[1]:
        raise UsageError(
            f"{strata} strata and {len(bets.names)} bets need logs {shapes[0]} and bins "
            f"{shapes[1]}; got {sums.logs.shape} and {sums.bins.shape}"
        )
    if not 0 <= slack < math.inf:
        raise UsageError(f"slack is ln(1 + eta) with eta >= 0, got {slack}")
    # Row 0 is all tokens, row 1 + s is stratum s.
    n = np.concatenate([sums.n.sum(keepdims=True), sums.n])
    logs = np.concatenate([sums.logs.sum(0, keepdims=True), sums.logs])
    bins = np.concatenate([sums.bins.sum(1, keepdims=True), sums.bins], 1)
    weight = np.full(strata + 1, math.log((1 - ALL_WEIGHT) / strata))
    weight[0] = math.log(ALL_WEIGHT)
    fixed = logs + bets.log_weights + math.log(BETS_WEIGHT)
    terms = dirichlet_terms(bins, np.full(BINS, 1 / BINS))
    learned = np.logaddexp.reduce(terms, -1) + math.log(BINS_WEIGHT / len(CONCENTRATIONS))
    values = np.concatenate([fixed, learned.T], 1) + (weight - slack * n)[:, None]
    flat = values.ravel()
    components = dict(zip(_names(bets.names, strata), flat.tolist(), strict=True))
    return Mixture(float(np.logaddexp.reduce(flat)), components)


@lru_cache(maxsize=16)
def _names(bets: tuple[str, ...], strata: int) -> list[str]:
    parts = [*bets, *(f"bins in {order} order" for order in ORDERS)]
    return parts + [f"stratum {s}: {name}" for s in range(strata) for name in parts]
