"""Contracts of rules that change the distribution on purpose: what they emit in closed form.

A lossy rule verifies token by token: it accepts a draft token with a probability of its own, draws
another token after a rejection, and adds the target's token to a block it accepted. What a subject
declares here is what it is held against; the distance to the target is reported, not judged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from specverify.errors import UsageError

Rows: TypeAlias = NDArray[np.float64]
"""Distributions, float64 [N, V]."""


@dataclass(frozen=True)
class LossyContract:
    """What a lossy rule does at a drafted position, from the rows of p and q there.

    `correction` may return rows of any scale; they are normalised. Rows in which no draft token is
    ever rejected may be all 0.
    """

    name: str
    """For reports, with its parameters, such as `lenience 0.9`."""
    acceptance: Callable[[Rows, Rows], Rows]
    """p and q, [N, V] each, to the probability that each token is accepted once it is drafted."""
    correction: Callable[[Rows, Rows], Rows]
    """p and q to the distribution of the token that replaces a rejected one."""


def lenience(factor: float) -> LossyContract:
    """Accepts with min(1, p / (l q)) and corrects with norm((p - q)+).

    Source: Leviathan et al. 2023 (arXiv 2211.17192), appendix A.5.

    Args:
        factor: l, above 0 and at most 1; 1 is lossless.

    Raises:
        UsageError: another factor.
    """
    if not 0 < factor <= 1:
        raise UsageError(f"lenience {factor} must lie above 0 and be at most 1")

    def acceptance(p: Rows, q: Rows) -> Rows:
        return np.minimum(1.0, _ratio(p, factor * q))

    return LossyContract(f"lenience {factor:g}", acceptance, _residual)


def ensemble(weight: float) -> LossyContract:
    """Verifies against w p + (1 - w) q in place of p.

    Args:
        weight: w, above 0 and at most 1; 1 is lossless.

    Raises:
        UsageError: another weight.
    """
    if not 0 < weight <= 1:
        raise UsageError(f"ensemble weight {weight} must lie above 0 and be at most 1")

    def acceptance(p: Rows, q: Rows) -> Rows:
        return np.minimum(1.0, _ratio(weight * p + (1 - weight) * q, q))

    # The residual of the mixture is w (p - q)+.
    return LossyContract(f"ensemble {weight:g}", acceptance, _residual)


def _ratio(numerator: Rows, denominator: Rows) -> Rows:
    """The ratio, 1 where nothing is drafted."""
    ones = np.ones_like(numerator)
    with np.errstate(over="ignore"):  # infinite where the draft's probability is subnormal
        return np.divide(numerator, denominator, out=ones, where=denominator > 0)


def _residual(p: Rows, q: Rows) -> Rows:
    return np.maximum(p - q, 0.0)
