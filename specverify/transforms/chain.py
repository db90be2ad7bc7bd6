"""The transforms of one prompt length, as one function of histories and logits."""

from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor

from specverify.transforms.base import Constraint, RandomTransform, Transform, require_survivor
from specverify.transforms.custom import Custom


class Chain:
    """Transforms in order, with one check that the constraints left every row a token.

    Args:
        processors: applied first; what forbids tokens is among them.
        warpers: applied after the check.
    """

    def __init__(self, processors: Sequence[Transform], warpers: Sequence[Transform]) -> None:
        self.processors = tuple(processors)
        self.warpers = tuple(warpers)
        transforms = self.processors + self.warpers
        self.empty = not transforms
        self.history_free = all(t.history_free for t in transforms)
        self.random = any(isinstance(t, RandomTransform) for t in transforms)
        self.forbidding = tuple(t.name for t in self.processors if _may_empty_a_row(t))
        """Names of the transforms that may leave a row without a token."""

    def permissive(self) -> "Chain":
        """The same chain without the transforms that may leave a row without a token."""
        return Chain([t for t in self.processors if not _may_empty_a_row(t)], self.warpers)

    def __call__(self, input_ids: Tensor, logits: Tensor) -> Tensor:
        """Transform rows that share one history length; random transforms toss their coins.

        Args:
            input_ids: long [B, T].
            logits: [B, V].

        Returns:
            float64 [B, V].

        Raises:
            SettingsError: the constraints leave a row no token.
        """
        for transform in self.processors:
            logits = _apply(transform, input_ids, logits)
        self._check(input_ids, logits)
        for transform in self.warpers:
            logits = transform(input_ids, logits)
        return logits.double()

    def expected_probabilities(self, input_ids: Tensor, logits: Tensor) -> Tensor:
        """The distributions behind `__call__`, averaged exactly over the coins.

        Args, Raises: as `__call__`.

        Returns:
            float64 [B, V], rows sum to 1.
        """
        branches = [(1.0, logits)]
        for transform in self.processors:
            branches = _branch(transform, input_ids, branches)
        for _, branch in branches:
            self._check(input_ids, branch)
        for transform in self.warpers:
            branches = _branch(transform, input_ids, branches)
        probs = [weight * branch.double().softmax(-1) for weight, branch in branches]
        return torch.stack(probs).sum(0)

    def _check(self, input_ids: Tensor, logits: Tensor) -> None:
        if self.forbidding:
            require_survivor(logits, input_ids, " with ".join(self.forbidding))


def _may_empty_a_row(transform: Transform) -> TypeGuard[Constraint | Custom]:
    return isinstance(transform, Constraint | Custom) and not transform.history_free


def _apply(transform: Transform, input_ids: Tensor, logits: Tensor) -> Tensor:
    if isinstance(transform, Constraint):
        return transform.apply(input_ids, logits)
    return transform(input_ids, logits)


def _branch(
    transform: Transform, input_ids: Tensor, branches: list[tuple[float, Tensor]]
) -> list[tuple[float, Tensor]]:
    """Follow every branch through one transform, splitting it where the transform is random."""
    if not isinstance(transform, RandomTransform):
        return [(weight, _apply(transform, input_ids, logits)) for weight, logits in branches]
    return [
        (weight * share, outcome)
        for weight, logits in branches
        for share, outcome in transform.outcomes(input_ids, logits)
    ]
