"""What a `tilt.TiltProcess` sees: smallest deviation at n, and tokens needed for one."""

import math

from scipy.optimize import root_scalar
from scipy.stats import norm

from specverify.errors import UsageError
from specverify.statistics.tilt import IDLE, KAPPAS

_SHARES = 4
"""Shares of the groups that are bet to deviate, see `TiltProcess`."""
_MIXED = math.log(len(KAPPAS) * _SHARES / (1 - IDLE))
"""What the process pays for not knowing which of its components is right."""


def tilt_evidence(divergence: float, n: int, shards: int, free: int) -> float:
    """Predicted mean of ln E after n tokens in equal shards, before what mixing costs.

    With m = n / shards tokens a shard and lambda_s = (s - 1) m chi2 what the earlier ones have
    shown, the best shrinkage of a learned tilt gains in shard s

        m chi2 / 2 * lambda_s / (lambda_s + f),   f free cells,

    (the oracle of James and Stein 1961, applied to the log score; kappa = f / chi2 attains it). The
    sum from s = 2 to S is returned: nothing is bet on the first shard. Beyond the largest of
    `tilt.KAPPAS` that is what is taken, and tilts follow noise: with e earlier tokens and
    w = e / (e + kappa), the gain is m (w chi2 - w^2 (chi2 + f / e) / 2), less than 0 at first.

    Valid where the cells hold some five tokens each and the deviation is small and spread over all
    groups; a prediction, not a guarantee.

    Args:
        divergence: chi2(a || p) above 0, summed over groups by their share of the tokens.
        n: tokens.
        shards: S.
        free: cells less groups.
    """
    return _moments(divergence, n, shards, free)[0]


def _moments(divergence: float, n: int, shards: int, free: int) -> tuple[float, float]:
    """Mean of ln E, and its variance sum m w^2 (chi2 + f / e): twice the mean, or more."""
    shard, kappa = n / shards, min(free / divergence, float(KAPPAS[-1]))
    mean = variance = 0.0
    for before in range(1, shards):
        earlier = before * shard
        weight = earlier / (earlier + kappa)
        bet = weight**2 * (divergence + free / earlier)
        mean += shard * (weight * divergence - bet / 2)
        variance += shard * bet
    return mean, variance


def detectable_tilt(
    n: int, shards: int, free: int, threshold: float, power: float = 0.999
) -> float | None:
    """Smallest chi2(a || p) that n tokens reveal with probability `power`.

    The root of G - z s = threshold + ln(components), G = `tilt_evidence`, z the `power` quantile of
    the normal law, s^2 = 2 G: a log-likelihood ratio of mean G has that variance (Wald 1947), and
    more where tilts follow noise. Any deviation of total variation sqrt(chi2) / 2 or more has at
    least that divergence (Cauchy-Schwarz).

    Valid where `tilt_evidence` is: a prediction. Error rates: under the null the alarm has the
    probability that the threshold was asked for, at every look; such a deviation is missed with
    probability about 1 - power, or less where shards are few.

    Args:
        n: tokens.
        shards: they come in; None is returned for fewer than two, of which nothing is bet on.
        free: cells less groups, at least 1.
        threshold: ln E at which the process rejects.
        power: probability of an alarm by then.

    Raises:
        UsageError: n, shards or free below 1, threshold <= 0 or power outside (0, 1).
    """
    _check(n, shards, free, threshold, power)
    if shards < 2:
        return None
    needed, z = threshold + _MIXED, float(norm.ppf(power))

    def excess(divergence: float) -> float:
        mean, variance = _moments(divergence, n, shards, free)
        return mean - z * math.sqrt(variance) - needed

    high = 1.0 / n
    while excess(high) < 0:
        high *= 2
    # Below the mean z^2 / 2 the difference falls before it rises.
    return float(root_scalar(excess, bracket=(high / 2, high), method="brentq").root)


def samples_needed_tilt(
    divergence: float, shards: int, free: int, threshold: float, power: float = 0.999
) -> int:
    """Tokens after which a deviation is seen with probability `power`.

    The smallest n with detectable_tilt(n) <= divergence, by bisection; source, validity and error
    rates are those of `detectable_tilt`.

    Args:
        divergence: chi2(a || p).
        shards: the tokens come in, at least 2.
        free: cells less groups, at least 1.
        threshold: ln E at which the process rejects.
        power: probability of an alarm by then.

    Raises:
        UsageError: as `detectable_tilt`, fewer than two shards or divergence <= 0.
    """
    if shards < 2 or not divergence > 0:
        raise UsageError(
            f"a tilt is learned from earlier shards and for a deviation: got shards={shards}, "
            f"divergence={divergence!r}; give 2 or more, and a number above 0"
        )

    def seen(n: int) -> bool:
        found = detectable_tilt(n, shards, free, threshold, power)
        return found is not None and found <= divergence

    low, high = 0, 1
    while not seen(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if seen(middle) else (middle, high)
    return high


def _check(n: int, shards: int, free: int, threshold: float, power: float) -> None:
    if min(n, shards, free) < 1 or not threshold > 0 or not 0 < power < 1:
        raise UsageError(
            f"n={n}, shards={shards} and free={free} must be at least 1, threshold={threshold!r} "
            f"above 0 and power={power!r} between 0 and 1"
        )
