"""What a decoder needs of a model: start on prompts, extend by a block, roll back per row."""

from typing import Protocol, runtime_checkable

from torch import Tensor

from specverify.models.vocabulary import Vocabulary


class Session(Protocol):
    """A batch of token sequences a model has read, with whatever cache it keeps for them.

    Row `b` holds its first `lengths[b]` tokens; rows differ in length. Padding is never counted.
    """

    @property
    def lengths(self) -> Tensor:
        """Tokens held per row, long, shape [B]."""
        ...

    @property
    def passes(self) -> int:
        """Forward passes of the model made by this session so far."""
        ...

    def extend(self, tokens: Tensor, counts: Tensor | None = None) -> Tensor:
        """Read a block of tokens and return the logits after each of them.

        Args:
            tokens: long [B, n]; row `b` reads `tokens[b, :counts[b]]`, the rest is ignored
                (-1 by convention).
            counts: long [B], each between 0 and n; all n when omitted.

        Returns:
            Logits [B, n, V] in the model's dtype; `logits[b, i]` is the distribution of the token
            after `tokens[b, i]`. Entries at `i >= counts[b]` are unspecified.

        Raises:
            UsageError: a row would grow past the model's window.
        """
        ...

    def roll_back(self, lengths: Tensor) -> None:
        """Forget all but the first `lengths[b]` tokens of each row; `lengths` is long [B].

        Raises:
            ValueError: `lengths[b]` is negative or exceeds what row `b` holds.
        """
        ...


@runtime_checkable
class Repeatable(Protocol):
    """A session whose prompt is read once for many rows."""

    def repeated(self, rows: int) -> "Session":
        """A new session of `rows` rows that hold the tokens of this one, which has a single row.

        Raises:
            CacheNotRollable: what it holds cannot be repeated.
        """
        ...


@runtime_checkable
class LanguageModel(Protocol):
    """A causal language model over token ids 0 to `vocab_size - 1`."""

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        ...

    @property
    def window(self) -> int | None:
        """Most tokens a row can hold, None if unbounded."""
        ...

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The strings behind the ids, None for models that are defined on ids alone."""
        ...

    def start(self, prompt_ids: Tensor, attention_mask: Tensor | None = None) -> Session:
        """Open a session that holds all but the last token of every prompt.

        The last token is left out because the decoder feeds it together with the first block
        (algorithms.md section 4, I1: the cache lacks the last committed token).

        Args:
            prompt_ids: long [B, T], padded on the left.
            attention_mask: [B, T], 1 on real tokens; all real when omitted.

        Raises:
            UsageError: a prompt is empty, holds an id outside the vocabulary, or is longer than
                the window; the mask has another shape or a hole.
        """
        ...
