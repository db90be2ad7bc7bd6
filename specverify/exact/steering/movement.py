"""Operations that carry elements around without computing: their symbols are carried along.

Views need none of this; they share their base's storage, by which symbols are kept.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from specverify.exact.steering.arithmetic import arithmetic
from specverify.exact.steering.operation import Operation
from specverify.exact.steering.steering import Steering
from specverify.exact.steering.symbols import Counted, Noise, Pending, Symbol

MOVED: Mapping[str, tuple[int, ...]] = {
    "clone": (0,),
    "repeat": (0,),
    "flip": (0,),
    "roll": (0,),
    "cat": (0,),
    "stack": (0,),
    "index": (0,),
    "index_select": (0,),
    "gather": (0,),
    "masked_select": (0,),
    "where": (1, 2),
    "masked_fill": (0, 2),
    "scatter": (0, 3),
    "index_put": (0, 2),
    "index_copy": (0, 3),
    "index_fill": (0, 3),
    "select_scatter": (0, 1),
    "slice_scatter": (0, 1),
    "constant_pad_nd": (0, 2),
    "copy": (0, 1),
    "fill": (0, 1),
    "repeat_interleave": (0,),
    "_to_copy": (0,),
}
"""Positions of the arguments that hold elements; the others say where they go."""


_TOKENS = (torch.int64, torch.int32, torch.float32, torch.float64)


def move(steering: Steering, operation: Operation) -> Any:
    """Carry elements, and their symbols with them.

    Returns:
        The result, or NotImplemented if an argument that says where they go is random itself.
    """
    places = MOVED[operation.name]
    found = _symbols(steering, operation, places)
    if found is None or not found or _combines(operation):
        return NotImplemented
    first = next(iter(found.values()))
    if isinstance(first, Counted) or (isinstance(first, Pending) and _narrows(operation)):
        return NotImplemented
    if any(not first.like(other) for other in found.values()):
        return NotImplemented
    if operation.name == "copy" and isinstance(first, Noise):
        target, source = operation.args[:2]
        if id(source) in found and source.dtype != target.dtype:
            cast = Operation(torch.ops.aten._to_copy.default, (source,), {"dtype": target.dtype})
            source = arithmetic(steering, cast, {0: found[id(source)]})
            found = {id(source): steering.shadows.of(source) or first}
            operation = Operation(operation.func, (target, source, *operation.args[2:]))
            first = found[id(source)]
    keywords = {k: v for k, v in operation.kwargs.items() if k not in ("dtype", "layout", "device")}
    if operation.name == "constant_pad_nd" and len(operation.args) == 2:
        operation = Operation(operation.func, (*operation.args, 0))
    result = operation.run()
    if isinstance(first, Noise) and any(
        tensor.dtype != result.dtype for tensor in operation.tensors() if id(tensor) in found
    ):
        raise steering.refuse(f"{operation.name} of random numbers into another dtype")
    moved = []
    for index in range(len(first.aligned())):
        arguments = [
            _field(argument, found, first, index) if place in places else argument
            for place, argument in enumerate(operation.args)
        ]
        if operation.name == "_to_copy":
            moved.append(arguments[0].clone())
        else:
            moved.append(operation.func(*arguments, **keywords))
    symbol = first.with_aligned(moved)
    if bool((symbol.ids >= 0).any()) or operation.in_place:
        steering.shadows.set(result, symbol)
    return result


def _narrows(operation: Operation) -> bool:
    """Whether drawn tokens are converted to a dtype that cannot hold all of them."""
    into = operation.kwargs.get("dtype") or (
        operation.args[0].dtype if operation.in_place else None
    )
    return into is not None and into not in _TOKENS


def _combines(operation: Operation) -> bool:
    """Whether it computes with elements after all, or takes them as places."""
    return (
        bool(operation.argument("accumulate", default=False))
        or operation.argument("reduce") is not None
        or (operation.name == "repeat_interleave" and operation.func._overloadname == "Tensor")
    )


def _symbols(
    steering: Steering, operation: Operation, places: tuple[int, ...]
) -> dict[int, Symbol] | None:
    """Symbols of the elements by tensor; None if anything else is random."""
    found: dict[int, Symbol] = {}
    carried = []
    for place in places:
        argument = operation.args[place] if place < len(operation.args) else None
        carried += argument if isinstance(argument, (list, tuple)) else [argument]
    tensors = [tensor for tensor in carried if isinstance(tensor, Tensor)]
    for tensor in tensors:
        symbol = steering.shadows.of(tensor)
        if symbol is not None:
            found[id(tensor)] = symbol
    known = {id(tensor) for tensor in tensors}
    for tensor in operation.tensors():
        if id(tensor) not in known and steering.shadows.of(tensor) is not None:
            return None
    return found


def _field(argument: Any, found: Mapping[int, Symbol], first: Symbol, index: int) -> Any:
    """An argument with its elements replaced by one field of their symbols."""
    template = first.aligned()[index]
    nothing = -1 if index == 0 else 0
    if isinstance(argument, (list, tuple)):
        return [_field(entry, found, first, index) for entry in argument]
    if not isinstance(argument, Tensor):
        return bool(nothing) if template.dtype == torch.bool else nothing
    symbol = found.get(id(argument))
    if symbol is None:
        return torch.full(argument.shape, nothing, dtype=template.dtype)
    return symbol.aligned()[index].clone()
