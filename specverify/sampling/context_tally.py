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
from scipy.sparse import csr_array

from specverify.sampling.tally import State

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
        self._met = np.zeros(groups, np.bool_)

    @property
    def met(self) -> Ints:
        """Groups with tokens: few of many, where contexts are told apart."""
        return np.flatnonzero(self._met)

    def add(self, drawn: DrawnTokens) -> None:
        """Count tokens, those of probability 0 left out: they are judged by themselves."""
        possible = drawn.laws[np.arange(len(drawn.tokens)), drawn.tokens] > 0
        groups, tokens = drawn.groups[possible], drawn.tokens[possible]
        vocab_size = self.observed.shape[1]
        seen = np.bincount(groups, minlength=len(self.observed))
        met = np.flatnonzero(seen)
        index = np.cumsum(seen > 0)[groups] - 1
        cells = np.bincount(index * vocab_size + tokens, minlength=len(met) * vocab_size)
        self._met[met] = True
        self.observed[met] += cells.reshape(len(met), vocab_size)
        order, starts = np.argsort(index, kind="stable"), np.cumsum(seen[met])
        members = csr_array(
            (np.ones(len(index)), order, np.concatenate([[0], starts])), (len(met), len(index))
        )
        laws = drawn.laws if possible.all() else drawn.laws[possible]
        self.expected[met] += members @ laws

    def merge(self, other: "ContextTally") -> None:
        """Add the counts of other tokens."""
        met = other.met
        self._met[met] = True
        self.observed[met] += other.observed[met]
        self.expected[met] += other.expected[met]

    def state(self) -> State:
        """The groups that were met, and their rows."""
        met = self.met
        return {"met": met, "observed": self.observed[met], "expected": self.expected[met]}

    def restore(self, state: State) -> None:
        """Take over what `state` returned."""
        self.observed[self.met], self.expected[self.met], self._met[:] = 0, 0, False
        self._met[state["met"]] = True
        self.observed[state["met"]] = state["observed"]
        self.expected[state["met"]] = state["expected"]

    def strata(self) -> tuple[Ints, list[Ints], list[Array]]:
        """Groups that were met, with their counts [V] and distributions [V]."""
        met = self.met
        laws = self.expected[met] / self.expected[met].sum(1, keepdims=True)
        return met, list(self.observed[met]), list(laws)
