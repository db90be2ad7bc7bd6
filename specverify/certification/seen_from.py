"""The smallest deviation that a test would have seen with probability 0.999, test by test."""

import math

from specverify.certification.registry import Detectable
from specverify.statistics.e_power import detectable_dirichlet
from specverify.statistics.independence import BitCounts
from specverify.statistics.independence_power import detectable_bits
from specverify.statistics.tilt_power import detectable_tilt
from specverify.statistics.triples import FILLED

HALF = math.log(2)
"""What a mean of two e-processes has to make up for, where one of them sees nothing."""


def threshold_of(share: float) -> float | None:
    """Value of ln E at which a test with this share of the budget rejects; None without one."""
    return -math.log(share) if 0 < share < 1 else None


def seen_tv(
    n: int, cells: int, strata: int, log_threshold: float | None, what: str
) -> Detectable | None:
    """Of a Dirichlet e-process over all cells, by chi2 >= 4 TV^2.

    Args:
        n: observations.
        cells: possible ones of all strata.
        strata: laws they belong to.
        log_threshold: ln E at which it rejects, with what is allowed for rounding.
        what: whose total variation it is, in words.

    Returns:
        None where no share is known, or too few observations fill the cells to predict it.
    """
    free = cells - strata + 1
    if log_threshold is None or free < 2 or n < FILLED * free:
        return None
    divergence = detectable_dirichlet(n, free, log_threshold)
    return Detectable(min(1.0, math.sqrt(divergence) / 2), f"total variation of {what}")


def seen_tilt(
    n: int, cells: int, strata: int, log_threshold: float | None, what: str, shards: int
) -> Detectable | None:
    """Of a `TiltProcess`, that has learned from so many shards; arguments as `seen_tv` has them."""
    free = cells - strata
    if log_threshold is None or free < 1 or n < FILLED * (free + 1):
        return None
    divergence = detectable_tilt(n, shards, free, log_threshold)
    if divergence is None:
        return None
    return Detectable(min(1.0, math.sqrt(divergence) / 2), f"total variation of {what}")


def seen_bits(counts: BitCounts, log_threshold: float, slack: float) -> Detectable | None:
    """Of bits that compare tokens: how much too often two of one kind lie in the same half.

    The kind with most bits is meant; each has a share of the e-value, and an allowance for both
    tokens.
    """
    n = int(counts.n.max(initial=0))
    if not 0 < log_threshold < math.inf or not n:
        return None
    threshold = log_threshold + math.log(len(counts.n)) + 2 * slack * n
    excess = detectable_bits(n, threshold)
    if excess is None:
        return None
    return Detectable(excess, "excess of two tokens in the same half")
