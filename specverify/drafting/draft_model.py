"""Drafting with a second, cheaper model."""

from copy import copy
from typing import Self

import torch
from torch import Generator, Tensor

from specverify.drafting.autoregressive import check_confidence, sample_block
from specverify.drafting.protocol import DraftBlock, Histories
from specverify.models.pairing import check_pair
from specverify.models.protocol import LanguageModel, Session
from specverify.transforms.pipeline import Pipeline


class DraftModel:
    """A draft model that samples each block autoregressively.

    Leviathan et al. 2023 (arXiv 2211.17192). It has a cache of its own, reads what was committed
    since its last block, and samples through the run's transforms, so what it reports as q is what
    its tokens were drawn from. A draft whose window is smaller than the target's stops proposing
    for rows that have outgrown it.

    Args:
        model: what drafts; its token ids are the target's.
        confidence_threshold: a row's block ends after a token with q(x) below it, in the exact
            form that keeps that token (algorithms.md section 1.12); None always drafts to the
            limit.

    Raises:
        UsageError: the threshold is no probability.
    """

    def __init__(self, model: LanguageModel, *, confidence_threshold: float | None = None) -> None:
        check_confidence(confidence_threshold)
        self.model = model
        self.confidence_threshold = confidence_threshold

    def paired_with(self, target: LanguageModel) -> Self:
        """The same drafter, its model mapped to the target's token ids if need be."""
        paired = copy(self)
        paired.model = check_pair(target, self.model)
        return paired

    def start(
        self, prompt_ids: Tensor, attention_mask: Tensor, target: Session
    ) -> "DraftModelSession":
        """Read the prompts with the draft model; `target` is not needed."""
        return DraftModelSession(
            self.model.start(prompt_ids, attention_mask),
            self.model.window,
            self.confidence_threshold,
        )


class DraftModelSession:
    """The draft model's side of one run."""

    def __init__(
        self, session: Session, window: int | None, confidence_threshold: float | None
    ) -> None:
        self._session = session
        self._window = window
        self._confidence_threshold = confidence_threshold

    def propose(
        self, histories: Histories, limits: Tensor, pipeline: Pipeline, generator: Generator
    ) -> DraftBlock:
        """Sample a block per row, see `sample_block`."""
        if self._window is not None:
            # A block of n tokens makes the model hold the committed tokens and n - 1 of its own.
            room = (self._window + 1 - histories.lengths).clamp(min=0)
            limits = torch.minimum(limits, room)
        return sample_block(
            self._session, histories, limits, pipeline, generator, self._confidence_threshold
        )

    @property
    def passes(self) -> int:
        """Forward passes of the draft model so far."""
        return self._session.passes

    def commit(self, lengths: Tensor) -> None:
        """Roll the cache back to what is still valid."""
        self._session.roll_back(torch.minimum(self._session.lengths, lengths))
