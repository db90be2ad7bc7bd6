"""How the first rounds of sampled runs ended: counts of corrections and bonus tokens.

Each such token has a distribution of its own, so its expected counts are summed along with the
observed ones, over all tokens whose contexts end alike. Where the distributions in a group differ,
the sum varies less than the multinomial of their mean (E[p p'] exceeds E[p] E[p]' as a matrix):
a test on the group loses power and keeps its level.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class RoundEnds:
    """Tokens that ended their rounds in the same way."""

    groups: Ints
    """[M] group of the context each was drawn in, 0 to G - 1."""
    tokens: Ints
    """[M]"""
    laws: Array
    """[M, V] the distribution each should have; all zero where no token may follow."""


class RoundEndTally:
    """Observed and expected counts by group and token; its size is fixed."""

    def __init__(self, groups: int, vocab_size: int) -> None:
        self.observed = np.zeros((groups, vocab_size), np.int64)
        self.expected = np.zeros((groups, vocab_size))

    def add(self, ends: RoundEnds) -> None:
        """Count tokens; those that nothing may follow have no distribution to compare with."""
        possible = ends.laws.any(1)
        groups = ends.groups[possible]
        np.add.at(self.observed, (groups, ends.tokens[possible]), 1)
        np.add.at(self.expected, groups, ends.laws[possible])

    def strata(self) -> tuple[Ints, list[Ints], list[Array]]:
        """Groups that were met, with their counts [V] and distributions [V]."""
        met = np.flatnonzero(self.expected.any(1))
        laws = self.expected[met] / self.expected[met].sum(1, keepdims=True)
        return met, list(self.observed[met]), list(laws)


@dataclass
class FirstRounds:
    """First rounds of all runs of a case."""

    groups: int
    vocab_size: int
    accepted: dict[int, int] = field(default_factory=dict)
    """Runs by draft tokens accepted, where the subject reports it."""
    corrections: RoundEndTally = field(init=False)
    bonuses: RoundEndTally = field(init=False)
    judged_corrections: int = 0
    excluded_corrections: int = 0
    """Corrections that the residual of the declared algorithm excludes."""

    def __post_init__(self) -> None:
        self.corrections = RoundEndTally(self.groups, self.vocab_size)
        self.bonuses = RoundEndTally(self.groups, self.vocab_size)

    def count_accepted(self, accepted: Ints) -> None:
        """Count runs by accepted draft tokens, [N]."""
        for count, runs in enumerate(np.bincount(accepted)):
            if runs:
                self.accepted[count] = self.accepted.get(count, 0) + int(runs)
