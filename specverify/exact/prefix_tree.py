"""The stopped joint distribution of the first tokens of a run, as a tree over prefixes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specverify.errors import UsageError
from specverify.exact.conditional import Conditional, IsEnd, checked_ends, checked_rows

ENDED_EARLY = -1
"""Code of a run that ended although its settings do not say so."""
IMPOSSIBLE = -2
"""Code of a run through a token of probability 0."""
ENDED_LATE = -3
"""Code of a run that went on after its settings say it ended."""

_NO_CHILD = np.iinfo(np.int32).min
_ENTRIES_A_CALL = 1 << 22
_MAXIMUM_ENTRIES = 1 << 26


@dataclass(frozen=True, eq=False)
class PrefixTree:
    """A partition of all runs into cells of known probability.

    A cell is a sequence (a run that ended, or the first `length` tokens of one), or the *rest* of a
    node: all runs that leave this prefix by one of the children too improbable to follow. Which
    children are followed is decided by their probability alone, so counts of runs by cell can be
    tested as they are.
    """

    vocab_size: int
    length: int
    children: NDArray[np.int32]
    """[nodes, V]: node reached by a token, or -1 - cell, or the smallest int32 if p = 0."""
    tokens: NDArray[np.int32]
    """[cells, length]: the sequence of each cell, of a rest cell its node's prefix; -1 pads."""
    rest: NDArray[np.bool_]
    """[cells]: whether the cell is the rest of a node."""
    ended: NDArray[np.bool_]
    """[cells]: whether runs of the cell stop after its sequence; False for rest cells."""
    probabilities: NDArray[np.float64]
    """[cells]: see `leaf_probabilities`."""

    @classmethod
    def grow(
        cls,
        conditional: Conditional,
        vocab_size: int,
        length: int,
        is_end: IsEnd | None = None,
        *,
        minimum_mass: float = 0.0,
        maximum_entries: int = _MAXIMUM_ENTRIES,
    ) -> "PrefixTree":
        """Enumerate the distribution level by level (algorithms.md section 0, P3).

        Args:
            conditional: teacher-forced next-token distributions; called with the prefixes of one
                length, [N, 0] first, at most 4M probabilities a call.
            vocab_size: V.
            length: tokens to enumerate, at least 1.
            is_end: stopping rule on prefixes of 1 to `length` tokens; none stop when omitted.
            minimum_mass: children of smaller probability are merged into their node's rest cell;
                0 gives the full joint distribution. For n runs and expected counts of 25 per cell,
                25 / n.
            maximum_entries: largest child table (nodes times V) to allow.

        Raises:
            UsageError: an argument is out of range, `conditional` or `is_end` returns another
                shape or rows that are no distributions (sum off 1 by more than 1e-6), or the tree
                outgrows `maximum_entries`.
        """
        if vocab_size < 1 or length < 1 or not 0 <= minimum_mass < 1:
            raise UsageError(
                "a tree needs vocab_size >= 1, length >= 1 and 0 <= minimum_mass < 1, got "
                f"{vocab_size}, {length}, {minimum_mass}"
            )
        builder = _Builder(conditional, vocab_size, length, is_end, minimum_mass)
        prefixes, masses = np.zeros((1, 0), np.int64), np.ones(1)
        while len(prefixes):
            if (builder.nodes + len(prefixes)) * vocab_size > maximum_entries:
                raise UsageError(
                    f"the tree needs more than {maximum_entries} table entries at token "
                    f"{prefixes.shape[1] + 1}; raise minimum_mass or lower length={length}"
                )
            prefixes, masses = builder.expand_level(prefixes, masses)
        return cls(
            vocab_size,
            length,
            np.concatenate(builder.children),
            np.concatenate(builder.tokens),
            np.concatenate(builder.rest),
            np.concatenate(builder.ended),
            np.concatenate(builder.probabilities),
        )

    def leaf_probabilities(self) -> NDArray[np.float64]:
        """Probability of each cell, float64 [cells]; they sum to 1 within 1e-12."""
        return self.probabilities

    def sequences(self) -> dict[tuple[int, ...], float]:
        """The full joint distribution, sequence to probability.

        Raises:
            UsageError: the tree has rest cells, whose sequences were not enumerated.
        """
        if self.rest.any():
            raise UsageError(
                f"{self.rest.sum()} cells are rests of several sequences; grow the tree with "
                "minimum_mass=0 to enumerate them"
            )
        return {
            tuple(row[row >= 0].tolist()): float(mass)
            for row, mass in zip(self.tokens, self.probabilities, strict=True)
        }

    def locate(self, tokens: ArrayLike) -> NDArray[np.int64]:
        """Find the cell of each run.

        What a run does inside a rest cell, or beyond `length` tokens that did not end it, is not
        looked at.

        Args:
            tokens: integers [B, L], a run a row without its prompt, padded on the right with -1.

        Returns:
            int64 [B]: the cell, or one of `ENDED_EARLY`, `IMPOSSIBLE`, `ENDED_LATE`.

        Raises:
            UsageError: not two-dimensional, or ids below -1 or outside the vocabulary.
        """
        runs = np.asarray(tokens)
        if runs.ndim != 2:
            raise UsageError(f"runs are rows of tokens [B, L], got shape {runs.shape}")
        if runs.size and not (runs.min() >= -1 and runs.max() < self.vocab_size):
            raise UsageError(
                f"runs hold ids from {runs.min()} to {runs.max()}; allowed are 0 to "
                f"{self.vocab_size - 1}, and -1 as padding"
            )
        cells = np.full(len(runs), ENDED_EARLY, np.int64)
        rows, nodes = np.arange(len(runs)), np.zeros(len(runs), np.int64)
        for column in range(min(self.length, runs.shape[1])):
            present = runs[rows, column] >= 0
            rows, nodes = rows[present], nodes[present]
            reached = self.children[nodes, runs[rows, column]].astype(np.int64)
            cells[rows] = np.where(reached == _NO_CHILD, IMPOSSIBLE, -1 - reached)
            inner = reached >= 0
            rows, nodes = rows[inner], reached[inner]
            cells[rows] = ENDED_EARLY  # until the next token says otherwise
        self._mark_late(cells, runs)
        return cells

    def _mark_late(self, cells: NDArray[np.int64], runs: NDArray) -> None:
        found = np.flatnonzero(cells >= 0)
        found = found[self.ended[cells[found]]]
        depths = (self.tokens[cells[found]] >= 0).sum(1)
        beyond = np.arange(runs.shape[1]) >= depths[:, None]
        cells[found[((runs[found] >= 0) & beyond).any(1)]] = ENDED_LATE


class _Builder:
    """Collects the arrays of a tree while its levels are expanded."""

    def __init__(
        self,
        conditional: Conditional,
        vocab_size: int,
        length: int,
        is_end: IsEnd | None,
        minimum_mass: float,
    ) -> None:
        self.conditional, self.is_end = conditional, is_end
        self.vocab_size, self.length, self.minimum_mass = vocab_size, length, minimum_mass
        self.nodes = self.cells = 0
        self.children: list[NDArray[np.int32]] = []
        self.tokens: list[NDArray[np.int32]] = []
        self.rest: list[NDArray[np.bool_]] = []
        self.ended: list[NDArray[np.bool_]] = []
        self.probabilities: list[NDArray[np.float64]] = []

    def expand_level(
        self, prefixes: NDArray[np.int64], masses: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Turn all prefixes [N, t] of one length into nodes; return those of the next length."""
        self.nodes += len(prefixes)
        step = max(1, _ENTRIES_A_CALL // self.vocab_size)
        next_prefixes, next_masses, inner = [], [], 0
        for start in range(0, len(prefixes), step):
            batch = prefixes[start : start + step]
            grown, mass = self._expand(batch, masses[start : start + step], self.nodes + inner)
            next_prefixes.append(grown)
            next_masses.append(mass)
            inner += len(grown)
        return np.concatenate(next_prefixes), np.concatenate(next_masses)

    def _expand(
        self, prefixes: NDArray[np.int64], masses: NDArray[np.float64], first_node: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        probs = checked_rows(self.conditional(prefixes), len(prefixes), self.vocab_size)
        joint = masses[:, None] * probs
        possible = probs > 0
        small = possible & (joint < self.minimum_mass)
        rows, ids = np.nonzero(possible & ~small)
        grown = np.concatenate([prefixes[rows], ids[:, None]], axis=1)
        ended = checked_ends(self.is_end, grown)
        leaf = ended | (grown.shape[1] == self.length)

        table = np.full(probs.shape, _NO_CHILD, np.int32)
        codes = np.empty(len(rows), np.int64)
        codes[~leaf] = first_node + np.arange((~leaf).sum())
        codes[leaf] = -1 - self._add(grown[leaf], joint[rows, ids][leaf], ended[leaf])
        table[rows, ids] = codes
        with_rest = np.flatnonzero(small.any(1))
        merged = np.where(small, joint, 0.0).sum(1)[with_rest]
        rest_cells = self._add(prefixes[with_rest], merged, None)
        rest_of = np.zeros(len(prefixes), np.int64)
        rest_of[with_rest] = -1 - rest_cells
        table[small] = rest_of[np.nonzero(small)[0]]
        self.children.append(table)
        return grown[~leaf], joint[rows, ids][~leaf]

    def _add(
        self, sequences: NDArray, masses: NDArray[np.float64], ended: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        """Append cells and return their indices; `ended` None marks them as rests."""
        count = len(sequences)
        padded = np.full((count, self.length), -1, np.int32)
        padded[:, : sequences.shape[1]] = sequences
        self.tokens.append(padded)
        self.probabilities.append(masses)
        self.rest.append(np.full(count, ended is None))
        self.ended.append(np.zeros(count, np.bool_) if ended is None else ended)
        self.cells += count
        return np.arange(self.cells - count, self.cells)
