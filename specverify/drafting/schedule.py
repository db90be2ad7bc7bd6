"""How many draft tokens each row is offered in the next round.

All of these keep the output exact. A row's next length is computed from how many tokens earlier
rounds offered and accepted, before any token of the round is sampled: given the past it is a
constant, and lossless verification holds for every constant (algorithms.md sections 0 P2 and
1.12). What would break it is a length chosen after looking at a token that is then left out.

The counterparts in transformers are the values of `num_assistant_tokens_schedule`: constant,
heuristic, heuristic_transient.
"""

from typing import Protocol

import torch
from torch import Tensor

from specverify.errors import UsageError


class Schedule(Protocol):
    """A block-length policy; its state belongs to one run, one length per row."""

    def start(self, batch_size: int) -> Tensor:
        """State of a new run of `batch_size` rows."""
        ...

    def limits(self, state: Tensor) -> Tensor:
        """Draft tokens each row may be offered next, long [B]."""
        ...

    def update(self, state: Tensor, accepted: Tensor, drafted: Tensor) -> None:
        """Learn from a round, in place.

        Args:
            state: of this run.
            accepted: long [B], draft tokens accepted per row.
            drafted: long [B], draft tokens offered; a row with 0 took no part and learns nothing.
        """
        ...


class Fixed:
    """The same number of draft tokens in every round.

    Args:
        num_draft_tokens: 0 or more; 0 decodes autoregressively.

    Raises:
        UsageError: the number is negative.
    """

    def __init__(self, num_draft_tokens: int) -> None:
        if num_draft_tokens < 0:
            raise UsageError(
                f"num_draft_tokens={num_draft_tokens} is negative; use 0 for no drafts, 4 is usual"
            )
        self.num_draft_tokens = num_draft_tokens

    def start(self, batch_size: int) -> Tensor:
        """Every row's length, which never changes."""
        return torch.full((batch_size,), self.num_draft_tokens)

    def limits(self, state: Tensor) -> Tensor:
        """The same in every round."""
        return state

    def update(self, state: Tensor, accepted: Tensor, drafted: Tensor) -> None:
        """A fixed length learns nothing."""


class HeuristicTransient:
    """Two tokens more after a fully accepted block, one less (but at least one) after any other.

    Each row has its own length, and each run starts from `num_draft_tokens` again.

    Args:
        num_draft_tokens: length of the first block, at least 1.

    Raises:
        UsageError: the number is below 1.
    """

    def __init__(self, num_draft_tokens: int) -> None:
        if num_draft_tokens < 1:
            raise UsageError(
                f"num_draft_tokens={num_draft_tokens}; a heuristic schedule starts from at least "
                "1 draft token, use Fixed(0) for none"
            )
        self.num_draft_tokens = num_draft_tokens

    def start(self, batch_size: int) -> Tensor:
        """Every row at the first length."""
        return torch.full((batch_size,), self.num_draft_tokens)

    def limits(self, state: Tensor) -> Tensor:
        """Each row's current length."""
        return state.clone()

    def update(self, state: Tensor, accepted: Tensor, drafted: Tensor) -> None:
        """Lengthen or shorten each row that took part."""
        accepted, drafted = accepted.to(state.device), drafted.to(state.device)
        learned = torch.where(accepted == drafted, state + 2, (state - 1).clamp(min=1))
        state.copy_(torch.where(drafted > 0, learned, state))


class Heuristic(HeuristicTransient):
    """As `HeuristicTransient`, but what a run has learned is kept for the next one.

    A new run starts every row from the mean length, rounded, of the last round of the run before;
    for single sequences that is the length itself, as in transformers. The object is what
    remembers: share it between runs that should learn from each other.
    """

    def __init__(self, num_draft_tokens: int) -> None:
        super().__init__(num_draft_tokens)
        self._learned = num_draft_tokens

    def start(self, batch_size: int) -> Tensor:
        """Every row at the length the last run ended with."""
        return torch.full((batch_size,), self._learned)

    def update(self, state: Tensor, accepted: Tensor, drafted: Tensor) -> None:
        """Lengthen or shorten each row that took part, and remember."""
        super().update(state, accepted, drafted)
        self._learned = round(state.double().mean().item())
