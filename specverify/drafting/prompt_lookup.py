"""Drafting by copying: what followed the last time the text ended like this."""

from typing import Self

import torch
from torch import Generator, Tensor

from specverify.drafting.protocol import DraftBlock, Histories
from specverify.errors import UsageError
from specverify.models.protocol import LanguageModel, Session
from specverify.transforms.pipeline import Pipeline


class PromptLookup:
    """n-gram prompt lookup (Saxena 2023; `prompt_lookup_num_tokens` in transformers).

    The longest n-gram, from `max_ngram` tokens down to one, that ends the row's committed tokens
    and stands in them at least once before is looked up, and the tokens that followed it are
    proposed. Of several places the most recent counts, where Saxena's and transformers' search
    take the first: recent text says more about what comes next. The earlier place may overlap the
    end. Where the copy reaches the end of the text it goes on into what it has proposed itself, as
    in Lempel-Ziv decoding, so a text that repeats with any period is proposed to repeat on. A row
    without a match offers no token.

    The proposal is a function of the committed tokens, hence deterministic: q is one-hot.

    Args:
        max_ngram: longest n-gram that is looked up.

    Raises:
        UsageError: `max_ngram` is below 1.
    """

    def __init__(self, max_ngram: int = 3) -> None:
        if max_ngram < 1:
            raise UsageError(f"max_ngram={max_ngram}; look up at least one token, 2 or 3 are usual")
        self.max_ngram = max_ngram

    def paired_with(self, target: LanguageModel) -> Self:
        """Itself: copied tokens are the target's own."""
        return self

    def start(
        self, prompt_ids: Tensor, attention_mask: Tensor, target: Session
    ) -> "PromptLookupSession":
        """Nothing to read: all that is needed is in the histories of each round."""
        return PromptLookupSession(self.max_ngram)


class PromptLookupSession:
    """Stateless between rounds."""

    def __init__(self, max_ngram: int) -> None:
        self.passes = 0
        self._max_ngram = max_ngram

    def propose(
        self, histories: Histories, limits: Tensor, pipeline: Pipeline, generator: Generator
    ) -> DraftBlock:
        """Copy up to `limits[b]` tokens; neither `pipeline` nor `generator` is used."""
        source = continuation(histories.tokens, histories.lengths, self._max_ngram)
        counts = torch.where(source > 0, limits, 0)
        width = int(counts.max()) if len(counts) else 0
        offsets = torch.arange(width, device=counts.device)
        period = (histories.lengths - source)[:, None]
        copied = histories.tokens.gather(1, source[:, None] + offsets % period)
        tokens = torch.where(offsets < counts[:, None], copied, -1)
        return DraftBlock(tokens, counts, None)

    def commit(self, lengths: Tensor) -> None:
        """Nothing is kept."""


def continuation(tokens: Tensor, lengths: Tensor, max_ngram: int) -> Tensor:
    """Find where the text went on after the last earlier place that matches its end.

    Args:
        tokens: long [B, W], of which row `b` uses the first `lengths[b]`.
        lengths: long [B], each at least 1.
        max_ngram: longest match looked for.

    Returns:
        long [B]: index of the token that followed the match, 0 where nothing matches.
    """
    end = torch.arange(tokens.shape[1], device=tokens.device)
    last = (lengths - 1)[:, None]
    alive = end < last
    matched = torch.zeros_like(tokens)
    for back in range(max_ngram):
        suffix = tokens.gather(1, (last - back).clamp(min=0))
        # The roll wraps round at the left edge, where no n-gram of this length can end.
        alive = alive & (end >= back) & (tokens.roll(back, 1) == suffix)
        matched += alive
    # Longest match first, then the latest: end is below the width.
    best = torch.where(matched > 0, matched * tokens.shape[1] + end, -1).argmax(1)
    found = matched.gather(1, best[:, None]).squeeze(1) > 0
    return torch.where(found, best + 1, 0)
