"""Each check as a question with two answers: samples needed for a deviation, deviation at n.

After the triple of TensorFlow Probability's `statistical_testing`: beside every decision stand the
discrepancy it detects and the samples it needs (statistics.md section 1). The decisions are in
`goodness`, `dirichlet`, `mixture`, `support`, `bounds` and `sequences`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import betainc

from specverify.errors import UsageError
from specverify.statistics.bets import Bets
from specverify.statistics.bounds import expected_tv_estimate, samples_needed
from specverify.statistics.budget import Budget
from specverify.statistics.e_power import (
    detectable_dirichlet,
    log_threshold,
    samples_needed_dirichlet,
    samples_needed_leak,
)
from specverify.statistics.mixture import ALL_WEIGHT, BETS_WEIGHT
from specverify.statistics.power import detectable_any, samples_needed_any
from specverify.statistics.sequences import excess_samples_needed
from specverify.statistics.support import detectable_rate, floor_rate, hits_to_reject

LOOKS = 8
"""Looks at the agnostic bound that share its alpha, see `sequences.look_schedule`."""

HALF_SPACES = 3
"""Bounds on mass moved towards the draft that share theirs."""

SMALLEST_EXCESS = 1e-5
"""Half-space bound below which the slopes mixed in `sequences` do not reach."""

FILLED = 5
"""Observations a cell from which on the Dirichlet e-process is predicted."""

Unit = Literal["tokens", "first tokens"]


@dataclass(frozen=True)
class Triple:
    """What one check can say, beside the decision it takes elsewhere.

    The two invert each other: samples_needed(d) is about n where detectable(n) = d. They are
    predictions, valid where the functions are that `triples` puts here.
    """

    question: str
    """It ends where the deviation is put in: "any deviation of"."""

    method: str
    gives: Literal["sees", "bounds"]
    """Whether it raises an alarm at a deviation, or bounds one that nothing was seen of."""

    unit: Unit
    """What is counted: all tokens, or the first token of each run."""

    samples_needed: Callable[[float], int | None]
    """Of that unit, for a deviation; None if the deviation cannot exist or cannot be seen."""

    detectable: Callable[[int], float | None]
    """Smallest deviation seen, or bound reached, with so many; None if there is none below 1."""


def triples(
    vocab_size: int,
    budget: Budget,
    power: float = 0.999,
    overlap: float = 0.7,
    *,
    bound_alpha: float | None = None,
    dtype: str = "float32",
) -> tuple[Triple, ...]:
    """The checks of a certification, knowing nothing of the models but vocabulary and overlap.

    Where the answer depends on the models, it is that of the hardest ones: probabilities spread
    evenly over the vocabulary for what is agnostic, two-token models for a leak. All answers are
    predictions, with the accuracy that the functions behind them state.

    Args:
        vocab_size: tokens, at least 2.
        budget: of the run; each test has its share.
        power: probability of an alarm, and of the half-space bound being met.
        overlap: mean sum of min(p, q), in [0, 1).
        bound_alpha: at which each bound fails, over all its looks; the budget's when omitted.
        dtype: of the uniforms behind the decisions.

    Raises:
        UsageError: vocab_size < 2, overlap outside [0, 1), or not budget.share < power < 1.
    """
    alpha = budget.share
    if vocab_size < 2 or not 0 <= overlap < 1 or not alpha < power < 1:
        raise UsageError(
            "needs at least 2 tokens, an overlap in [0, 1) and a power between the level of one "
            f"test and 1, got vocab_size={vocab_size}, overlap={overlap}, power={power}, "
            f"level={alpha:g}"
        )
    fails = budget.alpha if bound_alpha is None else bound_alpha
    threshold = log_threshold(budget.alpha, budget.tests)
    component = log_threshold(budget.alpha, budget.tests, leak_weight())
    filled = FILLED * vocab_size
    even = np.full(vocab_size, 1 / vocab_size)

    def leak_needed(tv: float) -> int | None:
        if overlap == 0:
            # Every leaked token may be an impossible one, on which the mixture does not bet.
            return samples_needed_support(tv, alpha, power, dtype=dtype)
        return samples_needed_leak(tv, overlap, component, power)

    def excess_needed(tv: float) -> int | None:
        # The bets behind the bound have a smallest stake: what it cannot reach, no n does.
        if tv < SMALLEST_EXCESS:
            return None
        return excess_samples_needed(tv, fails / HALF_SPACES, power=power)

    return (
        Triple(
            "any deviation of",
            "chi-squared or G",
            "sees",
            "first tokens",
            lambda tv: samples_needed_any(tv, vocab_size, alpha, power),
            lambda n: detectable_any(n, vocab_size, alpha, power),
        ),
        Triple(
            "any deviation of",
            "Dirichlet e-process",
            "sees",
            "first tokens",
            lambda tv: max(
                samples_needed_dirichlet(4 * tv**2, vocab_size, threshold, power), filled
            ),
            lambda n: (
                _below_one(math.sqrt(detectable_dirichlet(n, vocab_size, threshold, power)) / 2)
                if n >= filled
                else None
            ),
        ),
        Triple(
            "leak towards q of",
            "mixture e-process",
            "sees",
            "tokens",
            leak_needed,
            lambda n: smallest(leak_needed, n, 1 - overlap),
        ),
        Triple(
            "impossible tokens at",
            "support",
            "sees",
            "tokens",
            lambda rate: samples_needed_support(rate, alpha, power, dtype=dtype),
            lambda n: detectable_rate(n, alpha, power, dtype=dtype),
        ),
        Triple(
            "TV at most",
            "agnostic bound",
            "bounds",
            "first tokens",
            lambda tv: samples_needed(even, tv, fails / LOOKS),
            lambda n: _below_one(
                expected_tv_estimate(even, n) + math.sqrt(-math.log(fails / LOOKS) / (2 * n))
            ),
        ),
        Triple(
            "mass moved to q at most",
            "half-space bound",
            "bounds",
            "tokens",
            excess_needed,
            lambda n: smallest(excess_needed, n, 1.0),
        ),
    )


def leak_weight() -> float:
    """Smallest weight, inside the mixture e-process, of a leak towards the draft.

    w = 1/2 * 3/4 * min_d w_d: the share of all tokens together, that of the fixed bets in it, and
    that of a rate d among these with raw laws, where it is smaller than without.

    Source: elementary. E of the mixture is at least w times that of the leak nearest in rate, so it
    rejects once ln of that reaches ln(1/alpha) + ln(1/w). Valid for rates on the grid of
    `bet_components.LEAKS`; between two of them up to 4 % of the growth is lost.
    """
    bets = Bets.standard(raw=True)
    return ALL_WEIGHT * BETS_WEIGHT * math.exp(float(bets.log_weights[bets.leak_index].min()))


def samples_needed_support(
    rate: float, alpha: float, power: float = 0.999, *, dtype: str = "float32"
) -> int | None:
    """Tokens that reveal impossible tokens at this rate with probability `power`.

    Smallest n with P(Binomial(n, r) >= h) >= power, h = `support.hits_to_reject`(n): with h = 1
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


def smallest(needed: Callable[[float], int | None], n: int, top: float) -> float | None:
    """Smallest deviation up to `top` for which n is enough, to 1 in 10,000; None if none is.

    min {d : needed(d) <= n}, by bisection of ln d (elementary). Valid if `needed` falls as d grows:
    the answer d is enough, and d / 1.0001 is not, unless d is below 1e-9. It is as good as the
    prediction `needed`, whose error rates it keeps.

    Args:
        needed: samples for a deviation, which fall as it grows; None counts as too many.
        n: samples.
        top: largest deviation there can be.

    Raises:
        UsageError: n < 1.
    """
    if n < 1:
        raise UsageError(f"nothing is detectable without observations, got n={n}")

    def enough(deviation: float) -> bool:
        asked = needed(deviation)
        return asked is not None and asked <= n

    high = top * (1 - 1e-9)
    if not enough(high):
        return None
    low = high
    while enough(low) and low > 1e-9:
        high, low = low, low / 4
    while high / low > 1 + 1e-4:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


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


def _below_one(value: float) -> float | None:
    return value if value < 1 else None
