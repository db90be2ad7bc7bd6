"""Confidence sequences: bounds that hold at every look, for runs that stop on them."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm

from specverify.errors import UsageError
from specverify.statistics.bounds import TVBound, clopper_pearson_upper, tv_upper_bound
from specverify.statistics.strata import OneOrMore

_SLOPES = np.array([*(2.0 ** -np.arange(14.0, 0.0, -1.0)), 0.75, 0.9])
"""Fixed lambda grid: the best one at variance sum V is about sqrt(2 ln(1/alpha) / V)."""

_COSTS = -np.log1p(-_SLOPES) - _SLOPES
_LOOK_RATIO = math.sqrt(2)


@dataclass(frozen=True)
class HalfSpaceSums:
    """Sums over the tokens seen of how often they fell into A_t against how often they should.

    A_t is a set of tokens chosen from the prefix alone, such as {q_t > p_t}. Sums of disjoint sets
    of tokens add with `+`.
    """

    n: int = 0
    """Tokens."""

    excess: float = 0.0
    """sum_t (1{x_t in A_t} - p_t(A_t))."""

    variance: float = 0.0
    """sum_t (1{x_t in A_t} - p_t(A_t))^2."""

    def __add__(self, other: "HalfSpaceSums") -> "HalfSpaceSums":
        return HalfSpaceSums(
            self.n + other.n, self.excess + other.excess, self.variance + other.variance
        )


def excess_upper(sums: HalfSpaceSums, alpha: float) -> float:
    """Upper confidence sequence on the mean over tokens of a_t(A_t) - p_t(A_t).

    a_t is the law the token was drawn from given the prefix; both laws and the sets may change with
    every token. For A_t = {q_t > p_t} it bounds the average leak of mass towards the draft, with no
    model of the defect; it says nothing of deviations inside A_t or outside.

    Let X_t = 1{x_t in A_t}, m_t = a_t(A_t), guess h_t = p_t(A_t), D = sum (m_t - X_t), V =
    sum (X_t - h_t)^2 and psi(l) = -ln(1 - l) - l. For l in [0, 1) the process exp(l D - psi(l) V)
    is a supermartingale that starts at 1: Fan, Grama and Liu (2015) give exp(l y - psi(l) y^2)
    <= 1 + l y for y >= -1, applied to y = h_t - X_t; times exp(l (m_t - h_t)) its conditional mean
    is at most exp(l (m_t - h_t)) (1 - l (m_t - h_t)) <= 1. Howard, Ramdas, McAuliffe and Sekhon
    (2021), theorem 4. A mixture over a fixed grid of l is one too, so with probability 1 - alpha it
    stays below 1/alpha for ever (Ville). The bound is (excess + D*)/n, D* the D at which the
    mixture is 1/alpha.

    Error rates: at most alpha over all looks together, for every dependence of the laws on the
    past. Width at most 1.17 times that of the best single l at alpha 1e-6 and below, 1.26 at 1e-3,
    for variance 0.25 or 0.02 a token and n from 1e2 to 1e9. At variance 0.25 and alpha 1e-6 that
    is 1.10 to 1.15 times the width sqrt(ln(1/alpha)/(2n)) of a single look (Hoeffding) from n = 1e4
    on, 1.6 times at 1e2; at variance 0.02 it is a third of it.

    Args:
        sums: of every token up to this look.
        alpha: 1 minus the confidence.

    Returns:
        The bound, at most 1; 1 when nothing was seen.

    Raises:
        UsageError: alpha outside (0, 1), or sums that no tokens could have.
    """
    _check_alpha(alpha)
    most = sums.n * (1 + 1e-6)  # sums of float32 probabilities round
    if sums.n < 0 or not 0 <= sums.variance <= most or not abs(sums.excess) <= most:
        raise UsageError(
            f"no {sums.n} tokens have excess {sums.excess} and variance {sums.variance}; "
            "add sums of distinct tokens, each within [-1, 1]"
        )
    if sums.n == 0:
        return 1.0
    return min(1.0, (sums.excess + _deviation(sums.variance, alpha)) / sums.n)


def excess_samples_needed(
    target: float, alpha: float, variance: float = 0.25, power: float = 0.999
) -> int:
    """Tokens after which a correct sampler's `excess_upper` is at most `target`.

    Smallest n at which the bound, with variance sum n `variance` and an excess at its `power`
    quantile under the normal law, is at most `target`. A prediction, not a guarantee: p_t(A_t)
    decides the variance p_t(A_t) (1 - p_t(A_t)), 0.25 at worst.

    Args:
        target: bound wanted, between 0 and 1.
        alpha: 1 minus the confidence of the bound.
        variance: mean of p_t(A_t) (1 - p_t(A_t)), at most 0.25.
        power: probability that the target is met at n.

    Raises:
        UsageError: an argument outside its range, or a target that the bound never reaches.
    """
    _check_alpha(alpha)
    if not 0 < target < 1 or not 0 <= variance <= 0.25 or not 0 < power < 1:
        raise UsageError(
            "needs 0 < target < 1, 0 <= variance <= 0.25 and 0 < power < 1, got "
            f"target={target}, variance={variance}, power={power}"
        )
    # The smallest slope of the mixture pays this much of the variance a token, however many.
    least = float((_COSTS / _SLOPES)[0]) * variance
    if target <= least:
        raise UsageError(
            f"no number of tokens takes this bound below {least:.3g} at variance {variance:g}, got "
            f"target={target}; ask for more than that"
        )
    quantile = float(norm.ppf(power)) * math.sqrt(variance)

    def reached(n: int) -> bool:
        return _deviation(n * variance, alpha) + quantile * math.sqrt(n) <= target * n

    low, high = 0, 1
    while not reached(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def leak_upper(
    leak_grid: ArrayLike, leak_logs: ArrayLike, log_mix: float | None, alpha: float
) -> float:
    """Upper confidence sequence on the leak rate d, if the law is (1 - d) p_t + d q_t.

    A bound within this family, not on total variation: a sampler that deviates in another
    direction may be far from p_t at any value of it. Report it as "no leak towards q above d".

    Let l(d) = sum_t ln(((1 - d) p_t + d q_t)(x_t) / p_t(x_t)), not conditioned on anything, and
    exp(log_mix) any process that is, against p_t, a mixture of likelihood ratios of predictable
    laws on the tokens with p_t > 0. If d is the rate,
    exp(log_mix - l(d)) is an e-process (a likelihood ratio against the true law), so it reaches
    1/alpha with probability at most alpha, at any look (Ville; Robbins 1970). A token with p_t = 0
    takes it to 0: then nothing is excluded, and the caller has to say so. d is excluded when
    log_mix - l(d) >= ln(1/alpha). l is concave in d, being a sum of logs of linear functions, so
    once past the largest value on the grid it only falls: every rate above an excluded value
    there, on the grid or between, is excluded too.

    Args:
        leak_grid: rates d, ascending in (0, 1].
        leak_logs: l(d) for each; -inf where the law gives a seen token probability 0.
        log_mix: log of the mixture over the same tokens; None takes the mean of exp(l) over 0 and
            the grid.
        alpha: 1 minus the confidence.

    Returns:
        Smallest value of the grid from which on every one is excluded; 1 if there is none.

    Raises:
        UsageError: the grid is not ascending within (0, 1], shapes differ, a log is NaN or +inf,
            or alpha outside (0, 1).
    """
    _check_alpha(alpha)
    grid, logs = np.asarray(leak_grid, np.float64), np.asarray(leak_logs, np.float64)
    if grid.ndim != 1 or not len(grid) or grid.shape != logs.shape:
        raise UsageError(
            f"needs one log a rate, got {grid.shape} rates and {logs.shape} logs of them"
        )
    if not (grid[0] > 0 and grid[-1] <= 1 and (np.diff(grid) > 0).all()):
        raise UsageError(f"leak rates must ascend within (0, 1], got {grid.tolist()}")
    if not (logs < np.inf).all():
        raise UsageError(
            f"leak logs must be numbers or -inf, got {logs.tolist()}; leave tokens of target "
            "probability 0 out, the support test judges them"
        )
    with_zero = np.concatenate([[0.0], logs])
    mix = (
        float(np.logaddexp.reduce(with_zero)) - math.log(len(with_zero))
        if log_mix is None
        else log_mix
    )
    included = np.flatnonzero(mix - logs < -math.log(alpha))
    # Up to the grid's maximum l may still rise between two values, whatever they are.
    first = max(int(included[-1]) + 1 if len(included) else 0, int(with_zero.argmax()))
    return float(grid[first]) if first < len(grid) else 1.0


def look_schedule(planned: int, looks: int = 8) -> tuple[int, ...]:
    """Shard counts at which `tv_upper_bound_at_looks` may be evaluated: planned / sqrt(2)^i.

    Fixed before the run, so that alpha can be shared over them. Steps of sqrt(2) stop at most 41 %
    late; a bound on total variation is out of reach much earlier than planned.

    Args:
        planned: shards the run has at most.
        looks: looks at most; fewer when rounding makes two of them one.

    Returns:
        Ascending, distinct, at least 1, the last one `planned`.

    Raises:
        UsageError: planned or looks below 1.
    """
    if planned < 1 or looks < 1:
        raise UsageError(f"needs planned >= 1 and looks >= 1, got {planned} and {looks}")
    return tuple(sorted({math.ceil(planned / _LOOK_RATIO**i) for i in range(looks)}))


def tv_upper_bound_at_looks(
    counts: OneOrMore, probabilities: OneOrMore, alpha: float, looks: int
) -> TVBound:
    """`bounds.tv_upper_bound` at one of `looks` looks that were fixed before the run.

    Each look gets alpha / looks, so that with probability 1 - alpha all of them hold (union bound),
    also the one a run stops at. Between the looks of `look_schedule` nothing is claimed.

    Args:
        counts: observed counts up to this look, as in `tv_upper_bound`.
        probabilities: expected probabilities, same shapes.
        alpha: 1 minus the confidence of all looks together.
        looks: number of looks, those not taken included.

    Returns:
        The bound; its `alpha` is the share of this look.

    Raises:
        UsageError: looks below 1, or see `tv_upper_bound`.
    """
    _check_alpha(alpha)
    if looks < 1:
        raise UsageError(f"a bound is looked at least once, got looks={looks}")
    return tv_upper_bound(counts, probabilities, alpha / looks)


def rate_upper_bound_at_looks(hits: int, n: int, alpha: float, looks: int) -> float:
    """`bounds.clopper_pearson_upper` at one of `looks` looks that were fixed before the run.

    The rate r with P(Binomial(n, r) <= hits) = alpha / looks (Clopper and Pearson 1934): with
    probability 1 - alpha all looks hold (union bound), also the one a run stops at. Between the
    looks of `look_schedule` nothing is claimed.

    Validity: observations are independent and each look's n is fixed, so count what has coins of
    its own: runs, not tokens of one run, whose number and rates may hang on each other. Runs may
    differ in rate, as those of several prompts do, if hits + 1 <= n r: then r bounds the mean of
    their rates (Hoeffding 1956, theorem 4). It is so where alpha / looks is small and hits are few:
    n r = 13.7 without a hit at 1e-6 and n = 1000.

    Error rates: some look lies below the true rate with probability at most alpha.

    Args:
        hits: observations with the event up to this look.
        n: observations up to this look.
        alpha: 1 minus the confidence of all looks together.
        looks: number of looks, those not taken included.

    Returns:
        The bound; 1, which is always true, without observations.

    Raises:
        UsageError: alpha outside (0, 1), looks below 1, or not 0 <= hits <= n.
    """
    _check_alpha(alpha)
    if looks < 1:
        raise UsageError(f"a bound is looked at least once, got looks={looks}")
    return clopper_pearson_upper(hits, n, alpha / looks)


def _deviation(variance: float, alpha: float) -> float:
    """D at which the mixture of exp(l D - psi(l) V) over the grid reaches 1/alpha."""
    level = math.log(len(_SLOPES) / alpha)
    costs = _COSTS * variance
    # At `high` one term of the sum reaches the level alone, below `low` even all of them do not.
    high = float(((level + costs) / _SLOPES).min())
    low = float(((level - math.log(len(_SLOPES)) + costs) / _SLOPES).min())
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        reached = float(np.logaddexp.reduce(_SLOPES * middle - costs)) >= level
        low, high = (low, middle) if reached else (middle, high)
    return high


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise UsageError(f"alpha must lie strictly between 0 and 1, got {alpha}")
