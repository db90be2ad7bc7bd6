"""Table models: logits that are a function of the last few tokens, exact and fast.

Small enough for exact joint distributions by dynamic programming, and vectorised over many rows
for sampling. Each context has a distribution of its own, so a row, a position or a prefix that is
mixed up with another one shows.
"""

from collections.abc import Iterable
from typing import Self

import torch
from torch import Generator, Tensor

from specverify.errors import UsageError
from specverify.models.prompts import check_block, check_roll_back, prompt_lengths, strip_padding
from specverify.models.vocabulary import Vocabulary


class TableModel:
    """A Markov model of order `order` over V tokens (a `LanguageModel`).

    A *context* is the last `order` tokens written as a number in base V + 1, the oldest token
    first; the digit V stands for places before the start of the sequence. `start_context` is the
    context of the empty sequence, `advance` appends tokens to contexts.

    Args:
        logits: [(V + 1)^order, V], converted to float64; row `c` holds the logits after context
            `c`. Entries may be -inf.
        order: tokens the next one depends on, 0 or more.
        window: most tokens a row can hold, None if unbounded.
        vocabulary: strings behind the ids, if there are any.

    Raises:
        UsageError: the shape does not fit the order, a row has no finite entry or holds NaN.
    """

    def __init__(
        self,
        logits: Tensor,
        order: int,
        *,
        window: int | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        if logits.dim() != 2 or order < 0 or logits.shape[0] != (logits.shape[1] + 1) ** order:
            raise UsageError(
                f"logits of shape {list(logits.shape)} do not fit order {order}; a table over V "
                "tokens has shape [(V + 1)^order, V]"
            )
        logits = logits.double()
        legal = (logits < torch.inf).all(1) & logits.isfinite().any(1)
        if not bool(legal.all()):
            row = int((~legal).nonzero()[0])
            raise UsageError(
                f"logits row {row} is {logits[row].tolist()[:8]}; every row needs a finite entry, "
                "and no NaN or +inf"
            )
        self.logits = logits
        self.order = order
        self.vocab_size = logits.shape[1]
        self.window = window
        self.vocabulary = vocabulary

    @classmethod
    def random(
        cls,
        vocab_size: int,
        order: int,
        seed: int,
        scale: float = 1.0,
        *,
        window: int | None = None,
    ) -> Self:
        """A table of independent normal logits with standard deviation `scale`."""
        shape = ((vocab_size + 1) ** order, vocab_size)
        return cls(_normal(shape, seed) * scale, order, window=window)

    def near(self, seed: int, noise: float) -> Self:
        """A copy with normal noise of standard deviation `noise` on its logits: a draft."""
        return type(self)(
            self.logits + noise * _normal(self.logits.shape, seed).to(self.logits.device),
            self.order,
            window=self.window,
            vocabulary=self.vocabulary,
        )

    @property
    def num_contexts(self) -> int:
        """Rows of the table, (V + 1)^order."""
        return self.logits.shape[0]

    @property
    def start_context(self) -> int:
        """Context of the empty sequence: the start symbol in every place."""
        return self.num_contexts - 1

    def advance(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        """Contexts after one more token; `contexts` and `tokens` are long and broadcast."""
        return (contexts * (self.vocab_size + 1) + tokens) % self.num_contexts

    def context_after(self, tokens: Iterable[int]) -> int:
        """Context after a whole sequence of token ids, read from its start."""
        context = self.start_context
        for token in tokens:
            context = (context * (self.vocab_size + 1) + token) % self.num_contexts
        return context

    def start(self, prompt_ids: Tensor, attention_mask: Tensor | None = None) -> "TableSession":
        """Open a session that holds all but the last token of every prompt."""
        lengths = prompt_lengths(prompt_ids, attention_mask, self.vocab_size, self.window)
        device = self.logits.device
        session = TableSession(self, len(lengths))
        tokens = strip_padding(prompt_ids, lengths)[:, :-1].to(device)
        session.extend(tokens, (lengths - 1).to(device))
        return session


class TableSession:
    """Token histories of B rows; the logits are looked up, nothing else is kept.

    Memory is B times the longest row (in a buffer that doubles when it is full).
    """

    def __init__(self, model: TableModel, rows: int) -> None:
        device = model.logits.device
        self.model = model
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)
        self.passes = 0
        # `order` start symbols stand before every row, so contexts need no special case.
        self._tokens = torch.full((rows, model.order), model.vocab_size, device=device)

    def extend(self, tokens: Tensor, counts: Tensor | None = None) -> Tensor:
        """Read a block per row and return float64 logits [B, n, V] (see `Session.extend`)."""
        model = self.model
        tokens = tokens.to(self.lengths.device)
        counts, read = check_block(tokens, counts, self.lengths, model.vocab_size, model.window)
        rows, width = tokens.shape
        self._reserve(width)
        steps = torch.arange(width + model.order, device=tokens.device)
        columns = self.lengths[:, None] + steps
        self._tokens.scatter_(
            1, columns[:, model.order :], tokens.masked_fill(~read, model.vocab_size)
        )
        # Entry i of `recent.unfold` is the last `order` tokens after reading tokens[:, :i + 1].
        recent = self._tokens.gather(1, columns)[:, 1:] if model.order else columns[:, :0]
        history = (
            recent.unfold(1, model.order, 1)
            if model.order and width
            else recent.new_zeros(rows, width, 0)
        )
        self.lengths = self.lengths + counts
        self.passes += bool(counts.any())
        return model.logits[context_index(history, model.vocab_size)]

    def roll_back(self, lengths: Tensor) -> None:
        """Forget all but the first `lengths[b]` tokens of each row."""
        lengths = lengths.to(self.lengths.device)
        check_roll_back(lengths, self.lengths)
        self.lengths = lengths.clone()

    def _reserve(self, width: int) -> None:
        """Grow the buffer so that every row has room for `width` more tokens."""
        rows, capacity = self._tokens.shape
        needed = self.model.order + width + (int(self.lengths.max()) if rows else 0)
        if needed > capacity:
            extra = self._tokens.new_full((rows, max(needed, 2 * capacity) - capacity), 0)
            self._tokens = torch.cat([self._tokens, extra], dim=1)


def context_index(history: Tensor, vocab_size: int) -> Tensor:
    """Contexts from the digits of the last `order` places.

    Args:
        history: long [..., order], the oldest token first; `vocab_size` stands for places before
            the start of the sequence.
        vocab_size: V, so that digits are written in base V + 1.

    Returns:
        long [...], rows of a table.
    """
    index = torch.zeros(history.shape[:-1], dtype=torch.long, device=history.device)
    for digit in history.unbind(-1):
        index = index * (vocab_size + 1) + digit
    return index


def _normal(shape: Iterable[int], seed: int) -> Tensor:
    generator = Generator().manual_seed(seed)
    return torch.randn(tuple(shape), dtype=torch.float64, generator=generator)
