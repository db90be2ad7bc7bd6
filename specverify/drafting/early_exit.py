"""Drafting with the target's own first layers, on the target's own cache."""

from typing import Protocol, Self, runtime_checkable

from torch import Generator, Tensor

from specverify.drafting.autoregressive import check_confidence, sample_block
from specverify.drafting.protocol import DraftBlock, Histories
from specverify.errors import UsageError
from specverify.models.protocol import LanguageModel, Session
from specverify.transforms.pipeline import Pipeline


class Exit(Protocol):
    """A model cut off after some of its layers."""

    def session(self, target_session: Session) -> Session:
        """A session that continues what `target_session` holds, in the same cache; rolling it
        back removes only what it wrote itself."""
        ...


@runtime_checkable
class LayeredModel(Protocol):
    """A model whose first layers can be used on their own."""

    def early_exit(self, layers: int) -> Exit:
        """Leave the model after `layers` layers.

        Raises:
            UsageError: the model has not that many layers.
        """
        ...


class EarlyExitDrafter:
    """Self-speculation: the draft is the target, left after its first layers.

    LayerSkip (Elhoushi et al. 2024, arXiv 2404.16710). The draft attends to what the target cached
    in those layers and has no cache of its own. What it writes while drafting is removed before
    the block is returned: verification computes every layer of every position itself, so the
    shared cache never mixes the two (algorithms.md section 1.9).

    Args:
        model: the target.
        layers: how many of its first layers draft.
        confidence_threshold: as in `DraftModel`.

    Raises:
        UsageError: the model has no layers to leave, or not that many; the threshold is no
            probability.
    """

    def __init__(
        self, model: LanguageModel, layers: int, *, confidence_threshold: float | None = None
    ) -> None:
        check_confidence(confidence_threshold)
        if not isinstance(model, LayeredModel):
            raise UsageError(
                f"{type(model).__name__} has no layers to leave early (layers={layers}); early "
                "exit needs a transformers model, use DraftModel or PromptLookup here"
            )
        self.model = model
        self.confidence_threshold = confidence_threshold
        self._exit = model.early_exit(layers)

    def paired_with(self, target: LanguageModel) -> Self:
        """Itself, if its model is the target.

        Raises:
            UsageError: it is another model, whose cache cannot be shared.
        """
        if target is not self.model:
            raise UsageError(
                "an early exit drafts on the cache of its own model, and the target is another "
                "one; build both from the same TransformersModel object"
            )
        return self

    def start(
        self, prompt_ids: Tensor, attention_mask: Tensor, target: Session
    ) -> "EarlyExitSession":
        """Share the cache of `target`, which must be a session of the same model."""
        return EarlyExitSession(self._exit, target, self.confidence_threshold)


class EarlyExitSession:
    """The early exit's side of one run; between blocks it holds nothing."""

    def __init__(self, early_exit: Exit, target: Session, confidence_threshold: float | None):
        self.passes = 0
        self._exit = early_exit
        self._target = target
        self._confidence_threshold = confidence_threshold

    def propose(
        self, histories: Histories, limits: Tensor, pipeline: Pipeline, generator: Generator
    ) -> DraftBlock:
        """Sample a block per row, see `sample_block`, and take it out of the cache again."""
        session = self._exit.session(self._target)
        held = session.lengths.clone()
        before = session.passes
        try:
            return sample_block(
                session, histories, limits, pipeline, generator, self._confidence_threshold
            )
        finally:
            session.roll_back(held)
            self.passes += session.passes - before

    def commit(self, lengths: Tensor) -> None:
        """Nothing to do: the cache is the target's, which its own session rolls back."""
