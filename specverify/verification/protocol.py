"""Who decides: the interface of every verification rule."""

from dataclasses import dataclass
from typing import Protocol

from torch import Generator, Tensor


@dataclass(frozen=True)
class Verified:
    """The outcome of one round."""

    tokens: Tensor
    """long [B, K+1]: accepted draft tokens, then the correction or the bonus token, then -1."""

    accepted: Tensor
    """long [B]: draft tokens accepted; the row emits `accepted + 1` tokens."""


class Verification(Protocol):
    """Decides which draft tokens stand, and what follows them.

    Reference rules work in float64, handle V = 1, K = 0, zero residuals, `q(x) = 0`, `p = q` and
    one-hot rows, and never emit a token with target probability 0.
    """

    @property
    def name(self) -> str:
        """Algorithm name as subjects declare it: greedy, token, block, match."""
        ...

    def __call__(
        self,
        draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        generator: Generator | None = None,
        num_draft_tokens: Tensor | None = None,
    ) -> Verified:
        """Verify one block per row.

        Args:
            draft_tokens: long [B, K]; -1 beyond a row's own count.
            draft_probs: [B, K, V], what each token was drawn from; None means one-hot.
            target_probs: [B, K+1, V]; row `i` is the target's distribution after `i` draft tokens.
            generator: source of all draws; torch's global generator when None.
            num_draft_tokens: long [B], draft tokens offered per row; K for all when omitted. A row
                that accepts all of its n tokens draws its bonus token from `target_probs[b, n]`.
        """
        ...
