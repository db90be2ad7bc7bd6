"""Processors of other make."""

from collections.abc import Callable

from torch import Tensor

from specverify.errors import UsageError
from specverify.transforms.base import Transform

Processor = Callable[[Tensor, Tensor], Tensor]
"""Any deterministic function with the call of a Hugging Face `LogitsProcessor`."""


class Custom(Transform):
    """A processor that knows nothing of specverify, held to the contract of `Transform`.

    It is taken to depend on the history, and to forbid tokens.

    Args:
        processor: called with copies of its arguments, which it may change.
    """

    history_free = False

    def __init__(self, processor: Processor) -> None:
        self.processor = processor
        self.name = getattr(processor, "__name__", type(processor).__name__)

    def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
        """Transform a batch of rows.

        Raises:
            UsageError: the processor returned something else than logits of the same shape.
        """
        result = self.processor(input_ids.clone(), logits.double().clone())
        if not isinstance(result, Tensor) or result.shape != logits.shape:
            got = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise UsageError(
                f"processor {self.name} returned {got} for logits of shape "
                f"{list(logits.shape)}; return a tensor of the shape given"
            )
        return result.double()
