"""From the leaves of an exploration to a distribution over token tuples."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specverify.errors import CannotSteer, MalformedOutput
from specverify.exact.branching import Leaf
from specverify.exact.joint import Tokens

_MAXIMUM_ENTRIES = 1 << 25


def spread(leaf: Leaf) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Put every possible value into the places of draws that nothing looked at.

    Returns:
        For each outcome of positive probability the index among the leaf's rows [N], the tokens
        [N, L] and the probability, that of the leaf included [N].

    Raises:
        CannotSteer: there are too many outcomes to list.
    """
    index = torch.arange(len(leaf.rows))
    tokens, mass = leaf.tokens.clone(), leaf.probability
    for slot in leaf.slots:
        for place, probabilities, values in _one_a_row(slot.place, slot.probabilities, slot.values):
            size = len(tokens) + place.shape[0] * probabilities.shape[1]
            if size * tokens.shape[1] > _MAXIMUM_ENTRIES:
                raise CannotSteer(f"one path emits {size:,} different outputs; use a smaller V")
            of_row = torch.full((len(leaf.rows),), -1)
            of_row[place[:, 0]] = torch.arange(len(place))
            member = of_row[index]
            drawn = member >= 0
            entry, outcome = (probabilities[member[drawn]] > 0).nonzero(as_tuple=True)
            source = drawn.nonzero()[:, 0][entry]
            member = member[source]
            grown = tokens[source]
            grown[torch.arange(len(grown)), place[member, 1]] = values[member, outcome]
            index = torch.cat([index[~drawn], index[source]])
            mass = torch.cat([mass[~drawn], mass[source] * probabilities[member, outcome]])
            tokens = torch.cat([tokens[~drawn], grown])
    return index.numpy(), tokens.numpy(), mass.numpy()


def _one_a_row(
    place: Tensor, probabilities: Tensor, values: Tensor
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Split draws so that no part has two of one row."""
    parts = []
    left = torch.arange(len(place))
    while len(left):
        rows = place[left, 0]
        first = torch.ones(len(left), dtype=torch.bool)
        first[1:] = rows[1:] != rows[:-1]
        chosen = left[first]
        parts.append((place[chosen], probabilities[chosen], values[chosen]))
        left = left[~first]
    return parts


@dataclass
class Outcomes:
    """Masses of token tuples, collected part by part."""

    _tokens: list[NDArray[np.int64]] = field(default_factory=list)
    _masses: list[NDArray[np.float64]] = field(default_factory=list)

    def add(self, tokens: NDArray[np.int64], masses: NDArray[np.float64]) -> None:
        """Add tuples [N, L], padded right with -1, and their masses [N]."""
        self._tokens.append(tokens)
        self._masses.append(masses)

    def distribution(self) -> dict[Tokens, float]:
        """The sum, by tuple without padding.

        Raises:
            MalformedOutput: -1 stands before a token, or an id lies below -1.
        """
        if not self._tokens:
            return {}
        width = max(part.shape[1] for part in self._tokens)
        padded = [
            np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=-1)
            for part in self._tokens
        ]
        tokens, masses = np.concatenate(padded), np.concatenate(self._masses)
        check_padding(tokens)
        largest = int(tokens.max(initial=0)) + 2
        if largest ** tokens.shape[1] < 1 << 62:
            code = (tokens + 1) @ largest ** np.arange(tokens.shape[1] - 1, -1, -1)
            _, first, group = np.unique(code, return_index=True, return_inverse=True)
        else:
            _, first, group = np.unique(tokens, axis=0, return_index=True, return_inverse=True)
        sums = np.bincount(group.reshape(-1), masses, len(first)).tolist()
        rows = tokens[first]
        lengths = (rows >= 0).sum(1).tolist()
        return {
            tuple(row[:length]): mass
            for row, length, mass in zip(rows.tolist(), lengths, sums, strict=True)
            if mass > 0
        }


def check_padding(tokens: NDArray[np.int64]) -> None:
    """Raise `MalformedOutput` for a row that is not tokens followed by -1."""
    padding = tokens < 0
    bad = (tokens < -1) | (padding[:, :-1] & ~padding[:, 1:]).any(1, keepdims=True)
    if bad.any():
        row = int(np.flatnonzero(bad.any(1))[0])
        raise MalformedOutput(
            f"the subject emitted {tokens[row].tolist()}; a row is token ids, then -1 as padding "
            "to the right of what was emitted"
        )
