"""Impossible tokens: how many hits on probability 0 the coins of a dtype can explain."""

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

    At most two tests a token: 2^-23 for float32, 2^-52 for float64 (statistics.md section 6).

    Raises:
        UsageError: the dtype is unknown.
    """
    if dtype not in ZERO_COIN:
        raise UsageError(f"no floor is known for dtype {dtype!r}; choose one of {list(ZERO_COIN)}")
    return TESTS_A_TOKEN * ZERO_COIN[dtype]


def support_test(hits: int, n: int, *, dtype: str = "float32", excused: float = 0.0) -> TestResult:
    """Test the hypothesis that impossible tokens occur at most at the floor rate of the coins.

    p = P(H >= hits), H ~ Binomial(n, rho), = I_rho(hits, n - hits + 1), the regularised incomplete
    beta function: exact at any size, with no cancellation. rho = `floor_rate(dtype)`.

    Validity: n is fixed, not the time at which a hit appeared. Error rate: exactly calibrated or
    conservative, since the null is a rate of at most rho; 0 hits give p = 1.

    Args:
        hits: tokens emitted whose expected probability was exactly 0.
        n: tokens examined.
        dtype: of the uniforms the implementation draws: float64, float32, float16 or bfloat16.
        excused: rate of hits that something else than coins explains, added to the floor.

    Raises:
        UsageError: not 0 <= hits <= n, an unknown dtype, or `excused` outside [0, 1).
    """
    if not 0 <= hits <= n:
        raise UsageError(f"hits must lie between 0 and n, got hits={hits}, n={n}")
    if not 0 <= excused < 1:
        raise UsageError(f"excused must lie in [0, 1), got {excused}")
    rho = floor_rate(dtype) + excused
    p_value = 1.0 if hits == 0 else float(betainc(hits, n - hits + 1, rho))
    return TestResult("support", float(hits), 0, p_value, n, 1, 1, hits)


def hits_to_reject(n: int, alpha: float, *, dtype: str = "float32") -> int | None:
    """Fewest hits in n tokens whose p-value is at most alpha; None if even n hits would not do."""
    _check(n, alpha)
    rho = floor_rate(dtype)
    if rho**n > alpha:
        return None
    low, high = 0, n
    while high - low > 1:
        middle = (low + high) // 2
        if betainc(middle, n - middle + 1, rho) <= alpha:
            high = middle
        else:
            low = middle
    return high


def detectable_rate(
    n: int, alpha: float, power: float = 0.999, *, dtype: str = "float32"
) -> float | None:
    """Smallest rate of impossible tokens that n tokens reveal with probability `power`.

    Solves P(Binomial(n, r) >= h) = power for r, h = `hits_to_reject`. None if n is too small to
    reject at all.

    Raises:
        UsageError: n < 1, or alpha or power outside (0, 1).
    """
    _check(n, alpha)
    if not 0 < power < 1:
        raise UsageError(f"power must lie strictly between 0 and 1, got {power}")
    hits = hits_to_reject(n, alpha, dtype=dtype)
    if hits is None:
        return None
    return float(betaincinv(hits, n - hits + 1, power))


def _check(n: int, alpha: float) -> None:
    if n < 1 or not 0 < alpha < 1:
        raise UsageError(f"needs n >= 1 and 0 < alpha < 1, got n={n}, alpha={alpha}")
