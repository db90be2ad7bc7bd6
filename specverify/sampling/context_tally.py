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
    """Observed and expected counts by group and token, held for the groups that were met."""

    def __init__(self, groups: int, vocab_size: int) -> None:
        self.groups, self.vocab_size = groups, vocab_size
        self._row = np.full(groups, -1)
        """[G] where a group's counts are, -1 for groups that were not met."""
        self._observed = np.zeros((0, vocab_size), np.int64)
        self._expected = np.zeros((0, vocab_size))
        self._used = 0

    @property
    def met(self) -> Ints:
        """Groups with tokens: few of many, where contexts are told apart."""
        return np.flatnonzero(self._row >= 0)

    @property
    def observed(self) -> Ints:
        """Counts of the groups that were met [M, V]."""
        return self._observed[self._row[self.met]]

    @property
    def expected(self) -> Array:
        """Summed distributions of the groups that were met [M, V]."""
        return self._expected[self._row[self.met]]

    def add(self, drawn: DrawnTokens) -> None:
        """Count tokens, those of probability 0 left out: they are judged by themselves."""
        possible = drawn.laws[np.arange(len(drawn.tokens)), drawn.tokens] > 0
        groups, tokens = drawn.groups[possible], drawn.tokens[possible]
        met, index, seen = np.unique(groups, return_inverse=True, return_counts=True)
        rows = self._rows(met)
        np.add.at(self._observed, (rows[index], tokens), 1)
        order, starts = np.argsort(index, kind="stable"), np.cumsum(seen)
        members = csr_array(
            (np.ones(len(index)), order, np.concatenate([[0], starts])), (len(met), len(index))
        )
        laws = drawn.laws if possible.all() else drawn.laws[possible]
        self._expected[rows] += members @ laws

    def merge(self, other: "ContextTally") -> None:
        """Add the counts of other tokens."""
        rows = self._rows(other.met)
        self._observed[rows] += other.observed
        self._expected[rows] += other.expected

    def state(self) -> State:
        """The groups that were met, and their rows."""
        return {"met": self.met, "observed": self.observed, "expected": self.expected}

    def restore(self, state: State) -> None:
        """Take over what `state` returned."""
        self._row[:], self._used = -1, 0
        rows = self._rows(state["met"])
        self._observed[rows] = state["observed"]
        self._expected[rows] = state["expected"]

    def strata(self) -> tuple[Ints, list[Ints], list[Array]]:
        """Groups that were met, with their counts [V] and distributions [V]."""
        expected = self.expected
        laws = expected / expected.sum(1, keepdims=True)
        return self.met, list(self.observed), list(laws)

    def _rows(self, groups: Ints) -> Ints:
        """Rows of distinct groups, new ones of zeros where they were not met before."""
        new = groups[self._row[groups] < 0]
        begin, self._used = self._used, self._used + len(new)
        if self._used > len(self._observed):
            more = (max(self._used, min(2 * begin, self.groups)) - begin, self.vocab_size)
            self._observed = np.concatenate([self._observed[:begin], np.zeros(more, np.int64)])
            self._expected = np.concatenate([self._expected[:begin], np.zeros(more)])
        self._observed[begin : self._used], self._expected[begin : self._used] = 0, 0
        self._row[new] = np.arange(begin, self._used)
        return self._row[groups]
