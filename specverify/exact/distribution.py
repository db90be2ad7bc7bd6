"""What an exact computation returns."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from specverify.exact.joint import Tokens

Method = Literal["branching", "forcing", "coins"]

MASS_TOLERANCE = 1e-12
"""How far from 1 all masses together may be."""


@dataclass(frozen=True)
class JointDistribution:
    """The exact distribution of what a subject emits."""

    probabilities: Mapping[Tokens, float]
    """Emitted tokens to probability; positive entries only."""
    method: Method
    """How the subject's randomness was steered."""
    runs: int
    """Calls of the subject."""
    crashes: Mapping[str, float]
    """Exceptions the subject raised, as text, with the probability that it does."""
    findings: tuple[str, ...] = ()
    """Oddities in how it uses its randomness, such as one number that decides twice."""

    @property
    def total(self) -> float:
        """Mass of everything together; 1 within `MASS_TOLERANCE`."""
        return math.fsum([*self.probabilities.values(), *self.crashes.values()])
