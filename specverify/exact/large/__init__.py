"""Batched rules at a real vocabulary: one position of a block exactly, over all its draft tokens.

`check_position` takes a `DraftedPosition` and returns a `PositionResult`; nothing it holds grows
with the square of the vocabulary.
"""

from specverify.exact.large.check import check_position
from specverify.exact.large.position import DraftedPosition
from specverify.exact.large.result import PositionResult

__all__ = ["DraftedPosition", "PositionResult", "check_position"]
