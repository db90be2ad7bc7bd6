"""What every transform is: logits to logits, given the tokens before them."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from specverify.errors import SettingsError

IMPOSSIBLE = float("-inf")
"""The logit of a masked token."""

_SHOWN = 16
"""Tokens of a history quoted in an error message."""


@runtime_checkable
class Transform(Protocol):
    """Logits to logits, the call of a Hugging Face `LogitsProcessor`.

    A transform computes in float64, returns float64, never changes its input (it may return it),
    keeps masked tokens masked, and leaves at least one token of every row possible.
    """

    history_free: bool = True
    """Whether the result depends on the logits alone, so that one call serves any mix of rows."""

    def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
        """Transform a batch of rows that share one history length.

        Args:
            input_ids: long [B, T], prompt and emitted tokens of each row, without padding.
            logits: [B, V], logits of the token that comes next; -inf where it is impossible.

        Returns:
            float64 [B, V].
        """
        ...


@runtime_checkable
class RandomTransform(Transform, Protocol):
    """A transform that draws fresh coins for every row of every call."""

    def outcomes(self, input_ids: Tensor, logits: Tensor, /) -> Sequence[tuple[float, Tensor]]:
        """Every result a row may get, with its probability.

        The law of the token drawn is the mixture `sum_i weight_i * softmax(logits_i)`.

        Returns:
            Pairs of a weight (they sum to 1) and float64 logits [B, V].
        """
        ...


class Constraint(Transform):
    """A transform that forbids tokens and so may, with the others, leave a row none.

    Called on its own it refuses such a row. A pipeline calls `apply` and checks once, after its
    last constraint, because a later one (a forced token) may bring a token back.
    """

    name: str
    """The settings field behind it, quoted in errors."""

    @abstractmethod
    def apply(self, input_ids: Tensor, logits: Tensor) -> Tensor:
        """Transform without the check; a row may come back with every token masked."""

    def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
        """Transform, and refuse a row that is left without a token.

        Raises:
            SettingsError: no token of a row remains possible; the message quotes its history.
        """
        result = self.apply(input_ids, logits)
        require_survivor(result, input_ids, self.name)
        return result


def require_survivor(logits: Tensor, input_ids: Tensor, cause: str) -> None:
    """Raise `SettingsError` if a row of `logits` [B, V] has every token masked.

    Args:
        logits: [B, V].
        input_ids: long [B, T], quoted in the message.
        cause: the settings that were applied.
    """
    empty = logits.amax(-1) == IMPOSSIBLE
    if not bool(empty.any()):
        return
    row = int(empty.nonzero()[0])
    history = input_ids[row].tolist()
    shown = ", ".join(map(str, history[-_SHOWN:]))
    shown = f"[..., {shown}]" if len(history) > _SHOWN else f"[{shown}]"
    raise SettingsError(
        f"{cause} leaves no token possible after the history {shown} ({len(history)} tokens, "
        f"row {row}); relax it, or allow a token that the model and the other settings permit"
    )


def mask(logits: Tensor, removed: Tensor) -> Tensor:
    """Float64 copy of `logits` with the tokens of the bool tensor `removed` impossible."""
    return logits.double().masked_fill(removed, IMPOSSIBLE)


def occurrences(input_ids: Tensor, vocab_size: int) -> Tensor:
    """Count each token of each row, float64 [B, V].

    Ids beyond the logits (an embedding may be wider than the output layer) are not counted.

    Args:
        input_ids: long [B, T].
        vocab_size: V.
    """
    counts = torch.zeros(
        input_ids.shape[0], vocab_size + 1, dtype=torch.float64, device=input_ids.device
    )
    ids = input_ids.clamp(max=vocab_size)
    counts.scatter_add_(1, ids, torch.ones_like(ids, dtype=torch.float64))
    return counts[:, :vocab_size]
