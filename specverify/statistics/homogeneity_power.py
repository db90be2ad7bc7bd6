"""What `homogeneity` sees of two samples of unknown laws, and how large they have to be."""

import math

from specverify.errors import UsageError
from specverify.statistics.goodness import MINIMUM_EXPECTED
from specverify.statistics.power import noncentrality_needed


def detectable_two_samples(
    n_a: int, n_b: int, cells: int, alpha: float, power: float = 0.999
) -> float | None:
    """Smallest total variation between two laws that samples of these sizes reveal.

    TV = sqrt(lambda / (4 m)), m = n_a n_b / (n_a + n_b), lambda = `power.noncentrality_needed` at
    k - 1 degrees of freedom. The statistic of laws a and b is about noncentral chi-squared with
    noncentrality m sum (a - b)^2 / c, c = (n_a a + n_b b) / (n_a + n_b) (Meng and Chapman 1966),
    and that sum is at least 4 TV^2 (elementary: Cauchy-Schwarz). Against `power.detectable_any`
    two equal samples need twice the observations, each.

    Valid where `homogeneity.homogeneity` is: sizes fixed beforehand, observations independent. A
    prediction, not a guarantee: the asymptotic tail was measured down to 1e-4. Of cells that are
    rarer than others, what lies inside a merged cell is not seen. Error rates: alpha under the
    null, misses with probability at most 1 - power, as far as the asymptotic laws hold.

    Args:
        n_a: observations of the first sample.
        n_b: of the second.
        cells: k, at least 2.
        alpha: level of the test.
        power: probability of an alarm.

    Returns:
        Total variation; None below 25 observations a cell in the smaller sample, or if even a total
        variation of 1 could be missed.

    Raises:
        UsageError: a sample without observations, cells < 2, or not 0 < alpha < power < 1.
    """
    if min(n_a, n_b) < 1:
        raise UsageError(f"two samples need observations, both of them, got {n_a} and {n_b}")
    needed = noncentrality_needed(cells - 1, alpha, power)
    tv = math.sqrt(needed * (1 / n_a + 1 / n_b) / 4)
    return tv if min(n_a, n_b) >= _unpooled(cells) and tv < 1 else None


def samples_needed_two_samples(
    tv: float, cells: int, alpha: float, power: float = 0.999, *, ratio: float = 1.0
) -> int:
    """Observations of the first sample that reveal any two laws this far apart.

    n_a = max(lambda (1 + 1/ratio) / (4 TV^2), 25 k, 25 k / ratio), rounded up:
    `detectable_two_samples` solved for n_a at n_b = ratio n_a, with its source, validity and error
    rates.

    Args:
        tv: total variation between the two laws, between 0 and 1.
        cells: k, at least 2.
        alpha: level of the test.
        power: probability of an alarm.
        ratio: n_b / n_a; a huge one makes the second law known.

    Raises:
        UsageError: tv outside (0, 1), ratio not positive and finite, cells < 2, or not
            0 < alpha < power < 1.
    """
    if not 0 < tv < 1 or not 0 < ratio < math.inf:
        raise UsageError(
            "needs a total variation between 0 and 1 and a positive ratio of sizes, got "
            f"tv={tv}, ratio={ratio}"
        )
    needed = noncentrality_needed(cells - 1, alpha, power) * (1 + 1 / ratio) / (4 * tv**2)
    filled = _unpooled(cells)
    return max(math.ceil(needed), filled, math.ceil(filled / ratio))


def _unpooled(cells: int) -> int:
    return math.ceil(MINIMUM_EXPECTED * cells)
