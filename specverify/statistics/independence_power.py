"""What bits of one kind see: how much too often two tokens are alike, and bits needed for it."""

import math

from scipy.special import betaincinv

from specverify.errors import UsageError
from specverify.statistics.dirichlet import log_kt

_MOST = 2**62
"""Bits beyond which nothing is predicted."""


def ones_to_reject(n: int, threshold: float, *, rate: float = 0.5) -> int | None:
    """Fewest ones above n rate at which `dirichlet.log_kt` reaches the threshold.

    h = min {n1 >= n rate : ln E(n1, n) >= L'}, by bisection: E grows with n1 from n rate on, by a
    factor (n1 + 1/2) (1 - rate) / ((n0 - 1/2) rate) a one (elementary).

    Valid at every look, as `dirichlet.log_kt` is: under the null any look n sees h(n) ones or more
    with probability at most exp(-L').

    Args:
        n: bits.
        threshold: L', see `e_power.log_threshold`; one of K kinds has weight 1/K.
        rate: of a 1 under the null.

    Returns:
        Ones; None if n of them are too few.

    Raises:
        UsageError: n < 1, threshold <= 0, or rate outside (0, 1).
    """
    if n < 1 or not 0 < threshold < math.inf:
        raise UsageError(f"needs n >= 1 and a positive threshold, got n={n}, L'={threshold}")
    if log_kt(n, n, rate) < threshold:
        return None
    # At n rate E is at most 1; the answer is some standard deviations, of order sqrt(n), above.
    step = math.isqrt(n) + 1
    low, high = math.floor(n * rate), min(n, math.floor(n * rate) + step)
    while log_kt(high, n, rate) < threshold:
        step *= 2
        low, high = high, min(n, high + step)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if log_kt(middle, n, rate) >= threshold else (middle, high)
    return high


def detectable_bits(
    n: int, threshold: float, power: float = 0.999, *, rate: float = 0.5
) -> float | None:
    """Smallest d such that bits of rate + d are seen after n of them with probability `power`.

    Solves P(Binomial(n, r + d) >= h) = I_{r+d}(h, n - h + 1) = power, h = `ones_to_reject`: the
    equation of Clopper and Pearson (1934), with h fixed. About
    d = sqrt(r (1 - r) / n) (z + sqrt(2 L' + ln n)) for large n.

    Valid for independent bits, or bits of a rate of at least r + d given the past, and exact at a
    single look at n; more looks can only add. It is about bits that are 1 too often; too rarely is
    the same for 1 - rate. Error rates: alarms under the null with the probability that the
    threshold was asked for, at every look; misses with probability at most 1 - power at d or more.

    Args:
        n: bits of one kind.
        threshold: L' of that kind: ln(K / alpha) for `independence.log_independence` on K kinds at
            level alpha.
        power: probability of an alarm.
        rate: of a 1 under the null, see `independence.null_rates`.

    Returns:
        d; None if n is too small to reject at all.

    Raises:
        UsageError: n < 1, threshold <= 0, or power or rate outside (0, 1).
    """
    if not 0 < power < 1:
        raise UsageError(f"power must lie strictly between 0 and 1, got {power}")
    ones = ones_to_reject(n, threshold, rate=rate)
    return None if ones is None else float(betaincinv(ones, n - ones + 1, power)) - rate


def samples_needed_bits(
    excess: float, threshold: float, power: float = 0.999, *, rate: float = 0.5
) -> int:
    """Bits of one kind with which rate + d is seen with probability `power`.

    n with detectable_bits(n) <= d < detectable_bits(n - 1), by bisection. Ones are whole, so a
    larger n may need one more of them and miss d by a little: about monotone. Source, validity and
    error rates are those of `detectable_bits`.

    Args:
        excess: d, between 0 and 1 - rate.
        threshold: L' of that kind.
        power: probability of an alarm.
        rate: of a 1 under the null.

    Raises:
        UsageError: rate + d outside (rate, 1), threshold <= 0, power or rate outside (0, 1), or
            more than 2^62 bits needed.
    """
    if not 0 < excess < 1 - rate:
        raise UsageError(
            f"bits of rate {rate} can be 1 too often by more than 0 and less than {1 - rate:g}, "
            f"got excess={excess}"
        )

    def seen(n: int) -> bool:
        if n > _MOST:
            raise UsageError("more than 2^62 bits would be needed; ask for a larger excess")
        found = detectable_bits(n, threshold, power, rate=rate)
        return found is not None and found <= excess

    # As many bits as it takes for one standard deviation are too few, unless L' is tiny.
    low, high = 0, math.ceil(rate * (1 - rate) / excess**2)
    while not seen(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if seen(middle) else (middle, high)
    return high
