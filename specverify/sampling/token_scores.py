"""What the e-processes need of every token: bets, bins, bits and half-spaces, summed.

The size is strata times components; no token is kept.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from specverify.sampling.tally import State
from specverify.statistics.bets import Bets
from specverify.statistics.independence import BitCounts, count_bits
from specverify.statistics.mixture import TokenSums
from specverify.statistics.sequences import HalfSpaceSums

Ints = NDArray[np.int64]
Array = NDArray[np.float64]

ORDERS = ("ratio", "probability", "index")
"""Orders of the randomised PIT, see `statistics.pit.pit_interval`."""
BINS = 16
FINE_BINS = 256
"""Bins of the empirical distribution that a simultaneous band is held against."""
RATIOS = (0.5, 1.0, 2.0)
"""c of the half-spaces q > c p."""


@dataclass(frozen=True)
class ScoredTokens:
    """Tokens with the laws they are bet against, each counted as often as it occurred."""

    tokens: Ints
    """[M]"""
    strata: Ints
    """[M], fixed by what was emitted before the token."""
    counts: Ints
    """[M]"""
    rows: Ints
    """[M] which law each should have been drawn from."""
    p: Array
    """[R, V] what the target says."""
    q: Array
    p_raw: Array | None
    q_raw: Array | None


@dataclass
class TokenScores:
    """Sums over tokens, by stratum."""

    strata: int
    bets: Bets
    lags: int
    """Distances up to which tokens of a run are compared."""
    n: Ints = field(init=False)
    logs: Array = field(init=False)
    """[S, J] sums of ln(b_j(x) / p(x))."""
    bins: Ints = field(init=False)
    """[orders, S, bins]"""
    fine: Ints = field(init=False)
    """[orders, fine bins]"""
    bits: BitCounts = field(init=False)
    halves: Array = field(init=False)
    """[half-spaces, 2] sums of the excess over the expected mass, and of its square."""
    leaks: Array = field(init=False)
    """[leak rates] sums of ln((1 - d) + d q(x)/p(x)), over possible tokens."""
    hits: Ints = field(init=False)
    """[1] tokens of probability 0."""

    def __post_init__(self) -> None:
        self.n = np.zeros(self.strata, np.int64)
        self.logs = np.zeros((self.strata, len(self.bets.names)))
        self.bins = np.zeros((len(ORDERS), self.strata, BINS), np.int64)
        self.fine = np.zeros((len(ORDERS), FINE_BINS), np.int64)
        self.bits = BitCounts.empty(self.lags)
        self.halves = np.zeros((len(RATIOS), 2))
        self.leaks = np.zeros(len(self.bets.leak_grid))
        self.hits = np.zeros(1, np.int64)

    def bet(self, scored: ScoredTokens) -> None:
        """Add bets and half-spaces of tokens."""
        if not len(scored.tokens):
            return
        tokens, rows, counts = scored.tokens, scored.rows, scored.counts.astype(np.float64)
        raw = scored.p_raw, scored.q_raw
        ratios = self.bets.log_ratios(tokens, scored.p, scored.q, *raw, rows)
        own = scored.p[rows, tokens]
        possible = own > 0
        quotient = scored.q[rows, tokens][possible] / own[possible]
        with np.errstate(divide="ignore"):
            logs = np.log1p(self.bets.leak_grid * (quotient[:, None] - 1))
        self.leaks += counts[possible] @ logs
        self.hits += int(counts[~possible].sum())
        index = np.arange(len(tokens))
        by_stratum = csr_array((counts, (scored.strata, index)), (self.strata, len(index)))
        self.logs += by_stratum @ ratios
        self.n += np.bincount(scored.strata, counts, self.strata).astype(np.int64)
        for ratio, half in zip(RATIOS, self.halves, strict=True):
            inside = scored.q > ratio * scored.p
            mass = np.einsum("nv,nv->n", inside, scored.p)
            excess = inside[rows, tokens] - mass[rows]
            half += (counts @ excess, counts @ excess**2)

    def place(self, u: Array, present: NDArray[np.bool_], strata: Ints) -> None:
        """Add randomised-PIT numbers of one call.

        Args:
            u: [orders, R, L] in [0, 1).
            present: [R, L], False behind the end of a run, and for impossible tokens.
            strata: [R, L].
        """
        flat = present.ravel()
        where = strata.ravel()[flat]
        for order, row in enumerate(u):
            fine = np.minimum((row.ravel()[flat] * FINE_BINS).astype(np.int64), FINE_BINS - 1)
            self.fine[order] += np.bincount(fine, minlength=FINE_BINS)
            cells = where * BINS + fine // (FINE_BINS // BINS)
            self.bins[order] += np.bincount(cells, minlength=self.strata * BINS).reshape(-1, BINS)
        ratio, index = ORDERS.index("ratio"), ORDERS.index("index")
        self.bits = self.bits + count_bits(u[[ratio, index]], present, self.lags)

    def sums(self) -> TokenSums:
        """What `statistics.mixture` combines."""
        return TokenSums(self.n, self.logs, self.bins)

    def half_space(self, index: int) -> HalfSpaceSums:
        """Sums of one half-space, for its confidence sequence."""
        excess, variance = self.halves[index].tolist()
        return HalfSpaceSums(int(self.n.sum()), excess, variance)

    def merge(self, other: "TokenScores") -> None:
        """Add the sums of other tokens."""
        for name in _ARRAYS:
            getattr(self, name)[...] += getattr(other, name)
        self.bits = self.bits + other.bits

    def state(self) -> State:
        """All of it, as plain arrays."""
        return {name: getattr(self, name) for name in _ARRAYS} | {
            "bit_ones": self.bits.ones,
            "bit_n": self.bits.n,
        }

    def restore(self, state: State) -> None:
        """Take over what `state` returned."""
        for name in _ARRAYS:
            setattr(self, name, state[name])
        self.bits = BitCounts(state["bit_ones"], state["bit_n"])


_ARRAYS = ("n", "logs", "bins", "fine", "halves", "leaks", "hits")
