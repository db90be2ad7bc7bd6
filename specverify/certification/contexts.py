"""Groups of contexts: histories that end in the same tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

MOST_ENTRIES = 1 << 21
"""Contexts are told apart by as many of their last tokens as keep groups times V below this."""


@dataclass(frozen=True)
class Contexts:
    """Histories grouped by their last `suffix` tokens, numbered in base V + 1.

    The digit V stands for places before the prompt.
    """

    vocab_size: int
    suffix: int

    @classmethod
    def told_apart(cls, vocab_size: int, *, most_tokens: int, places: int = 1) -> Self:
        """As fine as memory allows.

        Args:
            vocab_size: V.
            most_tokens: longest suffix wanted.
            places: tables of groups times V that will be kept.
        """
        for suffix in range(most_tokens, 0, -1):
            if places * (vocab_size + 1) ** suffix * vocab_size <= MOST_ENTRIES:
                return cls(vocab_size, suffix)
        return cls(vocab_size, 0)

    @property
    def count(self) -> int:
        """Number of groups."""
        return (self.vocab_size + 1) ** self.suffix

    def groups(self, prompt: Sequence[int], tokens: Tensor, rows: Tensor, depths: Tensor) -> Tensor:
        """Group of the context before emitted token `depths[m]` of run `rows[m]`.

        Args:
            prompt: token ids of the prompt of all runs.
            tokens: long [N, L], emitted tokens.
            rows: long [M].
            depths: long [M], 0 to L.

        Returns:
            long [M].
        """
        history = torch.cat([torch.tensor(prompt).expand(len(tokens), -1), tokens], 1)
        groups = torch.zeros(len(rows), dtype=torch.long)
        for back in range(self.suffix, 0, -1):
            place = len(prompt) + depths - back
            token = torch.where(place >= 0, history[rows, place.clamp(min=0)], self.vocab_size)
            groups = groups * (self.vocab_size + 1) + token
        return groups

    def label(self, group: int) -> str:
        """The last tokens of the contexts in a group, as a reader wants them."""
        digits = []
        for _ in range(self.suffix):
            group, digit = divmod(group, self.vocab_size + 1)
            digits.append("start" if digit == self.vocab_size else str(digit))
        return "after ..., " + ", ".join(reversed(digits)) if digits else "anywhere"
