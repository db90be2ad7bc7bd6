"""Counts of tokens that each have a distribution of their own, by groups of contexts.

Expected counts are summed along with the observed ones, over all tokens whose contexts fall into a
group. Where the distributions in a group differ, the sum varies less than the multinomial of their
mean (E[p p'] exceeds E[p] E[p]' as a matrix): a test on the group loses power and keeps its level.
Deviations at different places of a run are uncorrelated, since each is zero in the mean given what
came before, so groups of different places may be tested together.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class DrawnTokens:
    """Tokens with the distributions they should have been drawn from."""

    groups: Ints
    """[M] group of the context each was drawn in, 0 to G - 1."""
    tokens: Ints
    """[M]"""
    laws: Array
    """[M, V] the distribution each should have; all zero where no token may follow."""


class ContextTally:
    """Observed and expected counts by group and token; its size is fixed."""

    def __init__(self, groups: int, vocab_size: int) -> None:
        self.observed = np.zeros((groups, vocab_size), np.int64)
        self.expected = np.zeros((groups, vocab_size))

    def add(self, drawn: DrawnTokens) -> None:
        """Count tokens; those that nothing may follow have no distribution to compare with."""
        possible = drawn.laws.any(1)
        groups = drawn.groups[possible]
        np.add.at(self.observed, (groups, drawn.tokens[possible]), 1)
        np.add.at(self.expected, groups, drawn.laws[possible])

    def strata(self) -> tuple[Ints, list[Ints], list[Array]]:
        """Groups that were met, with their counts [V] and distributions [V]."""
        met = np.flatnonzero(self.expected.any(1))
        laws = self.expected[met] / self.expected[met].sum(1, keepdims=True)
        return met, list(self.observed[met]), list(laws)
