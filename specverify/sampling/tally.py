"""Counts that replace samples: what a batch of runs leaves behind.

A tally's size depends on the vocabulary and on the partition of the joint distribution, never on
the number of runs added to it.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specverify.exact.prefix_tree import PrefixTree

Ints = NDArray[np.int64]
State = dict[str, Any]
"""A tally as plain arrays, numbers and lists, for other processes and for files."""


@dataclass(frozen=True)
class Batch:
    """Sampled runs of one prompt."""

    tokens: Ints
    """[N, L] emitted tokens, padded right with -1."""
    required_lengths: Ints
    """[N] tokens after which the settings end the run, 0 where nothing emitted ends it."""
    impossible: NDArray[np.bool_]
    """[N, L] tokens whose probability under the target is 0."""


@dataclass
class Tally:
    """Counts of runs of one prompt."""

    tree: PrefixTree
    runs: int = 0
    tokens: int = 0
    first: Ints = field(init=False)
    """[V] first tokens."""
    cells: Ints = field(init=False)
    """[C] runs by leaf of the tree; runs that left it or ended wrongly are counted elsewhere."""
    impossible: int = 0
    impossible_example: list[int] | None = None
    """The first run with an impossible token, up to that token."""
    wrong_ends: int = 0
    wrong_end_example: list[int] | None = None

    def __post_init__(self) -> None:
        self.first = np.zeros(self.tree.vocab_size, np.int64)
        self.cells = np.zeros(len(self.tree.leaf_probabilities()), np.int64)

    def add(self, batch: Batch) -> None:
        """Count a batch of runs."""
        tokens = batch.tokens
        lengths = (tokens >= 0).sum(1)
        self.runs += len(tokens)
        self.tokens += int(lengths.sum())
        self.first += np.bincount(tokens[:, 0], minlength=len(self.first))
        self._count_impossible(batch)
        wrong = lengths != batch.required_lengths
        if wrong.any():
            self.wrong_ends += int(wrong.sum())
            if self.wrong_end_example is None:
                row = int(wrong.argmax())
                self.wrong_end_example = tokens[row, : lengths[row]].tolist()
        cells = self.tree.locate(tokens[~wrong])
        self.cells += np.bincount(cells[cells >= 0], minlength=len(self.cells))

    def merge(self, other: "Tally") -> None:
        """Add the counts of other runs of the same prompt; the first example stays."""
        self.runs += other.runs
        self.tokens += other.tokens
        self.first += other.first
        self.cells += other.cells
        self.impossible += other.impossible
        self.wrong_ends += other.wrong_ends
        self.impossible_example = self.impossible_example or other.impossible_example
        self.wrong_end_example = self.wrong_end_example or other.wrong_end_example

    def state(self) -> State:
        """All but the tree, which every process grows for itself."""
        return {name: getattr(self, name) for name in _STATE}

    def restore(self, state: State) -> None:
        """Take over what `state` returned."""
        for name in _STATE:
            setattr(self, name, state[name])

    def _count_impossible(self, batch: Batch) -> None:
        self.impossible += int(batch.impossible.sum())
        rows = batch.impossible.any(1)
        if rows.any() and self.impossible_example is None:
            row = int(rows.argmax())
            end = int(batch.impossible[row].argmax()) + 1
            self.impossible_example = batch.tokens[row, :end].tolist()


_STATE = (
    "runs",
    "tokens",
    "first",
    "cells",
    "impossible",
    "impossible_example",
    "wrong_ends",
    "wrong_end_example",
)
