"""What an exact check of one position found."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Outside(NamedTuple):
    """A token that the target cannot produce there."""

    token: int
    mass: float


@dataclass(frozen=True)
class PositionResult:
    """What a rule emits at one position, and behind it, held against the target.

    All masses are probabilities given that the draft proposed the tokens before the position. They
    are exact, up to the rounding of float64 sums.
    """

    position: int
    """From 1 to K."""
    reach: float
    """Probability that the tokens before the position are emitted and one more; 1 for the first."""
    token_deviation: float
    """Total variation between what is emitted at the position and `reach` times the target's
    distribution there. Mass without a token counts, where the position is the first."""
    next_deviation: float
    """The same for the token behind it, the bonus token if i = K: summed over the tokens emitted at
    the position, each with the probability that another follows it in the same round."""
    stray_deviation: float
    """An upper bound of the same where the token at the position is not the drafted one."""
    unchecked: float
    """Mass of rounds that draw a token at the position and go on behind it, which no lossless rule
    known does; what follows is not compared."""
    largest_ratio: float
    """Largest emitted / target over pairs of the token at the position and the next, completed by
    the target; infinite outside the support. Pairs of `stray_deviation` and `unchecked` are left
    out."""
    outside_support: tuple[Outside, ...]
    """Tokens at the position that the target cannot produce, the largest masses first, at most 5;
    `token` is -1 for ids outside the vocabulary."""
    outside_mass: float
    """Mass of all of them, and of tokens behind the position that the target cannot produce."""
    accepted: float
    """Mass of rounds that emit the drafted token at the position."""
    missing: float
    """Mass of rounds without any token, where the position is the first."""
    crashes: Mapping[str, float]
    """Exceptions the rule raised, as text, with the probability that it does."""
    findings: tuple[str, ...]
    reuses: tuple[str, ...]
    """As in `JointDistribution`."""
    runs: int
    """Calls of the rule."""

    @property
    def upper(self) -> float:
        """Upper bound of the total variation between completed pairs of tokens.

        Exact if nothing is stray or unchecked, and one of the two deviations is 0.
        """
        parts = (self.token_deviation, self.next_deviation, self.stray_deviation, self.unchecked)
        return min(1.0, sum(parts))

    @property
    def lower(self) -> float:
        """Lower bound of the same, by the triangle inequality."""
        rest = self.token_deviation + self.stray_deviation + self.unchecked
        return max(self.token_deviation, self.next_deviation - rest)
