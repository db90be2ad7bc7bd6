"""Running torch code for real, with uniforms that somebody else has chosen."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specverify.errors import CannotSteer
from specverify.exact.steering import grid
from specverify.exact.steering.operation import Operation
from specverify.exact.steering.path import row_numbers
from specverify.exact.steering.source_line import Line, current_line

_UNIFORM = frozenset({"rand", "rand_like", "uniform"})
_COIN_BITS = 53


class Drawn(NamedTuple):
    """One operation that drew uniforms."""

    name: str
    """Of the operation: rand, rand_like, uniform or bernoulli."""
    dtype: torch.dtype
    per_row: int
    """Uniforms each row got."""
    line: Line


@dataclass
class Pins:
    """The uniforms of B independent rows, and what became of them.

    They are numbered within a row in the order in which they are drawn, as `Path` numbers those of
    a steered run.
    """

    integers: Tensor
    """long [B, m]: grid integers; -1 and whatever lies beyond m stands for the middle one."""
    drawn: list[Drawn] = field(default_factory=list)
    refusal: CannotSteer | None = None
    states: dict[bytes, Tensor] = field(default_factory=dict)
    """Generator states that were drawn from, with the integers they gave."""

    def take(self, state: bytes, shape: torch.Size, bits: int) -> Tensor:
        """The next grid integers, long [*shape]; those of `state` again if it was drawn from."""
        rows = len(self.integers)
        row = row_numbers(tuple(shape), rows).reshape(-1)
        per_row = row.numel() // rows
        if bool((torch.bincount(row.clamp(min=0), minlength=rows) != per_row).any()):
            raise CannotSteer("the rows of a batch do not each have randomness of their own")
        start = sum(earlier.per_row for earlier in self.drawn)
        given = self.integers[:, start : start + per_row]
        chosen = torch.full((rows, per_row), 1 << (bits - 1))
        chosen[:, : given.shape[1]] = torch.where(given < 0, chosen[:, : given.shape[1]], given)
        flat = torch.empty(row.numel(), dtype=torch.long)
        flat[row.argsort(stable=True)] = chosen.reshape(-1)
        again = self.states.setdefault(state, flat)[: len(flat)]
        flat[: len(again)] = again
        return flat.reshape(shape)


class PinnedMode(TorchDispatchMode):
    """Fills what `rand`, `rand_like` and `uniform_` return, and decides `bernoulli`, by `Pins`.

    Every operation runs for real, on plain numbers; generators move on as they always do. Other
    draws (multinomial, exponential, integers, normal) keep the values that torch drew.
    """

    def __init__(self, pins: Pins) -> None:
        super().__init__()
        self._pins = pins

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled inside; torch's wrapper against it imports torch._dynamo at the first
        operation, which takes seconds of the subject's time limit.
        """
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        operation = Operation(func, args, kwargs)
        if operation.name not in _UNIFORM and operation.name != "bernoulli":
            return operation.run()
        heads = operation.heads(1 << _COIN_BITS) if operation.name == "bernoulli" else None
        state = operation.generator.get_state().numpy().tobytes()
        result = operation.run()
        if result.numel() == 0:
            return result
        bits = grid.BITS.get(result.dtype, _COIN_BITS) if heads is None else _COIN_BITS
        try:
            integers = self._pins.take(state, result.shape, bits)
        except CannotSteer as error:
            self._pins.refusal = error
            raise
        per_row = result.numel() // len(self._pins.integers)
        self._pins.drawn.append(Drawn(operation.name, result.dtype, per_row, current_line()))
        if heads is not None:
            return result.copy_(integers < heads.expand(result.shape))
        result.copy_(grid.values(integers, result.dtype))
        if operation.name == "uniform":
            low, high = operation.argument("from", default=0.0), operation.argument("to", default=1)
            result.mul_(high - low).add_(low)
        return result


@contextmanager
def pinned(pins: Pins) -> Iterator[None]:
    """Choose the uniforms of everything that torch does inside.

    Raises:
        CannotSteer: a draw gives the rows no randomness of their own; also if the exception was
            caught inside.
    """
    with PinnedMode(pins):
        yield
    if pins.refusal is not None:
        raise pins.refusal
