"""What a chi-squared or G test can see: noncentral chi-squared power, turned both ways."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import root_scalar
from scipy.stats import chi2, ncx2

from specverify.errors import UsageError
from specverify.statistics.goodness import MINIMUM_EXPECTED


@dataclass(frozen=True)
class Detectable:
    """Smallest deviation a chi-squared or G test sees with the stated probability.

    divergence = noncentrality / n and tv = sqrt(divergence) / 2; see `detectable` for validity.
    """

    divergence: float
    """chi2(a || p) = sum (a - p)^2 / p over the tested (pooled) cells, averaged over strata."""

    tv: float
    """Every deviation of at least this total variation on the tested cells is seen."""

    n: int
    df: int
    alpha: float
    power: float


def chi_squared_divergence(alternative: ArrayLike, probabilities: ArrayLike) -> float:
    """chi2(a || p) = sum (a - p)^2 / p; infinite where a has mass on a cell of probability 0.

    Source: Pearson's statistic (1900) over n, at counts N = n a. n times this is the noncentrality
    of that statistic under a (Patnaik 1949), and of G to first order in a/p - 1. Valid for any two
    laws on the same cells; that they are laws is not checked.

    Args:
        alternative: probabilities a [k].
        probabilities: probabilities p [k].
    """
    a, p = np.asarray(alternative, np.float64), np.asarray(probabilities, np.float64)
    possible = p > 0
    if (a[~possible] > 0).any():
        return math.inf
    return float(((a[possible] - p[possible]) ** 2 / p[possible]).sum())


def power_chi_squared(noncentrality: float, df: int, alpha: float) -> float:
    """Probability that a test at level alpha rejects: P(X > c), X ~ noncentral chi-squared.

    c is the 1 - alpha quantile of the central law. Source: Patnaik (1949). Valid where `goodness`
    is (expected counts of 25, n fixed beforehand) and for deviations small enough that a/p stays
    near 1; strong ones are seen earlier than predicted.

    Args:
        noncentrality: sum over strata of n chi2(a || p).
        df: degrees of freedom.
        alpha: level of the test.

    Raises:
        UsageError: df < 1, noncentrality < 0 or alpha outside (0, 1).
    """
    _check(df, alpha, 0.5)
    if noncentrality < 0:
        raise UsageError(f"noncentrality must be at least 0, got {noncentrality}")
    if noncentrality == 0:
        return alpha
    return float(ncx2.sf(chi2.isf(alpha, df), df, noncentrality))


def noncentrality_needed(df: int, alpha: float, power: float) -> float:
    """Noncentrality lambda at which `power_chi_squared` reaches `power`.

    The root of P(X > c) = power in lambda, X ~ noncentral chi-squared(df, lambda), c the 1 - alpha
    quantile of chi-squared(df): Patnaik (1949), inverted numerically. There is one root, as the
    power rises with lambda. About (z_alpha + z_beta) sqrt(2 df) for large df (elementary: the
    normal approximation of both laws); 62 at df 4 and 154 at df 124 for alpha 1e-6 and power 0.99.

    Valid where `power_chi_squared` is. Error rates: alarms with probability alpha under the null,
    misses with probability 1 - power at lambda, both to the accuracy of the chi-squared laws.

    Args:
        df: degrees of freedom.
        alpha: level of the test.
        power: probability of an alarm.

    Raises:
        UsageError: df < 1, or not 0 < alpha < power < 1.
    """
    _check(df, alpha, power)
    high = 1.0
    while power_chi_squared(high, df, alpha) < power:
        high *= 2

    def excess(noncentrality: float) -> float:
        return power_chi_squared(noncentrality, df, alpha) - power

    return float(root_scalar(excess, bracket=(0.0, high), method="brentq").root)


def detectable(n: int, df: int, alpha: float, power: float = 0.999) -> Detectable:
    """Smallest chi2-divergence that n observations reveal with probability `power`.

    divergence = `noncentrality_needed` / n (Patnaik 1949). Since chi2(a || p) >= 4 TV^2
    (elementary: Cauchy-Schwarz), any deviation of total variation at least sqrt(divergence) / 2 has
    at least that divergence, hence `tv`. It speaks of the tested cells: pooling can only hide what
    lies inside a pooled cell.

    Valid where `power_chi_squared` is: n fixed beforehand, expected counts of 25. A prediction, not
    a guarantee. Error rates: the test alarms with probability alpha under the null and misses such
    a deviation with probability at most 1 - power, as far as the asymptotic laws hold.

    Args:
        n: observations, over all strata.
        df: degrees of freedom of the test.
        alpha: level of the test.
        power: probability of an alarm.

    Raises:
        UsageError: n < 1 or df < 1 (a test without degrees of freedom sees nothing), or not
            0 < alpha < power < 1.
    """
    if n < 1:
        raise UsageError(f"nothing is detectable without observations, got n={n}")
    divergence = noncentrality_needed(df, alpha, power) / n
    return Detectable(divergence, min(1.0, math.sqrt(divergence) / 2), n, df, alpha, power)


def samples_needed_chi_squared(
    divergence: float, df: int, alpha: float, power: float = 0.999
) -> int:
    """Observations at which a deviation of this chi2-divergence is seen with probability `power`.

    n = `noncentrality_needed` / divergence, rounded up (elementary: noncentrality is linear in n;
    Patnaik 1949 for its law).

    Valid where `power_chi_squared` is: for n fixed beforehand, at which every tested cell expects
    25. A prediction, not a guarantee. Error rates: alpha under the null, 1 - power at the
    deviation, as far as the asymptotic laws hold.

    Args:
        divergence: chi2(a || p) on the tested cells, above 0; see `chi_squared_divergence`.
        df: degrees of freedom of the test at that n.
        alpha: level of the test.
        power: probability of an alarm.

    Raises:
        UsageError: divergence <= 0, df < 1, or not 0 < alpha < power < 1.
    """
    if not divergence > 0:
        raise UsageError(f"divergence must be positive, got {divergence}: nothing to detect")
    return max(1, math.ceil(noncentrality_needed(df, alpha, power) / divergence))


def samples_needed_any(tv: float, cells: int, alpha: float, power: float = 0.999) -> int:
    """Observations that reveal any deviation of total variation `tv` or more on so many cells.

    n = max(lambda / (4 TV^2), 25 k), lambda = `noncentrality_needed`(k - 1): the chi2-divergence is
    at least 4 TV^2 (elementary: Cauchy-Schwarz), and below 25 a cell `goodness.pool` merges cells,
    which hides what lies inside a merged one (as Cochran 1954 advises; why at 25 is told
    at `goodness.MINIMUM_EXPECTED`). For cells of equal probability that is exact; if some are
    rarer, they are merged all the same, and the promise is about the merged law.

    Valid where `power_chi_squared` is, for n fixed beforehand. A prediction, not a guarantee. Error
    rates: alpha under the null, at most 1 - power at every such deviation, as far as the asymptotic
    laws hold.

    Args:
        tv: total variation to be seen, between 0 and 1.
        cells: k, at least 2.
        alpha: level of the test.
        power: probability of an alarm.

    Raises:
        UsageError: tv outside (0, 1), cells < 2, or not 0 < alpha < power < 1.
    """
    if not 0 < tv < 1:
        raise UsageError(f"a total variation to be seen lies between 0 and 1, got {tv}")
    needed = samples_needed_chi_squared(4 * tv**2, cells - 1, alpha, power)
    return max(needed, _unpooled(cells))


def detectable_any(n: int, cells: int, alpha: float, power: float = 0.999) -> float | None:
    """Smallest total variation that n observations reveal whatever the deviation looks like.

    TV = sqrt(lambda / n) / 2, lambda = `noncentrality_needed`(k - 1): the other direction of
    `samples_needed_any`, with its source (chi2 >= 4 TV^2), validity (n fixed beforehand; the merged
    law, if cells are rarer than others) and error rates (alpha; at most 1 - power).

    Args:
        n: observations.
        cells: k, at least 2.
        alpha: level of the test.
        power: probability of an alarm.

    Returns:
        Total variation; None below 25 observations a cell, or if even a total variation of 1 could
        be missed.

    Raises:
        UsageError: n < 1, cells < 2, or not 0 < alpha < power < 1.
    """
    found = detectable(n, cells - 1, alpha, power)
    return found.tv if n >= _unpooled(cells) and found.tv < 1 else None


def _unpooled(cells: int) -> int:
    return math.ceil(MINIMUM_EXPECTED * cells)


def _check(df: int, alpha: float, power: float) -> None:
    if df < 1:
        raise UsageError(f"a test with {df} degrees of freedom detects nothing; pool fewer cells")
    if not 0 < alpha < power < 1:
        raise UsageError(f"needs 0 < alpha < power < 1, got alpha={alpha}, power={power}")
