"""One path through the decisions of a run, with its exact probability."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specverify.errors import CannotSteer, CoupledRandomness
from specverify.exact.steering.source_line import Line

Policy = Callable[[int, Tensor, Tensor], Tensor]
"""Index of a decision, the probabilities of its outcomes [n, B] and that of the path so far [B], to
the outcome of each row [B]."""


_MOST_FORKS = 1 << 10
EXPONENTIALS = 1 << 40
"""Ids of uniforms lie below, those of exponentials, which have no grid, from here on."""


@dataclass(frozen=True)
class Fork:
    """A decision that was taken."""

    probabilities: Tensor
    """float64 [n, B], given what was decided before."""
    chosen: Tensor
    """long [B]."""
    before: Tensor
    """float64 [B]: probability of the path up to it."""


@dataclass
class Path:
    """The decisions of a run on B independent rows.

    All rows take their decisions in the same order; each has its own probabilities. A whole program
    is one row.
    """

    rows: int
    policy: Policy
    forks: list[Fork] = field(default_factory=list)
    reused: dict[tuple[Line, Line], None] = field(default_factory=dict)
    """Lines that draw a uniform and decide by it although it was decided by before."""

    def __post_init__(self) -> None:
        self.probability = torch.ones(self.rows, dtype=torch.float64)
        self._low = self._high = self._span = torch.zeros(0, dtype=torch.long)
        self._cut = self._low  # of the last decision by each uniform, -1 if there is none
        self._upper = torch.zeros(0, dtype=torch.bool)
        self._sides = (_Elements(), _Elements())

    def uniforms(self, shape: Sequence[int], span: int, line: Line) -> Tensor:
        """Ids, long [*shape], of new uniforms, each of which may be `span` grid integers.

        `line` is the line of the subject that draws them.
        """
        side = self._sides[0]
        first = side.add(row_numbers(tuple(shape), self.rows), line)
        size = side.size - first
        self._low = torch.cat([self._low, torch.zeros(size, dtype=torch.long)])
        self._high = torch.cat([self._high, torch.full((size,), span)])
        self._span = torch.cat([self._span, torch.full((size,), span)])
        self._cut = torch.cat([self._cut, torch.full((size,), -1)])
        self._upper = torch.cat([self._upper, torch.zeros(size, dtype=torch.bool)])
        return torch.arange(first, side.size).reshape(tuple(shape))

    def exponentials(self, shape: Sequence[int], line: Line) -> Tensor:
        """The same for exponentials."""
        side = self._sides[1]
        first = side.add(row_numbers(tuple(shape), self.rows), line)
        return torch.arange(first, side.size).reshape(tuple(shape)) + EXPONENTIALS

    def row(self, ids: Tensor) -> Tensor:
        """The row each element belongs to, long, -1 if it belongs to none."""
        side, index = self._locate(ids)
        return side.row[index].long()

    def line_of(self, element: int) -> Line:
        """The line that drew an element."""
        side, index = self._locate(torch.tensor(element))
        return next(line for first, line in reversed(side.lines) if first <= int(index))

    def claim(self, ids: Tensor, line: Line) -> None:
        """Note that a race among these elements decides something.

        Raises:
            CoupledRandomness: one of them has decided something before.
        """
        side, index = self._locate(ids)
        again = ids[side.claimed[index]].reshape(-1)
        if ids.numel() and not bool(ids.min() >= EXPONENTIALS):
            low, high = self.bounds(ids)
            again = torch.cat([again, ids[high - low < self._span[ids]].reshape(-1)])
        if len(again):
            raise CoupledRandomness(
                f"noise drawn at {self.line_of(int(again[0]))} decides twice, the second time at "
                f"{line}"
            )
        side.claimed[index] = True

    def _locate(self, ids: Tensor) -> tuple["_Elements", Tensor]:
        uniform = ids.numel() == 0 or bool(ids.reshape(-1)[0] < EXPONENTIALS)
        return (self._sides[0], ids) if uniform else (self._sides[1], ids - EXPONENTIALS)

    def bounds(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The grid integers that are still possible, from low up to and without high."""
        return self._low[ids], self._high[ids]

    def narrow(self, ids: Tensor, low: Tensor, high: Tensor, line: Line) -> None:
        """Note that a decision left these integers; empty ranges are left alone."""
        if bool(self._sides[0].claimed[ids].any()):
            raise CoupledRandomness(
                f"noise drawn at {self.line_of(int(ids[0]))} decides a race and, at {line}, a "
                "comparison"
            )
        used = self._high[ids] - self._low[ids] < self._span[ids]
        for element in ids[used].tolist()[:1]:
            self.reused[(self.line_of(element), line)] = None
        some = high > low
        self._low[ids] = torch.where(some, low, self._low[ids])
        self._high[ids] = torch.where(some, high, self._high[ids])

    def fork(self, probabilities: Tensor) -> Tensor:
        """Take one of n outcomes in every row.

        Args:
            probabilities: float64 [n, B], each column summing to 1.

        Returns:
            long [B], the outcome of each row.
        """
        if len(self.forks) >= _MOST_FORKS:
            raise CannotSteer(
                f"one run takes more than {_MOST_FORKS:,} decisions, such as a loop that draws "
                "until something is accepted"
            )
        chosen = self.policy(len(self.forks), probabilities, self.probability)
        self.forks.append(Fork(probabilities, chosen, self.probability))
        taken = probabilities.gather(0, chosen[None])[0]
        self.probability = self.probability * taken
        return chosen

    def decide(self, ids: Tensor, cut: Tensor, above: Tensor, line: Line) -> Tensor:
        """Compare uniforms with numbers.

        Args:
            ids: [n], in the order in which they are decided.
            cut: [n], first grid integer of the upper side.
            above: bool [n], the truth value there.
            line: of the subject, which compares.

        Returns:
            bool [n].
        """
        outcome = torch.empty_like(above)
        for index in self.columns(self.row(ids)):
            element = ids[index]
            if bool((self._cut[element] == cut[index]).all()):
                # The same coin looked at again, such as a copy of it.
                outcome[index] = above[index] ^ ~self._upper[element]
                continue
            low, high = self.bounds(element)
            middle = torch.minimum(torch.maximum(cut[index], low), high)
            width = (high - low).double()
            below = (middle - low).double() / width
            chosen = self.fork(torch.stack([below, (high - middle).double() / width]))
            upper = chosen == 1
            self._cut[element], self._upper[element] = cut[index], upper
            self.narrow(
                element, torch.where(upper, middle, low), torch.where(upper, high, middle), line
            )
            outcome[index] = torch.where(upper, above[index], ~above[index])
        return outcome

    def columns(self, row: Tensor) -> list[Tensor]:
        """Sort elements into steps, one element of every row each.

        Args:
            row: [n], the row of each element.

        Returns:
            Index tensors [B].

        Raises:
            CannotSteer: the rows have different numbers of elements, or some belong to no row.
        """
        if self.rows == 1:
            return list(torch.arange(len(row)).unsqueeze(1))
        order = row.argsort(stable=True)
        counts = torch.bincount(row.clamp(min=0), minlength=self.rows)
        if bool((row < 0).any()) or bool((counts != counts[0]).any()):
            raise CannotSteer("the rows of a batch do not each have randomness of their own")
        return list(order.reshape(self.rows, -1).unbind(1))


class _Elements:
    """What is known of random elements, by id."""

    def __init__(self) -> None:
        self.row = torch.zeros(0, dtype=torch.int32)
        self.claimed = torch.zeros(0, dtype=torch.bool)
        self.lines: list[tuple[int, Line]] = []

    @property
    def size(self) -> int:
        return len(self.row)

    def add(self, row: Tensor, line: Line) -> int:
        first = self.size
        self.lines.append((first, line))
        self.row = torch.cat([self.row, row.reshape(-1).int()])
        self.claimed = torch.cat([self.claimed, torch.zeros(row.numel(), dtype=torch.bool)])
        return first


def row_numbers(shape: tuple[int, ...], rows: int) -> Tensor:
    """The row each element of a tensor belongs to, long [*shape].

    The first dimension whose size is the number of rows counts them, or the first one if its size
    is a multiple; -1 if there is neither.
    """
    if rows == 1:
        return torch.zeros(shape, dtype=torch.long)
    for dim, size in enumerate(shape):
        if size == rows:
            view = [1] * len(shape)
            view[dim] = rows
            return torch.arange(rows).reshape(view).expand(shape)
    if shape and shape[0] and shape[0] % rows == 0:
        number = torch.arange(shape[0]) // (shape[0] // rows)
        return number.reshape([-1] + [1] * (len(shape) - 1)).expand(shape)
    return torch.full(shape, -1)
