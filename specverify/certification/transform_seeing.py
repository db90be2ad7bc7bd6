"""Ways to look at a transform: its result, or what must be the same after its calls.

All call a transform with histories long [B, T] and logits [B, V] that belong to nobody else, and
return logits of the same rows.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from specverify.errors import SubjectError
from specverify.subjects.protocols import Transform

Seeing = Callable[[Transform, Tensor, Tensor], Tensor]
"""One such way."""


def result(transform: Transform, ids: Tensor, logits: Tensor) -> Tensor:
    """The logits that come back.

    Raises:
        SubjectError: they have another shape than those handed in, or are no tensor of floats.
    """
    return _of_shape(transform(ids, logits), logits)


def _of_shape(made: object, logits: Tensor) -> Tensor:
    """A result, if it has the shape of the logits.

    Raises:
        SubjectError: it has not, or is no tensor of floats.
    """
    if not isinstance(made, Tensor) or made.shape != logits.shape:
        raise SubjectError("the result has not the shape of the logits handed in")
    if not made.is_floating_point():
        raise SubjectError(f"the result has dtype {made.dtype}")
    return made


def _alone(transform: Transform, ids: Tensor, logits: Tensor) -> Tensor:
    """The same of one row a call."""
    parts = [result(transform, ids[i : i + 1], logits[i : i + 1]) for i in range(len(ids))]
    return torch.cat(parts)


def _kept(transform: Transform, ids: Tensor, logits: Tensor) -> Tensor:
    """What a result is after another call."""
    first = result(transform, ids.clone(), logits.clone())
    result(transform, ids.flip(1, 0), logits.flip(0))
    return first


def _overwritten(transform: Transform, ids: Tensor, logits: Tensor) -> Tensor:
    """What the same call gives once its first result was written to."""
    first = result(transform, ids.clone(), logits.clone())
    if first.is_contiguous() and not first.is_inference():
        first.zero_()
    return result(transform, ids, logits)


def _grown(transform: Transform, ids: Tensor, logits: Tensor) -> Tensor:
    """The result once it was called with the history that was one token shorter."""
    result(transform, ids[:, :-1].clone(), logits.clone())
    return result(transform, ids, logits)


def _handed_logits(transform: Transform, ids: Tensor, logits: Tensor) -> Tensor:
    """What the logits that were handed in are after the call."""
    transform(ids, logits)
    return logits


def _handed_history(transform: Transform, ids: Tensor, logits: Tensor) -> Tensor:
    """What the history is, as a distribution over places and tokens."""
    transform(ids, logits)
    places = torch.nn.functional.one_hot(ids.clamp(0, logits.shape[1]), logits.shape[1] + 1)
    return places.double().flatten(1).log()


CALLS: dict[str, Seeing] = {
    "alone": _alone,
    "kept": _kept,
    "overwritten": _overwritten,
    "grown": _grown,
    "logits handed in": _handed_logits,
    "history handed in": _handed_history,
}
"""What calls may do to what they are handed and to each other, by name."""
