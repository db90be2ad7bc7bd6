"""What an exact computation returns."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from specverify.errors import CannotSteer
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
    """Mistakes in how it uses randomness, such as a generator state that is drawn from twice."""
    reuses: tuple[str, ...] = ()
    """Uniforms that decided more than once. A draw by thresholds does that rightly; beside a wrong
    distribution it is a diagnosis."""
    global_draws: tuple[str, ...] = ()
    """Lines that draw from torch's global generator."""
    alone: str | None = None
    """Why the rows of a batch had to be followed one by one, where they had to be."""
    rows_depend: bool = False
    """Whether that was because what a row emits depends on the others."""

    @property
    def total(self) -> float:
        """Mass of everything together; 1 within `MASS_TOLERANCE`."""
        return math.fsum([*self.probabilities.values(), *self.crashes.values()])

    def checked(self) -> "JointDistribution":
        """The same, if its masses sum to 1.

        Raises:
            CannotSteer: they do not, which no right computation leaves behind.
        """
        if not abs(self.total - 1) <= MASS_TOLERANCE:
            raise CannotSteer(
                f"the masses of all outcomes sum to {self.total!r}, not to 1; the subject's "
                "randomness was not followed rightly"
            )
        return self
