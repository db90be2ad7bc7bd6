"""From a path of a steered run to the values of its uniforms that are worth running for real."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from specverify.exact.branching import Leaf
from specverify.exact.forcing import Rule
from specverify.exact.joint import Tokens
from specverify.exact.round import Round
from specverify.exact.steering import grid
from specverify.exact.steering.mode import steered
from specverify.exact.steering.outside import outside_randomness
from specverify.exact.steering.path import Path
from specverify.exact.steering.pinned import Drawn
from specverify.exact.steering.source_line import Line
from specverify.exact.steering.steering import Steering


@dataclass(frozen=True)
class Case:
    """One row of a real run."""

    block: Tokens
    path: int
    """Number of the path that it realises."""
    integers: Tensor
    """long [m]: the grid integers of the row's uniforms."""
    mass: float
    coin: str = "inside"
    element: int | None = None
    value: float | None = None
    line: str = ""


@dataclass(frozen=True)
class Expected:
    """What steering says of one path of one block."""

    leaf: Leaf
    low: Tensor
    """long [m]: first grid integer of each uniform for which the path is taken."""
    high: Tensor
    """long [m]: the first above that for which it is not."""

    def inside(self, block: Tokens, path: int, weight: float) -> Case:
        """The case that stands for the whole path.

        Args:
            block: the draft tokens.
            path: its number.
            weight: probability that the block is drafted.
        """
        middle = (self.low + self.high) // 2
        return Case(block, path, middle, weight * float(self.leaf.probability[0]))

    def allows(self, integers: Tensor, tokens: list[int]) -> bool:
        """Whether a row with these uniforms may take this path, and emit `tokens` on it.

        Args:
            integers: long [n], as in `Case`; uniforms beyond have their middle value.
            tokens: the row of the output, padding included.
        """
        pins = (self.low + self.high) // 2  # right for a uniform that nothing has narrowed
        known = min(len(pins), len(integers))
        pins[:known] = integers[:known]
        if not bool(((self.low <= pins) & (pins < self.high)).all()):
            return False
        fixed = dict(enumerate(self.leaf.tokens[0].tolist()))
        for slot in self.leaf.slots:
            group = slot.group
            possible = slot.probabilities > 0
            if group.edges is not None and group.noise is not None:
                edges, pin = group.edges[slot.member], pins[group.noise[slot.member]]
                possible = (edges[:, :-1] <= pin) & (pin < edges[:, 1:])
            for place, values, open_ in zip(slot.place, slot.values, possible, strict=True):
                column = int(place[1])
                if tokens[column] not in values[open_].tolist():
                    return False
                del fixed[column]
        return all(tokens[column] == token for column, token in fixed.items())


class _Counting(Path):
    """A path that knows how many uniforms it has."""

    count = 0

    def uniforms(self, shape: Sequence[int], span: int, line: Line) -> Tensor:
        ids = super().uniforms(shape, span, line)
        self.count += ids.numel()
        return ids


def expectation(rule: Rule, round: Round, block: Tensor, leaf: Leaf, seed: int) -> Expected:
    """Take a path again to read off the interval of every uniform.

    Args:
        rule: steered alone on the block.
        round: its distributions.
        block: draft tokens, long [K].
        leaf: where the path ends.
        seed: of what is not steered.
    """

    def policy(index: int, probabilities: Tensor, reached: Tensor) -> Tensor:
        return torch.tensor([leaf.choices[index]])

    path = _Counting(1, policy)
    generator = Generator().manual_seed(seed)
    steering = Steering(path, generator)
    with outside_randomness(seed + 1), steered(steering):
        tokens = rule(*round.inputs(block[None]), generator)
        symbol = steering.shadows.of(tokens)
        if symbol is not None and len(path.forks) < len(leaf.choices):
            steering.settle_in(tokens, symbol)
    low, high = path.bounds(torch.arange(path.count))
    return Expected(leaf, low, high)


def single_value(expected: Expected, inside: Case, drawn: list[Drawn]) -> Case:
    """Name the case of a path after a uniform that has one value only on it, if one has.

    Args:
        expected: the path.
        inside: its case.
        drawn: what a real run of it drew.
    """
    for element, entry in _visible(expected, drawn):
        low, high = int(expected.low[element]), int(expected.high[element])
        if _same_value(low, low, high, entry.dtype) == (low, high):
            coin = _ends([low, high], entry.dtype)[low]
            value = _value(low, entry.dtype)
            return replace(inside, coin=coin, element=element, value=value, line=str(entry.line))
    return inside


def cases_of_leaf(expected: Expected, inside: Case, drawn: list[Drawn]) -> Iterator[Case]:
    """One uniform at each end of its interval, the others inside theirs.

    Args:
        expected: the path.
        inside: its case, which is varied.
        drawn: what a real run of it drew.
    """
    pieces = _pieces(expected)
    for element, entry in _visible(expected, drawn):
        low, high = int(expected.low[element]), int(expected.high[element])
        edges = [low, *pieces.get(element, ()), high]
        if element == inside.element:
            continue
        for integer, coin in _ends(edges, entry.dtype).items():
            integers = inside.integers.clone()
            integers[element] = integer
            start, stop = _same_value(integer, low, high, entry.dtype)
            yield replace(
                inside,
                integers=integers,
                mass=inside.mass * (stop - start) / (high - low),
                coin=coin,
                element=element,
                value=_value(integer, entry.dtype),
                line=str(entry.line),
            )


def _visible(expected: Expected, drawn: list[Drawn]) -> Iterator[tuple[int, Drawn]]:
    """The uniforms whose value the rule sees, with the operation that drew each."""
    first = 0
    for entry in drawn:
        elements = range(first, min(first + entry.per_row, len(expected.low)))
        first += entry.per_row
        if entry.name != "bernoulli" and entry.dtype in grid.BITS:
            yield from ((element, entry) for element in elements)


def _pieces(expected: Expected) -> dict[int, list[int]]:
    """The inner edges of draws by thresholds, by their uniform."""
    pieces = {}
    for slot in expected.leaf.slots:
        if slot.group.edges is None or slot.group.noise is None:
            continue
        for element, edges in zip(
            slot.group.noise[slot.member, 0].tolist(), slot.group.edges[slot.member], strict=True
        ):
            inner = edges.unique().tolist()[1:-1]
            pieces[element] = inner
    return pieces


def _ends(edges: list[int], dtype: torch.dtype) -> dict[int, str]:
    """Grid integers to names: both ends of each piece, and the value after a lower end."""
    last = (1 << grid.BITS[dtype]) - 1
    low, high = edges[0], edges[-1]
    found: dict[int, str] = {}
    for edge in edges:
        if edge > low:
            found.setdefault(edge - 1, "below threshold")
        if low <= edge < high and edge > 0:
            found[edge] = "threshold"
            above = _same_value(edge, low, high, dtype)[1]
            if above < high:
                found.setdefault(above, "above threshold")
    if low == 0:
        found[0] = "u = 0"
    if high == last + 1:
        found[last] = "largest below 1"
    return found


def _same_value(integer: int, low: int, high: int, dtype: torch.dtype) -> tuple[int, int]:
    """The integers from low up to and without high that stand for the same float."""
    if dtype in (torch.float32, torch.float64):
        return integer, integer + 1
    value = _value(integer, dtype)
    return _first(low, integer, value, dtype), _first(integer, high, value, dtype, after=True)


def _first(low: int, high: int, value: float, dtype: torch.dtype, *, after: bool = False) -> int:
    """The first integer from low to high whose float is not less (after: more) than `value`."""
    while low < high:
        middle = (low + high) // 2
        there = _value(middle, dtype)
        if there > value or (there == value and not after):
            high = middle
        else:
            low = middle + 1
    return low


def _value(integer: int, dtype: torch.dtype) -> float:
    return float(grid.values(torch.tensor(integer), dtype))
