"""Impossible tokens: how many hits on probability 0 the coins of a dtype can explain."""

import math

import numpy as np
from scipy.special import betainc, betaincinv

from specverify.errors import UsageError
from specverify.statistics.result import TestResult

TESTS_A_TOKEN = 2
"""Comparisons that can let an impossible token through: of a draft, and of the correction."""

ZERO_COIN = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-12 + 2.0**-24,
    "bfloat16": 2.0**-9 + 2.0**-24,
}
"""Probability that a uniform of the dtype is exactly 0, where `u <= p/q` accepts p = 0.

float32 and float64 uniforms are multiples of 2^-24 and 2^-53. The half-width ones are float32
uniforms rounded, with a rounded 1 wrapped to 0: everything from 1 - 2^-12 (float16) or 1 - 2^-9
(bfloat16) up becomes 0 (statistics.md section 6).
"""


def floor_rate(dtype: str) -> float:
    """Largest rate of impossible tokens, per token, that the coins of `dtype` alone explain.

    rho0 = 2 P(u = 0): at most two comparisons a token let an impossible one through, each where its
    uniform is exactly 0 (elementary: union bound). 2^-23 for float32, 2^-52 for float64
    (statistics.md section 6).

    Valid for uniforms on the grids of `ZERO_COIN`, as PyTorch draws them, compared by `u <= p/q` or
    stricter. Other generators need a floor of their own.

    Raises:
        UsageError: the dtype is unknown.
    """
    if dtype not in ZERO_COIN:
        raise UsageError(f"no floor is known for dtype {dtype!r}; choose one of {list(ZERO_COIN)}")
    return TESTS_A_TOKEN * ZERO_COIN[dtype]


def support_e_value(
    hits: int, n: int, *, dtype: str = "float32", excused: float = 0.0
) -> TestResult:
    """E-process of the hypothesis that impossible tokens occur at most at the floor rate.

    E = mean over r of (r/rho)^hits ((1-r)/(1-rho))^(n-hits), rho = `floor_rate(dtype)` + excused, r
    on a grid that only rho decides: from 2 rho to (1 + rho)/2, at most a factor 4 apart.

    Validity: at every look, under every stopping rule, P(sup E >= 1/alpha) <= alpha (Ville). Proof:
    let token t be a hit with probability s <= rho given the past. The factor it multiplies a
    component by has conditional mean s r/rho + (1-s) (1-r)/(1-rho), which grows with s as r > rho,
    and is 1 at s = rho. So every component, and their mean, is a supermartingale from 1. The rate
    may change with every token. A fixed-n p-value watched as n grows crosses at 2 to 12 times its
    level (statistics.md section 6).

    Without hits E is at most 1, since every factor is below 1.

    Args:
        hits: tokens emitted whose expected probability was exactly 0.
        n: tokens examined.
        dtype: of the uniforms the implementation draws: float64, float32, float16 or bfloat16.
        excused: rate of hits that something else than coins explains, added to the floor.

    Returns:
        A result named "support" with statistic ln E and p-value min(1, 1/E); rho of 1 or more can
        not be exceeded and gives ln E = 0.

    Raises:
        UsageError: not 0 <= hits <= n, an unknown dtype, or `excused` outside [0, 1).
    """
    if not 0 <= hits <= n:
        raise UsageError(f"hits must lie between 0 and n, got hits={hits}, n={n}")
    if not 0 <= excused < 1:
        raise UsageError(f"excused must lie in [0, 1), got {excused}")
    log_e = _log_e(hits, n, floor_rate(dtype) + excused)
    return TestResult("support", log_e, 0, math.exp(min(0.0, -log_e)), n, 1, 1, hits)


def hits_to_reject(
    n: int, alpha: float, *, dtype: str = "float32", excused: float = 0.0
) -> int | None:
    """Fewest hits in n tokens at which `support_e_value` has p <= alpha; None if n hits do not.

    h = min {h : ln E(h, n) >= ln(1/alpha)}, found by bisection, as E grows with h: every component
    bets on a rate above rho (elementary). Source and validity are those of `support_e_value`.

    Error rates: under the null any look n sees h(n) hits or more with probability at most alpha
    (Ville 1939), over all looks together.

    Args:
        n: tokens examined.
        alpha: level of the test.
        dtype: of the uniforms the implementation draws.
        excused: rate of hits that something else than coins explains, added to the floor.

    Raises:
        UsageError: n < 1, alpha outside (0, 1) or an unknown dtype.
    """
    _check(n, alpha)
    rho, level = floor_rate(dtype) + excused, -math.log(alpha)
    if _log_e(n, n, rho) < level:
        return None
    low, high = 0, n
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _log_e(middle, n, rho) >= level else (middle, high)
    return high


def detectable_rate(
    n: int, alpha: float, power: float = 0.999, *, dtype: str = "float32", excused: float = 0.0
) -> float | None:
    """Smallest rate of impossible tokens that n tokens reveal with probability `power`.

    Solves P(Binomial(n, r) >= h) = I_r(h, n - h + 1) = power for r, h = `hits_to_reject`: the
    equation of Clopper and Pearson (1934), with h fixed. None if n is too small to reject at all.

    Valid for hits that are independent, or at a rate of at least r given the past, and exact at a
    single look at n; more looks can only add. Error rates: alarms with probability at most alpha
    under the null, at every look; misses with probability at most 1 - power at a rate of r or more.

    Args:
        n: tokens examined.
        alpha: level of the test.
        power: probability of an alarm.
        dtype: of the uniforms the implementation draws.
        excused: rate of hits that something else than coins explains, added to the floor.

    Raises:
        UsageError: n < 1, alpha or power outside (0, 1), or an unknown dtype.
    """
    _check(n, alpha)
    if not 0 < power < 1:
        raise UsageError(f"power must lie strictly between 0 and 1, got {power}")
    hits = hits_to_reject(n, alpha, dtype=dtype, excused=excused)
    if hits is None:
        return None
    return float(betaincinv(hits, n - hits + 1, power))


def samples_needed_support(
    rate: float, alpha: float, power: float = 0.999, *, dtype: str = "float32"
) -> int | None:
    """Tokens that reveal impossible tokens at this rate with probability `power`.

    Smallest n with P(Binomial(n, r) >= h) >= power, h = `hits_to_reject`(n): with h = 1
    that is ln(1/(1 - power)) / r, and the floor of the coins asks for 2 or 3 hits in float32.
    P(Binomial(n, r) >= h) = I_r(h, n - h + 1), as in Clopper and Pearson (1934).

    Valid for hits that are independent, or at a rate of at least r given the past; exact at a
    single look, n fixed, and more looks can only add. Error rates: alarms with probability at most
    alpha under the null, at every look; misses with probability at most 1 - power at this rate.

    Args:
        rate: of impossible tokens, per token, in (0, 1).
        alpha: level of the test.
        power: probability of an alarm.
        dtype: of the uniforms, which sets the floor.

    Returns:
        Tokens, or None if the rate is not above twice the floor: coins alone may explain it.

    Raises:
        UsageError: rate, alpha or power outside (0, 1), or an unknown dtype.
    """
    if not (0 < rate < 1 and 0 < alpha < 1 and 0 < power < 1):
        raise UsageError(
            f"needs rate, alpha and power in (0, 1), got rate={rate}, alpha={alpha}, power={power}"
        )
    if rate <= 2 * floor_rate(dtype):
        return None
    hits = 1
    while True:
        n = _tokens_for_hits(hits, rate, power)
        asked = hits_to_reject(n, alpha, dtype=dtype)
        if asked is not None and asked <= hits:
            return n
        hits += 1


def _log_e(hits: int, n: int, rho: float) -> float:
    if rho >= 1:
        return 0.0
    top = (1 + rho) / 2
    bottom = min(2 * rho, top)
    rates = np.geomspace(bottom, top, 1 + math.ceil(math.log(top / bottom, 4)))
    logs = hits * np.log(rates / rho) + (n - hits) * (np.log1p(-rates) - math.log1p(-rho))
    return float(np.logaddexp.reduce(logs)) - math.log(len(rates))


def _tokens_for_hits(hits: int, rate: float, power: float) -> int:
    """Smallest n with P(Binomial(n, rate) >= hits) >= power."""
    low, high = hits - 1, hits
    while betainc(hits, high - hits + 1, rate) < power:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        reached = betainc(hits, middle - hits + 1, rate) >= power
        low, high = (low, middle) if reached else (middle, high)
    return high


def _check(n: int, alpha: float) -> None:
    if n < 1 or not 0 < alpha < 1:
        raise UsageError(f"needs n >= 1 and 0 < alpha < 1, got n={n}, alpha={alpha}")
