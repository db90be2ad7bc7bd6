"""Who proposes: the interface between the decoding loop and any way of drafting."""

from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Generator, Tensor

from specverify.models.protocol import LanguageModel, Session
from specverify.transforms.pipeline import Pipeline


@dataclass(frozen=True)
class DraftBlock:
    """The tokens one round proposes, with the distributions they were really drawn from."""

    tokens: Tensor
    """long [B, K], row `b` proposes its first `counts[b]` tokens; -1 after them."""

    counts: Tensor
    """long [B], draft tokens offered per row, 0 to K."""

    probs: Tensor | None
    """float64 [B, K, V], the distribution each token was sampled from; None when the drafts are
    deterministic, which means one-hot at the token."""


class Histories:
    """The committed tokens of every row: its prompt without padding, then what was emitted."""

    tokens: Tensor
    """long [B, W], row `b` is `tokens[b, :lengths[b]]`; what stands after it is scratch space."""

    lengths: Tensor
    """long [B]."""

    prompt_lengths: Tensor
    """long [B]."""

    def __init__(self, tokens: Tensor, lengths: Tensor, prompt_lengths: Tensor) -> None:
        self.tokens = tokens
        self.lengths = lengths
        self.prompt_lengths = prompt_lengths

    @classmethod
    def from_prompts(cls, prompt_ids: Tensor, attention_mask: Tensor) -> "Histories":
        """Strip the left padding of a batch of prompts, long [B, T]."""
        lengths = attention_mask.long().sum(1)
        width = prompt_ids.shape[1]
        shift = torch.arange(width, device=prompt_ids.device) + (width - lengths)[:, None]
        tokens = prompt_ids.gather(1, shift.clamp(max=width - 1))
        return cls(tokens, lengths, lengths.clone())

    def reserve(self, count: int) -> None:
        """Make room for `count` tokens behind the longest row."""
        missing = int(self.lengths.max()) + count - self.tokens.shape[1]
        if missing > 0:
            self.tokens = torch.nn.functional.pad(self.tokens, (0, missing))

    def write(self, block: Tensor) -> None:
        """Write `block`, long [B, n], into the scratch space right behind every row."""
        index = torch.arange(block.shape[1], device=block.device)
        self.tokens.scatter_(1, self.lengths[:, None] + index, block)


class DraftSession(Protocol):
    """Drafting state for one batch of rows."""

    @property
    def passes(self) -> int:
        """Forward passes of a draft model so far; 0 for drafters that use none."""
        ...

    def propose(
        self, histories: Histories, limits: Tensor, pipeline: Pipeline, generator: Generator
    ) -> DraftBlock:
        """Propose up to `limits[b]` tokens for row `b`; rows with limit 0 are left alone.

        The number of tokens offered may depend on the past and on tokens already offered, never
        on the token it would leave out (algorithms.md section 1.12).

        Args:
            histories: what is committed; scratch space behind it may be overwritten.
            limits: long [B].
            pipeline: the run's transforms, which a drafter that samples applies to its own
                logits with each candidate's own prefix.
            generator: source of all draws.
        """
        ...

    def commit(self, lengths: Tensor) -> None:
        """Told after each round how many tokens of its rows are still valid.

        Args:
            lengths: long [B]; the row's committed history agrees with what the drafter read in
                its first `lengths[b]` tokens. Anything it holds beyond is forgotten.
        """
        ...


class Drafter(Protocol):
    """A way of drafting, independent of any run."""

    def paired_with(self, target: LanguageModel) -> Self:
        """The drafter as it must be used with this target, mapped to its ids if need be.

        Raises:
            VocabularyMismatch: the draft's token ids are not, and cannot be made, the target's.
            CacheNotRollable: the draft model's cache cannot forget rejected tokens.
        """
        ...

    def start(self, prompt_ids: Tensor, attention_mask: Tensor, target: Session) -> DraftSession:
        """Begin a run; `target` is the session that verifies, for drafters that share its cache."""
        ...
