"""What a band around PIT numbers sees: smallest gap at n, and numbers needed for one."""

import math

from specverify.errors import UsageError


def detectable_band(n: int, alpha: float, power: float = 0.999) -> float | None:
    """Smallest gap at an edge of bins that `pit.pit_band` shows with probability `power`.

    D = sqrt(ln(2/alpha) / (2n)) + sqrt(ln(1/(1 - power)) / (2n)). The first is the half-width of
    the band (Dvoretzky, Kiefer and Wolfowitz 1956; Massart 1990). The second is by how much the
    empirical function falls short of its mean at one edge with probability at most 1 - power:
    Hoeffding (1963), at the edge where the gap is. So the power is a proven lower bound, with no
    asymptotics; the true one is larger, and n could be smaller.

    Valid at a sample size fixed beforehand, for numbers of which P(U <= e) at one edge e is off by
    D or more, in one direction; on average over the numbers if what each is given the past is
    fixed (Azuma 1967). Gaps that lie inside a bin do not count. For a leak in `pit.ratio_order` the
    largest gap is its total variation, at an edge or inside a bin. Error rates: the band is left
    with probability at most alpha under the null, and held with probability at most 1 - power at D.

    Args:
        n: numbers.
        alpha: level at which p_value rejects.
        power: probability that it does.

    Returns:
        The gap; None if none below 1 is seen.

    Raises:
        UsageError: n < 1, or alpha or power outside (0, 1).
    """
    if n < 1:
        raise UsageError(f"nothing is detectable without observations, got n={n}")
    gap = _reach(alpha, power) / math.sqrt(2 * n)
    return gap if gap < 1 else None


def samples_needed_band(gap: float, alpha: float, power: float = 0.999) -> int:
    """Numbers with which `pit.pit_band` shows a gap of this size with probability `power`.

    n = (sqrt(ln(2/alpha)) + sqrt(ln(1/(1 - power))))^2 / (2 D^2), rounded up: `detectable_band`
    solved for n, with its sources, validity and error rates. It is enough, and more than needed.

    Args:
        gap: D, at an edge of bins, between 0 and 1.
        alpha: level at which p_value rejects.
        power: probability that it does.

    Raises:
        UsageError: gap, alpha or power outside (0, 1).
    """
    if not 0 < gap < 1:
        raise UsageError(f"a gap between distribution functions lies between 0 and 1, got {gap}")
    return max(1, math.ceil(_reach(alpha, power) ** 2 / (2 * gap**2)))


def _reach(alpha: float, power: float) -> float:
    """Gap times sqrt(2n)."""
    if not 0 < alpha < 1 or not 0 < power < 1:
        raise UsageError(f"alpha and power lie in (0, 1), got alpha={alpha}, power={power}")
    return math.sqrt(math.log(2) - math.log(alpha)) + math.sqrt(-math.log1p(-power))
