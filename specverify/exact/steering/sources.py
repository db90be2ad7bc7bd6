"""The operations that draw: what they fill tensors with is a symbol from then on."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from specverify.exact.steering import grid
from specverify.exact.steering.operation import Operation
from specverify.exact.steering.path import CoupledRandomness, row_numbers
from specverify.exact.steering.source_line import Line, current_line
from specverify.exact.steering.steering import Steering
from specverify.exact.steering.symbols import Noise, Opaque, Pending, Step, Symbol

_LARGEST_RANGE = 1 << 16
_COIN = 1 << 53


def draw(steering: Steering, operation: Operation) -> Any:
    """Carry out an operation that draws.

    It is really carried out first, so that generators move on and bad arguments raise what they
    always raise; then its result is replaced.
    """
    line = current_line()
    for tensor in operation.tensors():
        symbol = steering.shadows.of(tensor)
        if symbol is not None and not steering.settle(symbol) and not operation.in_place:
            raise steering.refuse(f"{operation.name} of random numbers")
        if operation.in_place:
            steering.shadows.clear(tensor)
    state = _note_generator(steering, operation, line)
    if operation.name == "multinomial":
        return _multinomial(steering, operation, line, state)
    result = operation.run()
    if result.numel() == 0:
        return result
    earlier = _repeated(steering, state, line)
    symbol = _KINDS.get(operation.name, _opaque)(steering, operation, result, line, earlier)
    if symbol is not None:
        steering.shadows.set(result, symbol)
        if isinstance(symbol, Noise) and symbol.dtype is not None and not symbol.steps:
            steering.states.setdefault(state, (line, symbol))
    steering.states.setdefault(state, (line, None))
    return result


def _note_generator(steering: Steering, operation: Operation, line: Line) -> int:
    generator = operation.kwargs.get("generator")
    if generator is None:
        generator = next((a for a in operation.args if isinstance(a, Generator)), None)
    if generator is None:
        steering.global_draws[line] = None
        generator = torch.default_generator
    return hash(generator.get_state().numpy().tobytes())


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
        if earlier.dtype != dtype:
            raise CoupledRandomness(f"{line} draws from a generator state that was drawn from")
        again = earlier.ids.reshape(-1)[: ids.numel()]
        ids = torch.cat([again, ids.reshape(-1)[len(again) :]]).reshape(ids.shape)
    result.fill_(0.5)
    noise = Noise(ids, dtype=dtype)
    low, high = operation.argument("from", default=0.0), operation.argument("to", default=1.0)
    if operation.name != "uniform" or (low, high) == (0.0, 1.0):
        return noise
    result.mul_(high - low).add_(low)
    return Noise(ids, dtype, (Step(lambda u, _: u * (high - low) + low, 0),))


def _exponential(
    steering: Steering, operation: Operation, result: Tensor, line: Line, earlier: Noise | None
) -> Symbol:
    _refuse_repeat(earlier, line)
    rate = float(operation.argument("lambd", default=1.0))
    result.fill_(1.0)
    weight = torch.full(result.shape, rate, dtype=torch.float64).log()
    return Noise(steering.path.exponentials(result.shape, line), form="exp", log_weight=weight)


def _bernoulli(
    steering: Steering, operation: Operation, result: Tensor, line: Line, earlier: Noise | None
) -> None:
    """Coins that are decided at once."""
    given = operation.argument("p", default=0.5) if operation.in_place else operation.argument("p")
    given = operation.args[0] if given is None else given
    ids = steering.path.uniforms(result.shape, _COIN, line)
    if earlier is not None:
        _refuse_repeat(earlier, line)
    cut = (torch.as_tensor(given).double() * _COIN).round().long().expand(result.shape).reshape(-1)
    heads = steering.path.decide(
        ids.reshape(-1), cut, torch.zeros_like(cut, dtype=torch.bool), line
    )
    result.copy_(heads.reshape(result.shape))


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
    good = (rows.isfinite() & (rows >= 0)).all(-1) & (rows.sum(-1) > 0)
    possible = (steering.path.probability > 0)[row.clamp(min=0)]
    if bool((~good & possible).any()) or bool(good.all()):
        result = operation.run()
    else:
        result = torch.zeros((*weights.shape[:-1], count), dtype=torch.long)
    if result.numel() == 0:
        return result
    _refuse_repeat(_repeated(steering, state, line), line)
    steering.states[state] = (line, None)
    first = torch.zeros(rows.shape[-1], dtype=torch.float64)
    first[0] = 1.0
    left = torch.where(good.unsqueeze(-1), rows.double(), first)
    values = torch.arange(rows.shape[-1])
    columns: list[Tensor] = []
    for _ in range(count):
        if columns and not operation.argument("replacement", default=False):
            steering.draws.take(columns[-1])
            left = left.scatter(1, steering.draws.known(columns[-1]).unsqueeze(1), 0.0)
        columns.append(steering.draws.add(left / left.sum(-1, keepdim=True), values, row, line))
    pending = torch.stack(columns, -1).reshape(result.shape)
    steering.shadows.set(result, Pending(pending))
    steering.draws.refresh(pending)
    return result


def _refuse_repeat(earlier: Noise | None, line: Line) -> None:
    if earlier is not None:
        raise CoupledRandomness(f"{line} draws from a generator state that was drawn from before")


_Kind = Callable[[Steering, Operation, Tensor, Line, Noise | None], Symbol | None]
_KINDS: dict[str, _Kind] = {
    "rand": _uniform,
    "rand_like": _uniform,
    "uniform": _uniform,
    "exponential": _exponential,
    "bernoulli": _bernoulli,
    "randint": _integers,
    "randint_like": _integers,
    "random": _integers,
}
