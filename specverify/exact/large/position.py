"""One position of a draft block: what a rule is handed there, for any draft token."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specverify.errors import UsageError

After = Callable[[Tensor], Tensor]
"""Draft tokens long [n] to the target's rows after each of them, [n, K-i+1, V]."""

_SUM_TOLERANCE = 1e-2
"""Half-width rows miss 1 by this much."""


@dataclass(frozen=True)
class DraftedPosition:
    """Position i of a block of K draft tokens, the tokens before it given.

    The token at position i is any of the vocabulary. The tokens behind it are `following`, from a
    draft that proposes them with certainty: its rows there are one-hot. So every block has a known
    probability, and nothing is left to sample, whatever a rule makes of later tokens (block
    verification looks at them before it accepts an earlier one). A lossless rule is lossless for
    this draft too.
    """

    target: Tensor
    """[i, V]: the target's distributions at the positions 1 to i, along `prefix`."""
    draft: Tensor
    """[i, V]: the draft's, of the same dtype."""
    after: After
    """The target's rows after `prefix` and a token, then after each token of `following`."""
    prefix: tuple[int, ...] = ()
    """The i - 1 draft tokens before the position."""
    following: tuple[int, ...] = ()
    """The K - i draft tokens behind it."""

    def __post_init__(self) -> None:
        shape = (len(self.prefix) + 1, self.draft.shape[-1])
        for name, rows in (("target", self.target), ("draft", self.draft)):
            if tuple(rows.shape) != shape or rows.dtype != self.target.dtype:
                raise UsageError(
                    f"{name} is {rows.dtype} {list(rows.shape)}; for {len(self.prefix)} tokens "
                    f"before the position it must be {self.target.dtype} [{shape[0]}, V], as the "
                    "other one"
                )
            _check_rows(name, rows)
        outside = [t for t in (*self.prefix, *self.following) if not 0 <= t < self.vocab_size]
        if outside:
            raise UsageError(
                f"the block holds token {outside[0]}; tokens run from 0 to {self.vocab_size - 1}"
            )

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.draft.shape[1]

    @property
    def num_draft_tokens(self) -> int:
        """K."""
        return len(self.prefix) + 1 + len(self.following)

    @property
    def tokens(self) -> Tensor:
        """Tokens that the draft may propose at the position, long [N]."""
        return (self.draft[-1] > 0).nonzero()[:, 0]

    def rows_after(self, tokens: Tensor) -> Tensor:
        """`after`, its result checked; [n, K-i+1, V].

        Raises:
            UsageError: it returns another shape, or rows that are no distributions.
        """
        rows = self.after(tokens)
        shape = (len(tokens), len(self.following) + 1, self.vocab_size)
        if tuple(rows.shape) != shape or rows.dtype != self.target.dtype:
            raise UsageError(
                f"`after` returned {rows.dtype} {list(rows.shape)}; for {len(tokens)} tokens it "
                f"must return {self.target.dtype} {list(shape)}"
            )
        _check_rows("after", rows)
        return rows

    def inputs(self, tokens: Tensor, after: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the rule is handed for draft tokens at the position, in memory of their own.

        Args:
            tokens: long [n].
            after: `rows_after(tokens)`.

        Returns:
            draft_tokens long [n, K], draft_probs [n, K, V], target_probs [n, K+1, V].
        """
        count, position = len(tokens), len(self.prefix)
        block = torch.tensor([*self.prefix, 0, *self.following]).repeat(count, 1)
        block[:, position] = tokens
        draft = self.draft.new_zeros(count, self.num_draft_tokens, self.vocab_size)
        draft[:, : position + 1] = self.draft
        for place, token in enumerate(self.following, position + 1):
            draft[:, place, token] = 1.0
        target = self.target.new_empty(count, self.num_draft_tokens + 1, self.vocab_size)
        target[:, : position + 1] = self.target
        target[:, position + 1 :] = after
        return block, draft, target

    def digest(self) -> str:
        """SHA-256 of everything that is handed over, of `after` for two tokens only."""
        hashed = hashlib.sha256(repr((self.prefix, self.following, self.target.dtype)).encode())
        for rows in (self.target, self.draft, self.rows_after(self.tokens[:2])):
            hashed.update(rows.contiguous().view(torch.uint8).numpy().tobytes())
        return hashed.hexdigest()


def normalised(rows: Tensor) -> Tensor:
    """Rows as their sampler draws from them: float64, summing to 1."""
    rows = rows.double()
    return rows / rows.sum(-1, keepdim=True)


def _check_rows(name: str, rows: Tensor) -> None:
    sums = rows.sum(-1, dtype=torch.float64)
    # The smallest entry is NaN where any is.
    if rows.numel() and not (
        bool(rows.min() >= 0) and bool(((sums - 1).abs() <= _SUM_TOLERANCE).all())
    ):
        raise UsageError(
            f"{name} holds rows that are no distributions (sums from {float(sums.min())} to "
            f"{float(sums.max())}); pass probabilities, not logits"
        )
