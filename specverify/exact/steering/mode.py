"""The mode that sees every operation of a steered run and decides what becomes of it."""

from collections.abc import Container, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specverify.errors import CannotSteer
from specverify.exact.steering.arithmetic import MONOTONE, arithmetic, softmax
from specverify.exact.steering.certainties import QUESTIONS, ask
from specverify.exact.steering.coins_in_order import (
    BOUNDED,
    MASKS,
    NEGATIONS,
    SCANS,
    bound,
    mask,
    negate,
    scan,
)
from specverify.exact.steering.comparisons import COMPARISONS, SEARCHES, compare, reduce, search
from specverify.exact.steering.escapes import watched
from specverify.exact.steering.movement import MOVED, move
from specverify.exact.steering.operation import Operation
from specverify.exact.steering.races import RACES, race
from specverify.exact.steering.source_line import current_line
from specverify.exact.steering.sources import draw
from specverify.exact.steering.steering import Steering
from specverify.exact.steering.symbols import Noise, Symbol

_SHAPES = frozenset(
    [
        "empty_like",
        "zeros_like",
        "ones_like",
        "full_like",
        "new_empty",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty_strided",
        "size",
        "sym_size",
        "stride",
        "sym_stride",
        "numel",
        "sym_numel",
        "dim",
        "is_same_size",
        "_has_compatible_shallow_copy_type",
    ]
)
"""Operations that look at the shape alone."""


class SteeringMode(TorchDispatchMode):
    """Routes operations; those without anything random go through untouched."""

    def __init__(self, steering: Steering) -> None:
        super().__init__()
        self._steering = steering

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled inside; torch's wrapper against it costs as much as the routing."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        steering = self._steering
        kwargs = kwargs or {}
        draws = _draws(func)
        if not draws and not steering.shadows:
            return func(*args, **kwargs)
        if not draws and not self._random((*args, *kwargs.values())):
            # Most operations end here, so it costs as little as can be.
            try:
                return func(*args, **kwargs)
            except Exception as error:
                steering.raised = error
                raise
        operation = Operation(func, args, kwargs)
        try:
            if _is_composite(func):
                with self:
                    return func.decompose(*args, **kwargs)
            if draws:
                return draw(steering, operation)
            return _followed(steering, operation)
        except CannotSteer as error:
            steering.refusal = steering.refusal or error
            raise
        except Exception as error:
            steering.raised = operation.raised
            if operation.raised is None:
                # No exception of the subject's: it must not count as its crash.
                steering.refusal = CannotSteer(
                    f"specverify failed to follow {operation.name} (at {current_line()}): {error!r}"
                )
            raise

    def _random(self, arguments: tuple[Any, ...]) -> bool:
        """Whether something random is among the arguments of an operation."""
        try:
            return self._steering.shadows.among(arguments)
        except CannotSteer as error:
            self._steering.refusal = self._steering.refusal or error
            raise


@cache
def _draws(func: Any) -> bool:
    """Whether an operation draws random numbers."""
    return torch.Tag.nondeterministic_seeded in func.tags


def _followed(steering: Steering, operation: Operation) -> Any:
    """Carry out an operation of which some argument is random."""
    name = operation.name
    if name in _SHAPES or (_is_view(operation) and not operation.in_place):
        return operation.run()
    if name == "resize" and list(operation.args[0].shape) == list(operation.args[1]):
        return operation.args[0]
    if name == "zero":
        steering.shadows.clear(operation.args[0])
        return operation.run()
    if "out" in operation.kwargs:
        return _into(steering, operation)
    symbols = _symbols(steering, operation)
    noisy = {place: s for place, s in symbols.items() if isinstance(s, Noise)}
    if name in MOVED and (name != "_to_copy" or not noisy):
        result = move(steering, operation)
        if result is not NotImplemented:
            return result
    for names, coin_handler in _COINS:
        if name in names and symbols and not noisy:
            result = coin_handler(steering, operation, symbols)
            if result is not NotImplemented:
                return result
    for tensor in list(operation.tensors()):
        symbol = steering.shadows.of(tensor)
        if symbol is not None:
            steering.settle_in(tensor, symbol)
    left = [tensor for tensor in operation.tensors() if steering.shadows.of(tensor) is not None]
    if not left:
        return _plainly(steering, operation)
    if any(all(tensor is not operation.args[place] for place in noisy) for tensor in left):
        raise steering.refuse(f"{name} of random numbers is not followed")
    if name in MOVED and name != "_to_copy":
        result = move(steering, operation)
        if result is not NotImplemented:
            return result
    if len(noisy) == 1:
        for names, handler in _HANDLERS:
            if name in names:
                return handler(steering, operation, noisy)
    raise steering.refuse(f"{name} of random numbers is not followed")


_COINS: tuple[tuple[Container[str], Any], ...] = (
    (NEGATIONS, negate),
    (MASKS, mask),
    (SCANS, scan),
    (BOUNDED, bound),
    (QUESTIONS, ask),
    (frozenset({"sum", "argmax"}), reduce),
)
_HANDLERS: tuple[tuple[frozenset[str], Any], ...] = (
    (MONOTONE, arithmetic),
    (COMPARISONS, compare),
    (SEARCHES, search),
    (RACES, race),
    (frozenset({"_softmax", "_log_softmax"}), softmax),
)


def _plainly(steering: Steering, operation: Operation) -> Any:
    """Carry out an operation on plain values; what it writes is plain from then on."""
    for tensor in operation.tensors():
        if steering.shadows.of(tensor) is not None:
            raise steering.refuse(f"{operation.name} of random numbers is not followed")
    result = operation.run()
    for tensor in operation.written():
        steering.shadows.clear(tensor)
    return result


def _into(steering: Steering, operation: Operation) -> Any:
    """An operation with `out=`: carry it out, then copy."""
    kwargs = {k: v for k, v in operation.kwargs.items() if k != "out"}
    overload = operation.func._overloadname.removesuffix("_out").removesuffix("out").rstrip("_")
    packet = getattr(torch.ops.aten, operation.name)
    func = getattr(packet, overload or "default", None)
    out = operation.kwargs["out"]
    if func is None or not isinstance(out, Tensor):
        raise steering.refuse(f"{operation.name} of random numbers with out=")
    result = _followed(steering, Operation(func, operation.args, kwargs))
    if tuple(out.shape) != tuple(result.shape):
        out.resize_(result.shape)
    copy = Operation(torch.ops.aten.copy_.default, (out, result))
    if steering.shadows.of(result) is None:
        return _plainly(steering, copy)
    return _followed(steering, copy)


def _symbols(steering: Steering, operation: Operation) -> dict[int, Symbol]:
    """Symbols of the positional arguments that are tensors."""
    found = {}
    for place, argument in enumerate(operation.args):
        symbol = steering.shadows.of(argument) if isinstance(argument, Tensor) else None
        if symbol is not None:
            found[place] = symbol
    return found


def _is_composite(func: Any) -> bool:
    """Whether an operation is made of others, into which inference mode does not take it apart."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return func.has_kernel_for_dispatch_key(key)


def _is_view(operation: Operation) -> bool:
    returns = operation.func._schema.returns
    shared = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
    return shared or operation.name == "_unsafe_view"


@contextmanager
def steered(steering: Steering) -> Iterator[None]:
    """Steer everything that torch does inside.

    Raises:
        CannotSteer: something was refused inside, even if the exception was caught there.
    """
    with watched(steering), SteeringMode(steering):
        yield
    steering.generators.check()
    if steering.refusal is not None:
        raise steering.refusal
