"""Each check as a question with two answers: samples needed for a deviation, deviation at n.

After the triple of TensorFlow Probability's `statistical_testing`: beside every decision stand the
discrepancy it detects and the samples it needs (statistics.md section 1). The decisions are in
`goodness`, `dirichlet`, `tilt`, `mixture`, `pit`, `independence`, `support`, `homogeneity`,
`bounds` and `sequences`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from specverify.errors import UsageError
from specverify.statistics.bets import Bets
from specverify.statistics.bounds import (
    expected_tv_estimate,
    rate_excluded,
    samples_needed,
    samples_needed_to_exclude,
)
from specverify.statistics.budget import Budget
from specverify.statistics.e_power import (
    detectable_dirichlet,
    log_threshold,
    samples_needed_dirichlet,
    samples_needed_leak,
)
from specverify.statistics.homogeneity_power import (
    detectable_two_samples,
    samples_needed_two_samples,
)
from specverify.statistics.independence import bit_names
from specverify.statistics.independence_power import detectable_bits, samples_needed_bits
from specverify.statistics.mixture import ALL_WEIGHT, BETS_WEIGHT
from specverify.statistics.pit_power import detectable_band, samples_needed_band
from specverify.statistics.power import detectable_any, samples_needed_any
from specverify.statistics.sequences import excess_samples_needed
from specverify.statistics.support import detectable_rate, samples_needed_support
from specverify.statistics.tilt_power import detectable_tilt, samples_needed_tilt

LOOKS = 8
"""Looks at a bound for a fixed n that share its alpha, see `sequences.look_schedule`."""

HALF_SPACES = 3
"""Bounds on mass moved towards the draft that share theirs."""

SMALLEST_EXCESS = 1e-5
"""Half-space bound below which the slopes mixed in `sequences` do not reach."""

FILLED = 5
"""Observations a cell from which on the Dirichlet e-process, and a tilt, are predicted."""

SHARDS = 32
"""Shards from which a tilt is learned."""

LAGS = 5
"""Distances at which tokens of a run are compared: all there are in a run of six."""

Unit = Literal["tokens", "first tokens", "runs", "pairs", "answers"]


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
    """What is counted: all tokens, the first token of each run, runs, disjoint pairs of tokens that
    are compared, or answers of one token that each of two black boxes gives."""

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

    Two rows decide nothing there and are put at the level of one test all the same: the band around
    PIT numbers is reported, and two samples are compared by users who have two black boxes.

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
    bit_threshold = log_threshold(budget.alpha, budget.tests, 1 / len(bit_names(LAGS)))
    filled, free = FILLED * vocab_size, vocab_size - 1
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

    def tilt_seen(n: int) -> float | None:
        divergence = detectable_tilt(n, SHARDS, free, threshold, power) if n >= filled else None
        return None if divergence is None else _below_one(math.sqrt(divergence) / 2)

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
            "any deviation of",
            "learned tilt",
            "sees",
            "first tokens",
            lambda tv: max(samples_needed_tilt(4 * tv**2, SHARDS, free, threshold, power), filled),
            tilt_seen,
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
            "PIT numbers shifted by",
            "PIT band",
            "sees",
            "tokens",
            lambda gap: samples_needed_band(gap, alpha, power),
            lambda n: detectable_band(n, alpha, power),
        ),
        Triple(
            "tokens alike too often by",
            "independence",
            "sees",
            "pairs",
            lambda d: samples_needed_bits(d, bit_threshold, power) if d < 0.5 else None,
            lambda n: detectable_bits(n, bit_threshold, power),
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
            "two samples apart by",
            "homogeneity",
            "sees",
            "answers",
            lambda tv: samples_needed_two_samples(tv, vocab_size, alpha, power),
            lambda n: detectable_two_samples(n, n, vocab_size, alpha, power),
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
        Triple(
            "runs with p = 0 at most",
            "Clopper-Pearson",
            "bounds",
            "runs",
            lambda share: samples_needed_to_exclude(share, fails / LOOKS, power),
            lambda n: rate_excluded(n, fails / LOOKS, power),
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


def _below_one(value: float) -> float | None:
    return value if value < 1 else None
