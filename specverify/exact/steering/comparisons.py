"""Comparisons of uniforms with numbers, and draws by inverting a cumulative distribution."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from specverify.exact.steering.operation import Operation, replaced
from specverify.exact.steering.source_line import current_line
from specverify.exact.steering.steering import Steering
from specverify.exact.steering.symbols import Noise, Pending, Symbol, Threshold

COMPARISONS = frozenset({"lt", "le", "gt", "ge"})
SEARCHES = frozenset({"searchsorted", "bucketize"})
_NEARBY = 4
"""Grid integers on either side of a guess; a wrong one costs a full bisection."""


def compare(steering: Steering, operation: Operation, symbols: dict[int, Symbol]) -> Tensor:
    """Compare noise with numbers.

    Every operation recorded in a symbol is monotone, so the truth value changes at most once along
    the grid; where, is found by bisection with the recorded operations themselves, roundings
    included. One uniform compared with several numbers stays open, since it may be a draw.
    """
    ((place, noise),) = symbols.items()
    if not isinstance(noise, Noise) or noise.dtype is None:
        raise steering.refuse(f"{operation.name} of random numbers that have no grid")

    def test(value: Tensor) -> Tensor:
        return operation.func(*replaced(operation.args, place, value))

    result = operation.run()
    threshold = _threshold(steering, noise, test, result, _other_of(operation, place))
    if threshold is None:
        return result
    steering.shadows.set(result, threshold)
    return result


def search(steering: Steering, operation: Operation, symbols: dict[int, Symbol]) -> Tensor:
    """Look uniforms up in sorted numbers: a draw by thresholds."""
    place = 1 if operation.name == "searchsorted" else 0
    noise = symbols.pop(place, None)
    unsupported = symbols or any(
        operation.argument(name) is not None for name in ("side", "sorter")
    )
    if unsupported or not isinstance(noise, Noise) or noise.dtype is None:
        raise steering.refuse(f"{operation.name} of random numbers")
    boundaries, values = operation.args[1 - place], operation.args[place]
    right = operation.argument("right", default=False)
    below = torch.le if right else torch.lt
    result = operation.run()
    count = boundaries.shape[-1]
    shape = (*values.shape, count)
    numbers = (boundaries if boundaries.dim() == 1 else boundaries.unsqueeze(-2)).expand(shape)
    spread = noise.map(lambda field: field.unsqueeze(-1).expand(shape))
    truth = below(numbers, values.unsqueeze(-1))
    threshold = _threshold(steering, spread, lambda value: below(numbers, value), truth, numbers)
    result.copy_(truth.sum(-1))  # where every number lies on one side
    if threshold is not None:
        _draw(steering, truth, threshold, "sum", result)
    return result


def reduce(steering: Steering, operation: Operation, symbols: dict[int, Symbol]) -> Any:
    """Count truth values of one uniform, or find the first: a draw by thresholds."""
    threshold = symbols[0]
    tensor = operation.args[0]
    dims = operation.argument("dim")
    dim = dims[0] if isinstance(dims, (list, tuple)) and len(dims) == 1 else dims
    if dim is None and tensor.dim() == 1:
        dim = 0
    if not isinstance(threshold, Threshold) or not isinstance(dim, int):
        return NotImplemented
    moved = threshold.map(lambda field: field.movedim(dim, -1))
    group = moved.ids.amax(-1, keepdim=True)
    if bool(((moved.ids != group) & (moved.ids >= 0)).any()):
        return NotImplemented
    sides = moved.ids < 0
    if bool(((moved.above != moved.above.logical_or(sides).all(-1, keepdim=True)) & ~sides).any()):
        return NotImplemented
    result = operation.run()
    keepdim = bool(operation.argument("keepdim", default=False))
    _draw(
        steering,
        tensor.movedim(dim, -1).bool(),
        moved,
        operation.name,
        result.squeeze(dim) if keepdim else result,
    )
    return result


def _draw(
    steering: Steering, truth: Tensor, threshold: Threshold, name: str, result: Tensor
) -> None:
    """Attach draws to `result` [...], from truth values [..., n] of one uniform each."""
    count = truth.shape[-1]
    random = (threshold.ids >= 0).any(-1)
    ids, cut = threshold.ids[random], threshold.cut[random]
    element = ids.amax(-1)
    steering.draws.settle(element)
    low, high = (bound.unsqueeze(-1) for bound in steering.path.bounds(element))
    above = (threshold.above[random] & (ids >= 0)).any(-1, keepdim=True)
    fixed = torch.where(truth[random] == above, low, high)
    cut = torch.where(ids >= 0, torch.minimum(torch.maximum(cut, low), high), fixed)
    edges, values = (_counted if name == "sum" else _first)(cut, low, high, above, count)
    probabilities = edges.diff(dim=-1).double() / (high - low)
    row = steering.path.row(element)
    draws = steering.draws.add(
        probabilities, values, row, current_line(), element.unsqueeze(-1), edges
    )
    pending = torch.full(result.shape, -1)
    pending[random] = draws
    steering.shadows.set(result, Pending(pending))


def _counted(
    cut: Tensor, low: Tensor, high: Tensor, above: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """How many of the truth values hold, by piece of the grid."""
    edges = torch.cat([low, cut.sort(-1).values, high], -1)
    pieces = torch.arange(count + 1)
    return edges, torch.where(above, pieces, count - pieces)


def _first(
    cut: Tensor, low: Tensor, high: Tensor, above: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """The first truth value that holds, 0 if none does, by piece of the grid."""
    index = torch.arange(count + 1)
    rising = torch.cat([low, cut.cummax(-1).values, high], -1)
    falling = torch.cat([low, cut.cummin(-1).values.flip(-1), high], -1)
    edges = torch.where(above, falling, rising)
    return edges, torch.where(above, (count - index) % count, index % count)


def _threshold(
    steering: Steering,
    noise: Noise,
    test: Callable[[Tensor], Tensor],
    result: Tensor,
    numbers: Any,
) -> Threshold | None:
    """Where a truth value changes; constant ones are put into `result` at once."""
    noise = noise.map(lambda field: field.expand(result.shape))
    random = noise.ids >= 0
    ids = noise.ids.clamp(min=0)
    if steering.draws.waiting:
        steering.draws.settle(noise.ids[random].unique())
    low, high = steering.path.bounds(ids)

    def at(integers: Tensor) -> Tensor:
        return test(noise.value(integers))

    before, after = at(low), at(high - 1)
    result.copy_(torch.where(random, after, result))
    open_ = random & (before != after)
    if not bool(open_.any()):
        return None
    left, right = _bracket(noise, low, high - 1, at, before, after, numbers)
    while bool(((right - left > 1) & open_).any()):
        middle = (left + right) // 2
        same = at(middle) == before
        left, right = torch.where(same, middle, left), torch.where(same, right, middle)
    if steering.path.rows == 1:
        return Threshold(torch.where(open_, noise.ids, -1), right, after)
    # What is certain in one row is a decision in another, and rows decide in step.
    above = torch.where(open_, after, after[open_][0])
    certain = torch.where(after == above, low, high)
    return Threshold(noise.ids, torch.where(open_, right, certain), above)


def _bracket(
    noise: Noise,
    first: Tensor,
    last: Tensor,
    at: Callable[[Tensor], Tensor],
    before: Tensor,
    after: Tensor,
    numbers: Any,
) -> tuple[Tensor, Tensor]:
    """Integers around the change, guessed by a straight line and checked."""
    start, end = noise.value(first).double(), noise.value(last).double()
    share = ((torch.as_tensor(numbers).double() - start) / (end - start)).nan_to_num(0.5)
    guess = first + (share.clamp(0, 1) * (last - first)).long()
    left = torch.maximum(first, guess - _NEARBY)
    right = torch.minimum(last, guess + _NEARBY)
    good = (at(left) == before) & (at(right) == after)
    return torch.where(good, left, first), torch.where(good, right, last)


def _other_of(operation: Operation, place: int) -> Any:
    return operation.args[1 - place]
