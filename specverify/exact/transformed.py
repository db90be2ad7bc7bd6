"""Raw logits and a processor, as the next-token distributions that they define together."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from specverify.errors import UsageError
from specverify.exact.conditional import Conditional

Logits: TypeAlias = Callable[[NDArray[np.int64]], ArrayLike]
"""Prefixes int64 [N, t] (without the prompt) to raw logits [N, V]; -inf where impossible."""

Processor = Callable[[Tensor, Tensor], Tensor]
"""Histories long [N, T] and logits float64 [N, V] to logits [N, V], as a Hugging Face
`LogitsProcessor` is called."""


def transformed(logits: Logits, transform: Processor, prompt: Sequence[int] = ()) -> Conditional:
    """What sampling from processed logits draws, each row given its own history.

    A `Round` or a `PrefixTree` takes the result as a target or a draft. A transform that tosses
    coins and has an `outcomes` method, which returns pairs of a weight and logits (as
    `specverify.transforms.RandomTransform` has it), is averaged over its coins; no coin is tossed.

    Args:
        logits: of the model, before any transform.
        transform: called with all prefixes of one length at once, with copies of its arguments.
            A list of transformers' processors is called in their order.
        prompt: stands before every prefix in the histories.

    Returns:
        Conditional: int64 [N, t] to float64 [N, V]; masked tokens have probability exactly 0. It
        raises `UsageError` where `transform` returns another shape, NaN, or leaves no token, which
        a `Round` meets after impossible prefixes too.

    Example:
        >>> from specverify.transforms import TopK
        >>> conditional = transformed(lambda x: np.log([[0.5, 0.3, 0.2]] * len(x)), TopK(1))
        >>> np.asarray(conditional(np.zeros((1, 0), np.int64))).tolist()
        [[1.0, 0.0, 0.0]]
    """
    head = torch.tensor(list(prompt), dtype=torch.long)

    def conditional(prefixes: NDArray[np.int64]) -> NDArray[np.float64]:
        histories = torch.cat([head.expand(len(prefixes), -1), torch.as_tensor(prefixes)], 1)
        raw = torch.from_numpy(np.array(logits(prefixes), np.float64))
        probs = torch.zeros_like(raw)
        for weight, result in _outcomes(transform, histories, raw):
            _check(result, raw, histories)
            probs += weight * result.double().softmax(1)
        return probs.numpy()

    return conditional


def _outcomes(
    transform: Processor, histories: Tensor, raw: Tensor
) -> Iterator[tuple[float, Tensor]]:
    outcomes = getattr(transform, "outcomes", None)
    if outcomes is None:
        yield 1.0, transform(histories.clone(), raw.clone())
    else:
        yield from outcomes(histories.clone(), raw.clone())


def _check(result: object, raw: Tensor, histories: Tensor) -> None:
    if not isinstance(result, Tensor) or result.shape != raw.shape:
        got = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise UsageError(
            f"the transform returned {got} for logits of shape {list(raw.shape)}; it must return "
            "a tensor of the shape given"
        )
    largest = result.amax(1) if result.shape[1] else raw.new_full((len(raw),), -torch.inf)
    lost = ~largest.isfinite()
    if bool(lost.any()):
        row = int(lost.nonzero()[0])
        raise UsageError(
            f"the transform leaves no distribution after the history {histories[row].tolist()}: "
            f"its largest logit there is {float(largest[row])}; relax the transform, or use a "
            "larger vocabulary"
        )
