"""Chi-squared and G tests of counts against a known law, pooled by expected counts only."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import xlogy
from scipy.stats import chi2

from specverify.errors import UsageError
from specverify.statistics.result import TestResult
from specverify.statistics.strata import OneOrMore, as_probabilities, as_strata

MINIMUM_EXPECTED = 25.0
"""Smallest expected count of a cell.

With it the chi-squared law overstates significance by a factor 1.0 at 1e-2, 1.3 at 1e-3 and 1.4 at
1e-4 (statistics.md section 2, V=1024); with the customary 5 the factor is already 2.4. Beyond 1e-4
only G keeps to it, see `chi_squared` and `g_test`.
"""


@dataclass(frozen=True)
class Pooling:
    """Which pooled cell each cell belongs to: label -1 where p = 0, else 0 to `cells` - 1."""

    labels: NDArray[np.int64]
    """[k], 0 to `cells - 1`; -1 marks a cell of probability 0, which is never pooled."""

    cells: int
    """Pooled cells."""

    @property
    def df(self) -> int:
        """Degrees of freedom left: cells - 1, and 0 without cells."""
        return max(self.cells - 1, 0)


def pool(probabilities: ArrayLike, n: int, minimum: float = MINIMUM_EXPECTED) -> Pooling:
    """Merge cells whose expected count n p is below `minimum` into one rest cell.

    A rest cell that stays below `minimum` joins the smallest kept cell. The rule looks at p and n
    only: a choice that looked at the counts would bias the test (PyTorch's and older JAX's testers
    select cells by what was observed; statistics.md section 1). Cells with p = 0 are left out,
    since merged with others their hits would be forgiven; `support.support_e_value` judges them.

    Source: small expected counts are pooled after Cochran (1954), whose minimum is smaller; why 25
    stands at `MINIMUM_EXPECTED`. Valid for any n fixed or conditioned on: merged counts are
    multinomial with the merged probabilities.

    Args:
        probabilities: expected probabilities [k].
        n: observations; random only if the test conditions on it.
        minimum: smallest expected count of a pooled cell, above 0.

    Returns:
        The pooling. A single cell means nothing can be compared (0 degrees of freedom).

    Raises:
        UsageError: `minimum` is not positive, n is negative, or the probabilities are invalid.
    """
    if not minimum > 0 or n < 0:
        raise UsageError(f"pooling needs minimum > 0 and n >= 0, got minimum={minimum}, n={n}")
    (law,) = as_probabilities(probabilities)
    expected = n * law
    kept = expected >= minimum
    rest = (law > 0) & ~kept
    labels = np.full(len(law), -1, dtype=np.int64)
    labels[kept] = np.arange(kept.sum())
    cells = int(kept.sum())
    if rest.any():
        if cells == 0 or expected[rest].sum() >= minimum:
            labels[rest] = cells
            cells += 1
        else:
            labels[rest] = labels[kept][np.argmin(expected[kept])]
    return Pooling(labels, cells)


def chi_squared(
    counts: OneOrMore, probabilities: OneOrMore, *, minimum: float = MINIMUM_EXPECTED
) -> TestResult:
    """Pearson's test (1900): X2 = sum (N - n p)^2 / (n p) over pooled cells, summed over strata.

    Under the null, X2 tends to a chi-squared law with (cells - 1) degrees of freedom a stratum;
    strata are independent, so statistics and degrees of freedom add. Each stratum's number of
    observations must be fixed by the design or conditioned on (then it must be decided by events
    before the observation itself, such as "the position was reached").

    The p-value holds at a sample size fixed beforehand. Where an e-process or a bound chose when to
    stop, or the counts are looked at again as they grow, it is descriptive and decides nothing.

    Error rates: the p-value is asymptotic, and too small in the far tail, because X2 grows with the
    square of an upward deviation whose probability falls more slowly. With one cell of 25
    expected against a large rest, exact enumeration gives 1.3, 2, 7 and 66 times the nominal level
    at 1e-3, 1e-4, 1e-6 and 1e-9; with fifty cells 6 times at 1e-9. Decide at such levels by
    `g_test`.

    Args:
        counts: observed counts [k], or one array a stratum.
        probabilities: expected probabilities, same shapes.
        minimum: smallest expected count of a pooled cell.

    Returns:
        The result. Observations on cells of probability 0 are taken out, reported as `impossible`,
        and the test is conditional on their number.

    Raises:
        UsageError: shapes differ, counts are not counts, probabilities do not sum to 1.
    """

    def distance(observed: NDArray, expected: NDArray) -> float:
        return float(((observed - expected) ** 2 / expected).sum())

    return _test("chi-squared", distance, counts, probabilities, minimum)


def g_test(
    counts: OneOrMore, probabilities: OneOrMore, *, minimum: float = MINIMUM_EXPECTED
) -> TestResult:
    """Likelihood-ratio test (Wilks 1938): G = 2 sum N ln(N / (n p)) = 2 n KL(empirical || p).

    Same strata, pooling, arguments, returns and errors as `chi_squared`, same asymptotic law. G
    sees a few strongly raised cells sooner, X2 a mild shift of many.

    The p-value holds at a sample size fixed beforehand. Where an e-process or a bound chose when to
    stop, or the counts are looked at again as they grow, it is descriptive and decides nothing.

    Error rates: asymptotic, but right far into the tail when expected counts are at least 25: by
    exact enumeration of one small cell, and of sums of 5 to 50, 0.5 to 1.7 times the nominal level
    from 1e-3 to 1e-9 (with expected counts of 5, 10.9 times at 1e-4).
    """

    def distance(observed: NDArray, expected: NDArray) -> float:
        return max(0.0, 2 * float(xlogy(observed, observed / expected).sum()))

    return _test("G", distance, counts, probabilities, minimum)


def _test(
    name: str,
    distance: Callable[[NDArray, NDArray], float],
    counts: OneOrMore,
    probabilities: OneOrMore,
    minimum: float,
) -> TestResult:
    strata = as_strata(counts, probabilities)
    statistic, df, cells, impossible = 0.0, 0, 0, 0
    for stratum in strata:
        hits = int(stratum.counts[stratum.probabilities == 0].sum())
        n = stratum.n - hits
        pooling = pool(stratum.probabilities, n, minimum)
        possible = pooling.labels >= 0
        labels = pooling.labels[possible]
        expected = np.bincount(labels, n * stratum.probabilities[possible], pooling.cells)
        observed = np.bincount(labels, stratum.counts[possible], pooling.cells)
        impossible += hits
        cells += pooling.cells
        df += pooling.df
        if pooling.df:
            statistic += distance(observed, expected)
    p_value = float(chi2.sf(statistic, df)) if df else 1.0
    n = sum(stratum.n for stratum in strata)
    return TestResult(name, statistic, df, p_value, n, cells, len(strata), impossible)
