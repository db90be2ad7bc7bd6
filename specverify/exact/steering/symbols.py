"""What a random number is known as before anything depends on it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, TypeAlias

import torch
from torch import Tensor

from specverify.exact.steering import grid

Form: TypeAlias = Literal["neg", "exp", "inv", "log", "gum", "order"]
"""What an element of a race is of a standard exponential E and its weight w: neg -E/w, exp E/w,
inv w/E, log log(E/w), gum log(w/E), order any increasing function of w/E."""

LARGEST_WINS: frozenset[Form] = frozenset({"neg", "inv", "gum", "order"})
SMALLEST_WINS: frozenset[Form] = frozenset({"exp", "log"})


@dataclass(frozen=True)
class Step:
    """An elementwise operation on a uniform; `call(value, operands)`."""

    call: Callable[[Tensor, Sequence[Tensor]], Tensor]
    operands: int
    """How many tensors it takes besides."""


@dataclass(frozen=True)
class Symbol:
    """Random elements of a tensor; `ids` has the tensor's shape, -1 where it holds plain values."""

    ids: Tensor

    def aligned(self) -> list[Tensor]:
        """Every field that has the tensor's shape, `ids` first."""
        return [self.ids]

    def with_aligned(self, fields: Sequence[Tensor]) -> Self:
        """The same symbol with `aligned` replaced."""
        return replace(self, ids=fields[0])

    def map(self, move: Callable[[Tensor], Tensor]) -> Self:
        """Move all elements the same way."""
        return self.with_aligned([move(field) for field in self.aligned()])

    def like(self, other: "Symbol") -> bool:
        """Whether elements of both may lie in one tensor."""
        return type(self) is type(other)


@dataclass(frozen=True)
class Noise(Symbol):
    """A uniform or an exponential, with what was done to it since."""

    dtype: torch.dtype | None = None
    """Of the uniforms; None for exponentials, which have no grid."""
    steps: tuple[Step, ...] = ()
    operands: tuple[Tensor, ...] = ()
    """Of all steps, in order."""
    form: Form | None = None
    log_weight: Tensor | None = None
    """float64, the logarithm of the race's weight w; None without a form."""

    def aligned(self) -> list[Tensor]:
        weight = [] if self.log_weight is None else [self.log_weight]
        return [self.ids, *weight, *self.operands]

    def with_aligned(self, fields: Sequence[Tensor]) -> "Noise":
        ids, *rest = fields
        weight = None if self.log_weight is None else rest.pop(0)
        return replace(self, ids=ids, log_weight=weight, operands=tuple(rest))

    def like(self, other: Symbol) -> bool:
        return isinstance(other, Noise) and (self.dtype, self.steps, self.form) == (
            other.dtype,
            other.steps,
            other.form,
        )

    def value(self, integers: Tensor) -> Tensor:
        """What the elements are when their uniforms are these grid integers."""
        assert self.dtype is not None
        value, taken = grid.values(integers, self.dtype), 0
        for step in self.steps:
            value = step.call(value, self.operands[taken : taken + step.operands])
            taken += step.operands
        return value


@dataclass(frozen=True)
class Pending(Symbol):
    """Drawn tokens that nothing has looked at; ids are those of `draws.Draws`."""


@dataclass(frozen=True)
class Threshold(Symbol):
    """Truth values of one uniform compared with several numbers: `(k >= cut) == above`."""

    cut: Tensor
    """long: first grid integer on the upper side."""
    above: Tensor
    """bool: the value there."""

    def aligned(self) -> list[Tensor]:
        return [self.ids, self.cut, self.above]

    def with_aligned(self, fields: Sequence[Tensor]) -> "Threshold":
        return Threshold(*fields)


@dataclass(frozen=True)
class Counted(Symbol):
    """Running counts of coins of which some were not looked at."""

    floor: Tensor
    """long: the least they can be."""
    origin: tuple[Tensor, int, Tensor]
    """The coins, the dimension along which they are counted, and the counts."""

    def aligned(self) -> list[Tensor]:
        return [self.ids, self.floor]

    def with_aligned(self, fields: Sequence[Tensor]) -> "Counted":
        ids, floor = fields
        return Counted(ids, floor, self.origin)

    def like(self, other: Symbol) -> bool:
        return isinstance(other, Counted) and other.origin is self.origin


@dataclass(frozen=True)
class Opaque(Symbol):
    """Numbers that may be carried around but not used."""


def concrete(ids: Tensor) -> bool:
    """Whether nothing is random."""
    return not bool((ids >= 0).any())
