"""The operations that draw: what they fill tensors with is a symbol from then on."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from specverify.errors import CoupledRandomness
from specverify.exact.steering import grid
from specverify.exact.steering.operation import Operation
from specverify.exact.steering.path import row_numbers
from specverify.exact.steering.source_line import Line, current_line
from specverify.exact.steering.steering import Steering
from specverify.exact.steering.symbols import Noise, Opaque, Pending, Step, Symbol

_LARGEST_RANGE = 1 << 16
_COIN = 1 << 53
_LARGE = 1 << 20
"""Weights beyond which `multinomial` is not really carried out."""
_WIDE = (torch.float32, torch.float64)


def draw(steering: Steering, operation: Operation) -> Any:
    """Carry out an operation that draws.

    It is really carried out first, so that generators move on and bad arguments raise what they
    always raise. What it drew stays in the tensors: if it should leak in spite of everything, it
    differs from run to run, and is noticed.
    """
    line = current_line()
    written = {id(tensor) for tensor in operation.written()}
    for tensor in operation.tensors():
        symbol = steering.shadows.of(tensor) if id(tensor) not in written else None
        if symbol is not None and not steering.settle_in(tensor, symbol):
            raise steering.refuse(f"{operation.name} of random numbers")
    generator = operation.generator
    before = steering.generators.state(generator)
    if operation.name == "multinomial":
        try:
            return _multinomial(
                steering, operation, line, _noted(steering, operation, before, line)
            )
        finally:
            steering.generators.moved(generator)
    heads = operation.heads(_COIN) if operation.name == "bernoulli" else None
    result = operation.run()
    for tensor in operation.written():
        steering.shadows.clear(tensor)
    steering.generators.moved(generator)
    if steering.generators.state(generator) == before:
        return result  # such as attention, which draws for its dropout only
    if not isinstance(result, Tensor):
        for tensor in result:
            steering.shadows.set(tensor, Opaque(torch.zeros(tensor.shape, dtype=torch.long)))
        return result
    state = _noted(steering, operation, before, line)
    earlier = _repeated(steering, state, line)
    if heads is not None:
        steering.states.setdefault(state, (line, None))
        return _bernoulli(steering, heads, result, line, earlier)
    symbol = _KINDS.get(operation.name, _opaque)(steering, operation, result, line, earlier)
    steering.shadows.set(result, symbol)
    again = symbol if isinstance(symbol, Noise) and symbol.dtype and not symbol.steps else None
    steering.states.setdefault(state, (line, again))
    return result


def _noted(steering: Steering, operation: Operation, state: bytes, line: Line) -> int:
    """Note where the global generator is drawn from; a digest of the state."""
    if operation.generator is torch.default_generator:
        steering.global_draws[line] = None
    return hash(state)


def _repeated(steering: Steering, state: int, line: Line) -> Noise | None:
    """The uniforms that were drawn from this very state of a generator before, if any were.

    Raises:
        CoupledRandomness: something else was.
    """
    if state not in steering.states:
        return None
    before, noise = steering.states[state]
    steering.repeated[(before, line)] = None
    if noise is None:
        raise CoupledRandomness(f"{before} and {line} draw from the same generator state")
    return noise


def _uniform(
    steering: Steering, operation: Operation, result: Tensor, line: Line, earlier: Noise | None
) -> Symbol:
    dtype = result.dtype
    if dtype not in grid.BITS:
        raise steering.refuse(f"uniform numbers of {dtype}")
    ids = steering.path.uniforms(result.shape, 1 << grid.BITS[dtype], line)
    if earlier is not None:
        if earlier.dtype != dtype or earlier.ids.numel() != ids.numel():
            raise CoupledRandomness(
                f"{line} draws from a generator state that something else was drawn from before"
            )
        ids = earlier.ids.reshape(ids.shape)
    noise = Noise(ids, dtype=dtype)
    low, high = operation.argument("from", default=0.0), operation.argument("to", default=1.0)
    if operation.name != "uniform" or (low, high) == (0.0, 1.0):
        return noise
    if dtype not in _WIDE:
        raise steering.refuse(f"uniform numbers of {dtype} between {low} and {high}")
    return Noise(ids, dtype, (Step(lambda u, _: u * (high - low) + low, 0),))


def _exponential(
    steering: Steering, operation: Operation, result: Tensor, line: Line, earlier: Noise | None
) -> Symbol:
    _refuse_repeat(earlier, line)
    if result.dtype not in _WIDE:
        return _opaque(steering, operation, result, line, earlier)
    rate = float(operation.argument("lambd", default=1.0))
    weight = torch.full(result.shape, rate, dtype=torch.float64).log()
    return Noise(steering.path.exponentials(result.shape, line), form="exp", log_weight=weight)


def _bernoulli(
    steering: Steering, heads: Tensor, result: Tensor, line: Line, earlier: Noise | None
) -> Tensor:
    """Coins that are decided at once."""
    _refuse_repeat(earlier, line)
    ids = steering.path.uniforms(result.shape, _COIN, line).reshape(-1)
    cut = heads.expand(result.shape).reshape(-1)
    decided = steering.path.decide(ids, cut, torch.zeros_like(cut, dtype=torch.bool), line)
    return result.copy_(decided.reshape(result.shape))


def _integers(
    steering: Steering, operation: Operation, result: Tensor, line: Line, earlier: Noise | None
) -> Symbol:
    _refuse_repeat(earlier, line)
    low = operation.argument("low", default=operation.argument("from", default=0))
    high = operation.argument("high", default=operation.argument("to"))
    if high is None or high - low > _LARGEST_RANGE:
        return _opaque(steering, operation, result, line, earlier)
    probabilities = torch.full((result.numel(), high - low), 1 / (high - low), dtype=torch.float64)
    row = row_numbers(tuple(result.shape), steering.path.rows).reshape(-1)
    draws = steering.draws.add(probabilities, torch.arange(low, high), row, line)
    return Pending(draws.reshape(result.shape))


def _opaque(
    steering: Steering, operation: Operation, result: Tensor, line: Line, earlier: Noise | None
) -> Symbol:
    """Numbers of a kind that is not followed: harmless until something uses them."""
    return Opaque(torch.zeros(result.shape, dtype=torch.long))


def _multinomial(steering: Steering, operation: Operation, line: Line, state: int) -> Tensor:
    weights, count = operation.args[0], operation.argument("num_samples")
    rows = weights.reshape(-1, weights.shape[-1])
    row = row_numbers((len(rows),), steering.path.rows)
    smallest, largest = rows.aminmax(dim=-1)  # NaN where any is
    good = (smallest >= 0) & (largest < torch.inf) & (rows.sum(-1) > 0)
    possible = (steering.path.probability > 0)[row.clamp(min=0)]
    shape = (*weights.shape[:-1], count)
    if bool(good.all()) and count == 1 and rows.numel() > _LARGE:
        # The draw itself would take longer than the rest of the run; anything random does.
        source = operation.generator
        result = torch.randint(rows.shape[-1], shape, generator=source)
    elif bool((~good & possible).any()) or bool(good.all()):
        result = operation.run()
    else:
        result = torch.zeros(shape, dtype=torch.long)
    if result.numel() == 0:
        return result
    _refuse_repeat(_repeated(steering, state, line), line)
    steering.states[state] = (line, None)
    left = rows.double()
    if not bool(good.all()):
        first = torch.zeros(rows.shape[-1], dtype=torch.float64)
        first[0] = 1.0
        left = torch.where(good.unsqueeze(-1), left, first)
    values = torch.arange(rows.shape[-1])
    columns: list[Tensor] = []
    for _ in range(count):
        if columns and not operation.argument("replacement", default=False):
            steering.draws.take(columns[-1])
            left = left.scatter(1, steering.draws.known(columns[-1]).unsqueeze(1), 0.0)
            if bool((left.sum(-1) <= 0).any()):
                raise steering.refuse("multinomial of more tokens than have a positive weight")
        columns.append(steering.draws.add(left / left.sum(-1, keepdim=True), values, row, line))
    pending = torch.stack(columns, -1).reshape(result.shape)
    steering.shadows.set(result, Pending(pending))
    steering.draws.refresh(pending)
    return result


def _refuse_repeat(earlier: Noise | None, line: Line) -> None:
    if earlier is not None:
        raise CoupledRandomness(f"{line} draws from a generator state that was drawn from before")


_Kind = Callable[[Steering, Operation, Tensor, Line, Noise | None], Symbol]
_KINDS: dict[str, _Kind] = {
    "rand": _uniform,
    "rand_like": _uniform,
    "uniform": _uniform,
    "exponential": _exponential,
    "randint": _integers,
    "randint_like": _integers,
    "random": _integers,
}
