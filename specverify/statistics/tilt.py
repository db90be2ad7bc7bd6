"""E-process for tokens grouped by context, from sums alone: counts and summed distributions."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specverify.errors import UsageError

KAPPAS = 10.0 ** np.arange(1, 7)
"""Prior weights, in tokens: how much must be seen before a bet leaves the expected distribution."""

IDLE = 0.25
"""Weight of never betting: ln E never falls below ln 0.25."""

_CHUNK = 2**21
_SMALLEST_EXPECTED = 1e-290  # dividing by anything smaller overflows
_SUM_TOLERANCE = 1e-6


class TiltProcess:
    """Bets p_t(x) r_g(x) / Z_t on the tokens of group g, the tilt r_g learned from earlier shards.

    With N and E a group's counts and summed distributions over the earlier shards, n tokens,
    r = (N + kappa pi) / ((n + kappa) pi), pi = E/n: the mean of a Dirichlet law, relative to pi;
    r = 1 on cells and in groups with E = 0. So the first shard of a group is not bet on, and every
    later one bets that its deviations repeat. Both the order of shards and their cut matter to the
    value; within a shard the order of tokens does not. Cells of expected count 0 are left out
    (r = 1): `support.support_e_value` judges them. A token of probability 0 in a group whose other
    tokens can have it has to be left out by the caller, of both sums.

    **Validity.** Token t of group g is drawn from p_t given the past, and r_g is fixed before the
    shard. Then r_g(x_t) / Z_t, Z_t = sum_x p_t(x) r_g(x), has conditional mean 1, for any p_t that
    differ as they like, provided the group is fixed before the token is. The product over tokens is
    a martingale that starts at 1. Only sums are kept, but ln is concave, so by Jensen over the m
    tokens of the group in this shard, with counts N' and summed distributions E',

        sum_t ln Z_t <= m ln(sum_t Z_t / m) = m ln(sum_x r_g(x) E'(x) / m),

    and sum_x N'(x) ln r_g(x) - m ln(r_g . E' / m) never exceeds the log of the martingale. It is
    equal to it where the p_t are equal, or equally tilted.

    **Mixture.** W_{g,kappa} is the process of one group and one kappa. For fixed kappa and
    epsilon, prod_g (1 - epsilon + epsilon W_{g,kappa}) is a martingale: one group moves at a time.
    Small epsilon finds a deviation in few of many groups (it costs ln 1/epsilon, the other groups
    about nothing), epsilon = 1 one that they share. All pairs are mixed with equal weights, and
    with `IDLE` on never betting. P(sup E >= 1/alpha) <= alpha (Ville 1939), looked at after every
    shard. Bets in the sense of Shafer (2021) and of Waudby-Smith and Ramdas (2024); the sparse
    product is that of likelihood ratios in Ingster (1997).

    Error rates: with laws that differ inside 6 groups and 16 shards, 3,000 runs reached 1/alpha in
    0.050, 0.0037 and 0 of the cases for alpha 0.5, 0.1 and 0.01. Power 0.9 at 1e-6, in n against a
    chi-squared test over all groups: under 0.8 of it for a deviation in one of 20 groups (V 8), 1.5
    times for one group alone or one that 20 groups share. A dense one over 1,000 cells takes more
    than twice as many: a tilt has to be learned cell by cell.
    """

    def __init__(self, groups: int, vocab: int) -> None:
        if groups < 1 or vocab < 1:
            raise UsageError(f"a tilt needs groups and cells, got groups={groups}, vocab={vocab}")
        self._counts = np.zeros((groups, vocab))
        self._expected = np.zeros((groups, vocab))
        self._logs = np.zeros((groups, len(KAPPAS)))
        rates = groups ** -np.array([0, 1 / 3, 2 / 3, 1])
        self._epsilons = np.unique(rates)

    def update(
        self, observed: ArrayLike, expected: ArrayLike, groups: NDArray[np.int64] | None = None
    ) -> None:
        """Bet on one shard, then learn from it.

        ln W_{g,kappa} += sum_x N'(x) ln r(x) - m ln(r . E' / m), r(x) = 1 + w (N(x)/E(x) - 1),
        w = n/(n + kappa); then N += N', E += E', n += m. This r is that of the class (elementary),
        which gives source, proof and error rates.

        Valid if which tokens are in the shard, and in which group, is fixed before each of them,
        and its sums are those of the same tokens. Shards are given once each, in an order fixed
        beforehand.

        Args:
            observed: tokens counted [M, V].
            expected: sum over the same tokens of their distributions p_t [M, V].
            groups: [M], which groups those are, each once; all G of them when omitted.

        Raises:
            UsageError: another shape, negative or non-finite entries, or a group whose two sums
                differ by more than 1e-6 of its tokens.
        """
        counts, sums = np.asarray(observed), np.asarray(expected)
        if groups is None:
            groups = np.arange(len(self._counts))
        shape = (len(groups), self._counts.shape[1])
        if counts.shape != shape or sums.shape != shape:
            raise UsageError(
                f"{shape[0]} groups of this tilt have cells {shape}, the shard has observed "
                f"{counts.shape} and expected {sums.shape}"
            )
        if not len(groups):
            return
        tokens, masses = counts.sum(axis=1), sums.sum(axis=1)
        if not (counts.min() >= 0 and sums.min() >= 0 and np.isfinite(masses).all()):
            raise UsageError("counts and summed distributions must be finite and nonnegative")
        apart = np.abs(tokens - masses) > _SUM_TOLERANCE * np.maximum(tokens, 1)
        if apart.any():
            row = int(apart.argmax())
            raise UsageError(
                f"group {groups[row]} has {tokens[row]} tokens, but distributions that sum to "
                f"{masses[row]}; add p_t for every token counted, and for no other"
            )
        met = np.flatnonzero(tokens)
        step = max(1, _CHUNK // counts.shape[1])
        for start in range(0, len(met), step):
            rows = met[start : start + step]
            # A count where nothing was expected is no deviation to learn.
            seen = np.where(sums[rows] > 0, counts[rows], 0)
            self._bet(groups[rows], seen, sums[rows], tokens[rows])
            self._counts[groups[rows]] += seen
            self._expected[groups[rows]] += sums[rows]

    @property
    def log_e(self) -> float:
        """Value of ln E after the shards so far: 0 at the start, at least ln `IDLE`.

        E = IDLE + (1 - IDLE) mean over (kappa, epsilon) of
        prod_g (1 - epsilon + epsilon W_{g,kappa}).
        Valid after every shard: P(sup E >= 1/alpha) <= alpha under the null (Ville 1939).
        """
        moved = self._logs[self._logs.any(axis=1)]  # the other groups multiply by 1
        components = [
            np.logaddexp(np.log1p(-epsilon) if epsilon < 1 else -np.inf, np.log(epsilon) + moved)
            for epsilon in self._epsilons
        ]
        logs = np.array([component.sum(axis=0) for component in components])
        mixed = float(np.logaddexp.reduce(logs, axis=None)) - math.log(logs.size)
        return float(np.logaddexp(math.log(IDLE), math.log1p(-IDLE) + mixed))

    @property
    def group_log_es(self) -> NDArray[np.float64]:
        """Values of ln E of each group alone [G], the mean over kappa: where it deviates.

        E_g = mean over kappa of W_{g,kappa}; 0 = ln 1 for a group that was not bet on. Source: the
        method of mixtures (Robbins 1970), as in the class.

        Valid after every shard for one group named beforehand: P(sup E_g >= 1/alpha) <= alpha under
        the null (Ville 1939). The largest of G is a diagnosis; as a test it needs alpha / G.
        """
        return np.logaddexp.reduce(self._logs, axis=1) - math.log(len(KAPPAS))

    def _bet(self, rows: NDArray, seen: NDArray, sums: NDArray, tokens: NDArray) -> None:
        earlier = self._expected[rows].sum(axis=1)
        known = self._expected[rows] > _SMALLEST_EXPECTED
        # N / E; the tilt is 1 + w (N/E - 1) with w = n / (n + kappa), so its sums are linear in w.
        ratio = np.ones(known.shape)
        np.divide(self._counts[rows], self._expected[rows], out=ratio, where=known)
        shift = np.einsum("gv,gv->g", ratio - 1, sums) / sums.sum(axis=1)
        group, cell = np.nonzero(seen)
        hits, excess = seen[group, cell], ratio[group, cell] - 1
        for index, kappa in enumerate(KAPPAS):
            weight = earlier / (earlier + kappa)
            gains = np.bincount(group, hits * np.log1p(weight[group] * excess), len(rows))
            self._logs[rows, index] += gains - tokens * np.log1p(weight * shift)
