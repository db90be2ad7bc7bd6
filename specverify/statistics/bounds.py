"""Upper confidence bounds: on total variation with no assumption, and on the rate of one event."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, binom

from specverify.errors import UsageError
from specverify.statistics.strata import OneOrMore, as_probabilities, as_strata


@dataclass(frozen=True)
class TVBound:
    """A total variation that is not exceeded, with confidence 1 - alpha."""

    estimate: float
    """Total variation between the empirical and the expected distribution."""

    bound: float
    """`estimate` plus the confidence width, at most 1."""

    alpha: float
    n: int


def tv_upper_bound(counts: OneOrMore, probabilities: OneOrMore, alpha: float) -> TVBound:
    """Bound TV(a, p) of the sampled law a from counts: TVhat + sqrt(ln(1/alpha) / (2n)).

    Agnostic: it holds for every a, every n and any number of cells (statistics.md section 2).
    Several strata of n_s observations each are bounded in the mean, weighted by sample share:
    TV = sum_s (n_s/n) TV(a_s, p_s).

    Proof. Let f = sum_s (n_s/n) TV(ahat_s, p_s), ahat_s the empirical law. TV is convex in its
    first argument and E ahat_s = a_s, so E f >= TV by Jensen. Changing one observation of stratum s
    moves TV(ahat_s, p_s) by at most 1/n_s, hence f by at most 1/n. McDiarmid's inequality (1989)
    for the lower tail, P(f <= E f - t) <= exp(-2 n t^2), gives P(TV > f + t) <= alpha for the t
    above. The bias E f - TV only helps: no term for it is needed on this side.

    Validity: observations are independent. Runs of one decoder are, if each has coins of its own:
    `randomness.independence` tests that, and this bound takes it for granted.

    Error rates: the bound lies below the true TV with probability at most alpha, for n_s fixed or
    conditioned on, evaluated once: a bound looked at repeatedly needs its alpha shared. It can
    only reach what E f allows, see `expected_tv_estimate`. Cells are taken as given; merging them
    first would bound the TV of the merged law only.

    Args:
        counts: observed counts [k], or one array a stratum; impossible cells included.
        probabilities: expected probabilities, same shapes.
        alpha: 1 minus the confidence.

    Returns:
        Estimate and bound; both are 1, which is always true, when there are no observations.

    Raises:
        UsageError: alpha outside (0, 1), shapes differ, invalid counts or probabilities.
    """
    _check_alpha(alpha)
    strata = as_strata(counts, probabilities)
    n = sum(stratum.n for stratum in strata)
    if n == 0:
        return TVBound(1.0, 1.0, alpha, 0)
    distance = sum(
        float(np.abs(stratum.counts - stratum.n * stratum.probabilities).sum())
        for stratum in strata
    )
    estimate = distance / (2 * n)
    return TVBound(estimate, min(1.0, estimate + _width(n, alpha)), alpha, n)


def expected_tv_estimate(probabilities: OneOrMore, n: int, shares: Sequence[float] = ()) -> float:
    """Largest value E TVhat can have when the sampled law is the expected one.

    E |phat_i - p_i| <= min(2 p_i (1 - p_i), sqrt(p_i (1 - p_i) / n)): Berend and Kontorovich
    (2013). The first is the value at n = 1 (it only falls with n), the second is Jensen. Half
    their sum over cells bounds E TVhat; from some 10 expected counts a cell on it is 1/0.80 of
    E TVhat, by normality.

    Args:
        probabilities: expected probabilities [k], or one array a stratum.
        n: observations, over all strata.
        shares: share of n each stratum gets; equal ones when empty.

    Raises:
        UsageError: n < 1, shares that do not match the strata or do not sum to 1, or invalid
            probabilities.
    """
    if n < 1:
        raise UsageError(f"an estimate needs observations, got n={n}")
    laws = as_probabilities(probabilities)
    return _expected(laws, _checked_shares(shares, len(laws)), n)


def samples_needed(
    probabilities: OneOrMore, target: float, alpha: float, shares: Sequence[float] = ()
) -> int:
    """Observations with which a correct sampler brings `tv_upper_bound` down to `target`.

    Smallest n with `expected_tv_estimate`(n) + sqrt(ln(1/alpha) / (2n)) <= target. A prediction,
    not a guarantee: the estimate scatters around its mean by less than 1/(2 sqrt(n)), while for
    well filled cells the bound on that mean leaves a fifth to spare. Measured for a Zipf law over
    64 tokens, target 0.02 and alpha 1e-6: met in 98.2 % of 20,000 runs at n, in 99.8 % at
    1.1 n.

    Args:
        probabilities: expected probabilities [k], or one array a stratum.
        target: bound wanted, between 0 and 1.
        alpha: 1 minus the confidence of the bound.
        shares: share of the observations each stratum gets; equal ones when empty.

    Raises:
        UsageError: target or alpha outside (0, 1), shares that do not match the strata, or
            invalid probabilities.
    """
    _check_alpha(alpha)
    if not 0 < target < 1:
        raise UsageError(f"target must lie strictly between 0 and 1, got {target}")
    laws = as_probabilities(probabilities)
    weights = _checked_shares(shares, len(laws))

    def reached(n: int) -> bool:
        return _expected(laws, weights, n) + _width(n, alpha) <= target

    low, high = 0, 1
    while not reached(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def clopper_pearson_upper(successes: int, n: int, alpha: float) -> float:
    """Upper confidence bound on the probability of one event, exact for every n.

    The rate r with P(Binomial(n, r) <= successes) = alpha: the 1 - alpha quantile of
    Beta(successes + 1, n - successes); 1 - alpha^(1/n) when nothing was seen. Source: Clopper and
    Pearson (1934).

    Error rates: below the true rate with probability at most alpha, for an event chosen and n
    fixed before the data. Divide alpha by the number of events bounded.

    Args:
        successes: times the event occurred.
        n: observations.
        alpha: 1 minus the confidence.

    Raises:
        UsageError: not 0 <= successes <= n, or alpha outside (0, 1).
    """
    _check_alpha(alpha)
    if not 0 <= successes <= n:
        raise UsageError(f"successes must lie between 0 and n, got {successes} of {n}")
    if successes == n:
        return 1.0
    return float(beta.isf(alpha, successes + 1, n - successes))


def rate_excluded(n: int, alpha: float, power: float = 0.999, *, rate: float = 0.0) -> float:
    """Smallest rate that `clopper_pearson_upper` excludes, with probability `power`, at a true one.

    The bound at c, the smallest count with P(Binomial(n, rate) <= c) >= power; at rate 0 that is
    1 - alpha^(1/n). As a test it rejects "the event has this rate or more", and the deviation it
    sees is how far the true rate lies below (Clopper and Pearson 1934).

    Valid for n fixed beforehand and independent observations of one rate; then exact, as the bound
    grows with the count. Error rates: a rate that is true is excluded with probability at most
    alpha; this one, or a larger one, is not with probability at most 1 - power.

    Args:
        n: observations.
        alpha: 1 minus the confidence of the bound.
        power: probability that the bound is this one or a smaller one.
        rate: the true one.

    Returns:
        The rate; 1, which excludes nothing, if every observation may be a hit.

    Raises:
        UsageError: n < 1, alpha or power outside (0, 1), or rate outside [0, 1).
    """
    if n < 1 or not 0 < power < 1 or not 0 <= rate < 1:
        raise UsageError(
            f"needs n >= 1, 0 < power < 1 and 0 <= rate < 1, got n={n}, power={power}, rate={rate}"
        )
    hits = int(binom.ppf(power, n, rate)) if rate else 0
    return clopper_pearson_upper(hits, n, alpha)


def samples_needed_to_exclude(
    limit: float, alpha: float, power: float = 0.999, *, rate: float = 0.0
) -> int:
    """Observations with which `clopper_pearson_upper` is at most `limit`, where `rate` is true.

    n with rate_excluded(n) <= limit < rate_excluded(n - 1), by bisection: ln(1/alpha) /
    -ln(1 - limit) at rate 0. Hits are whole, so above rate 0 a larger n may allow one more of them
    and miss the limit by a little: about monotone. Source, validity and error rates are those of
    `rate_excluded`.

    Args:
        limit: bound wanted, between the rate and 1.
        alpha: 1 minus the confidence of the bound.
        power: probability that the bound is met.
        rate: the true one.

    Raises:
        UsageError: limit outside (rate, 1), alpha or power outside (0, 1), or rate outside [0, 1).
    """
    if not 0 <= rate < limit < 1:
        raise UsageError(
            f"a bound lies above the true rate and below 1, got limit={limit}, rate={rate}"
        )

    def reached(n: int) -> bool:
        return rate_excluded(n, alpha, power, rate=rate) <= limit

    low, high = 0, 1
    while not reached(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def _width(n: int, alpha: float) -> float:
    return math.sqrt(-math.log(alpha) / (2 * n))


def _expected(laws: list[NDArray[np.float64]], shares: NDArray[np.float64], n: int) -> float:
    total = 0.0
    for law, share in zip(laws, shares, strict=True):
        variance = law * (1 - law)
        # A stratum that gets less than one observation on average adds its value at one.
        deviation = np.minimum(2 * variance, np.sqrt(variance / max(share * n, 1.0)))
        total += float(share * deviation.sum()) / 2
    return total


def _checked_shares(shares: Sequence[float], strata: int) -> NDArray[np.float64]:
    weights = np.asarray(shares if len(shares) else [1 / strata] * strata, np.float64)
    if len(weights) != strata or (weights < 0).any() or abs(weights.sum() - 1) > 1e-9:
        raise UsageError(f"{strata} strata need as many shares that sum to 1, got {list(shares)}")
    return weights


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise UsageError(f"alpha must lie strictly between 0 and 1, got {alpha}")
