"""Piecewise constant functions of integer coins, cut into the boxes on which they are constant."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Self, TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from specverify.errors import CannotSteer

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

Evaluate: TypeAlias = Callable[[Ints, Ints], Ints]
"""Rows [N] and their coins [N, m] to outcomes [N]."""

RANDOM_POINTS = 8
"""Random points of a box that must agree with its corners before it is accepted."""
VERIFICATION_POINTS = 256
"""Random points a row is verified at in the end, shared among its boxes by volume."""

_FEWEST_VERIFICATION_POINTS = 4
_CORNERS = 64
_SCAN = 16
_BOXES_AT_ONCE = 1 << 13
_MAXIMUM_BOXES_A_ROW = 1 << 12
_MAXIMUM_CUTS = 100
"""Cuts that may lead to one box. Even tokens whose probabilities shrink by 17 each, so that a scan
separates one more at a time, take 14 for an axis of 53 bits."""


@dataclass(frozen=True, eq=False)
class Boxes:
    """Boxes of coins, each for one row: `low <= coins < high`."""

    rows: Ints
    """[N]: the row whose outcome is looked at."""
    low: Ints
    """[N, m]."""
    high: Ints
    """[N, m], exclusive."""
    witness: Ints
    """[N, m]: a point of the box known to give another outcome than the rest, or `low`."""
    outcomes: Ints
    """[N]: the outcome everywhere in the box; meaningless before it is accepted."""
    cuts: Ints
    """[N]: cuts that led to the box."""

    @classmethod
    def whole(cls, rows: int, axes: int, bits: int) -> Self:
        """All coins of every row, as one box a row."""
        low = np.zeros((rows, axes), np.int64)
        none = np.zeros(rows, np.int64)
        return cls(np.arange(rows), low, low + (1 << bits), low, none, none)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: NDArray | slice) -> Self:
        return type(self)(*(getattr(self, field.name)[index] for field in fields(self)))

    def __add__(self, other: Self) -> Self:
        """Both lists, one after the other."""
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return type(self)(*map(np.concatenate, pairs))

    def volumes(self) -> list[int]:
        """Points in each box, exactly: Python integers, since 2^53 to the power m fits no other."""
        return np.prod((self.high - self.low).astype(object), axis=1).tolist()


def constant_boxes(
    evaluate: Evaluate,
    confirm: Callable[[Ints, Ints, Ints], None],
    rows: int,
    axes: int,
    bits: int,
    generator: Generator,
) -> Boxes:
    """Cut the coins of every row into boxes on which its outcome is constant.

    Two points of a box with different outcomes differ, after walking from one to the other axis
    by axis, along one axis; all outcomes met along this line are separated by bisection on the
    integers, and the box is cut there. The steps of all boxes are rows of the same calls, so a
    generation of cuts costs about `bits` calls.

    A box is accepted if its corners (at most 64 of them), its centre and random points agree, and
    is sampled once more in the end, in another order: see `coins.fed_distribution` for what can be
    missed.

    Args:
        evaluate: the function, called with any number of points.
        confirm: told points whose outcome contradicts their box, with that outcome; raises if they
            have another outcome when they are evaluated again.
        rows: rows, 0 to `rows` - 1.
        axes: m, coins a row.
        bits: coins run from 0 to 2^bits - 1.
        generator: of the random points.

    Returns:
        Accepted boxes; those of a row are disjoint and cover all its coins.

    Raises:
        CannotSteer: a row needs more than 4,096 boxes, or a box more than 100 cuts, or an outcome
            is not fixed.
    """
    accepted = Boxes.whole(0, axes, bits)
    pending = Boxes.whole(rows, axes, bits)
    while len(pending):
        unverified = accepted[:0]
        while len(pending):
            batch, pending = pending[:_BOXES_AT_ONCE], pending[_BOXES_AT_ONCE:]
            batch, differs = _examined(evaluate, batch, generator)
            unverified += batch[~differs]
            pending = _cut(evaluate, batch[differs]) + pending
            _check_limits(accepted + unverified + pending)
        verified, wrong = _verified(evaluate, confirm, unverified, generator)
        accepted += verified[~wrong]
        pending = verified[wrong]
    return accepted


def _check_limits(boxes: Boxes) -> None:
    if np.bincount(boxes.rows).max() > _MAXIMUM_BOXES_A_ROW or boxes.cuts.max() > _MAXIMUM_CUTS:
        raise CannotSteer(
            f"the tokens of one draft block do not settle in {_MAXIMUM_BOXES_A_ROW:,} boxes of its "
            f"coins, {_MAXIMUM_CUTS} cuts deep; a rule that combines two coins before it compares "
            "them (a sum, a race of noises) cannot be cut along the axes"
        )


def _examined(evaluate: Evaluate, boxes: Boxes, generator: Generator) -> tuple[Boxes, Bools]:
    """Probe boxes; return them with outcome and witness, and whether their points disagree."""
    size, axes = boxes.low.shape
    patterns = _corner_patterns(axes)
    last = boxes.high - 1
    corners = np.where(patterns, last[:, None], boxes.low[:, None])
    centre = boxes.low + (last - boxes.low) // 2
    spread = _spread(boxes, np.full(size, RANDOM_POINTS), generator)
    inside = spread.reshape(size, RANDOM_POINTS, axes)
    points = np.concatenate([corners, boxes.witness[:, None], centre[:, None], inside], axis=1)
    count = points.shape[1]
    codes = evaluate(np.repeat(boxes.rows, count), points.reshape(size * count, axes))
    codes = codes.reshape(size, count)
    other = codes != codes[:, :1]
    witness = points[np.arange(size), other.argmax(1)]
    return replace(boxes, witness=witness, outcomes=codes[:, 0]), other.any(1)


def _corner_patterns(axes: int) -> Bools:
    """Corners to probe, [P, m]: which axes are at their end rather than at their start.

    Those that leave the start along one axis come first: cutting there first, in the order in
    which the coins are declared, needs the fewest boxes.
    """
    start, steps = np.zeros((1, axes), np.bool_), np.eye(axes, dtype=np.bool_)
    if 1 << axes > _CORNERS:
        return np.concatenate([start, steps, ~start, ~steps])
    every = np.array(list(itertools.product([False, True], repeat=axes)), np.bool_)
    every = every.reshape(1 << axes, axes)
    return np.concatenate([start, steps, every[every.sum(1) > 1]])


def _spread(boxes: Boxes, counts: Ints, generator: Generator) -> Ints:
    """Random points, `counts` in each box, [sum, m], each axis divided evenly among them."""
    owner = np.repeat(np.arange(len(boxes)), counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    low, high = boxes.low[owner], boxes.high[owner]
    points = np.empty_like(low)
    for axis in range(low.shape[1]):
        order = np.lexsort((generator.random(len(owner)), owner))
        stratum = np.empty(len(owner))
        stratum[order] = np.arange(len(owner)) - first
        fraction = (stratum + generator.random(len(owner))) / counts[owner]
        width = high[:, axis] - low[:, axis]
        # The product may round up to the width, which lies outside.
        steps = np.minimum((fraction * width).astype(np.int64), width - 1)
        points[:, axis] = low[:, axis] + steps
    return points


def _cut(evaluate: Evaluate, boxes: Boxes) -> Boxes:
    """Cut boxes whose outcome differs between `low` and `witness` along one axis each."""
    if not len(boxes):
        return boxes
    axis, line, ends = _line(evaluate, boxes)
    index, positions = _changes(evaluate, boxes, axis, line, ends)
    # Every box starts where it did and at each change.
    every = np.arange(len(boxes))
    owner = np.concatenate([every, index])
    starts = np.concatenate([boxes.low[every, axis], positions])
    order = np.lexsort((starts, owner))
    owner, starts = owner[order], starts[order]
    follows = np.append(owner[1:] == owner[:-1], [False])
    stops = np.where(follows, np.append(starts[1:], 0), boxes.high[owner, axis[owner]])
    low, high = boxes.low[owner], boxes.high[owner]
    pieces = np.arange(len(owner))
    low[pieces, axis[owner]], high[pieces, axis[owner]] = starts, stops
    return replace(boxes[owner], low=low, high=high, witness=low, cuts=boxes.cuts[owner] + 1)


def _line(evaluate: Evaluate, boxes: Boxes) -> tuple[Ints, Ints, Ints]:
    """Find a pair of points that differ along one axis only.

    Returns:
        The axis [N], the point [N, m] whose other coordinates the pair shares, and the two values
        [N, 2] along the axis between which the outcome changes.
    """
    size, axes = boxes.low.shape
    walked = np.tri(axes + 1, axes, -1, dtype=np.bool_)  # after j steps the first j axes moved
    path = np.where(walked, boxes.witness[:, None], boxes.low[:, None])
    codes = evaluate(np.repeat(boxes.rows, axes + 1), path.reshape(size * (axes + 1), axes))
    changes = np.diff(codes.reshape(size, axes + 1), axis=1) != 0
    _check_fixed(changes.any(1))
    axis, every = changes.argmax(1), np.arange(size)
    ends = np.stack([boxes.low[every, axis], boxes.witness[every, axis]], 1)
    return axis, path[every, axis], ends


def _changes(
    evaluate: Evaluate, boxes: Boxes, axis: Ints, line: Ints, ends: Ints
) -> tuple[Ints, Ints]:
    """Positions along lines at which the outcome differs from that one step below.

    Every change between neighbours of a scan of the line that differ is bisected; changes the scan
    steps over show in the pieces.

    Returns:
        Indices of boxes [C] and positions [C], at least one a box.
    """
    every = np.arange(len(boxes))

    def outcomes(index: Ints, positions: Ints) -> Ints:
        points = line[index]
        points[np.arange(len(index)), axis[index]] = positions
        return evaluate(boxes.rows[index], points)

    low, last = boxes.low[every, axis], boxes.high[every, axis] - 1
    inner = low[:, None] + (last - low)[:, None] * np.arange(_SCAN + 2) // (_SCAN + 1)
    scan = np.sort(np.concatenate([inner, ends], axis=1), axis=1)
    codes = outcomes(np.repeat(every, scan.shape[1]), scan.reshape(-1)).reshape(scan.shape)
    index, column = np.nonzero(np.diff(codes, axis=1))
    _check_fixed(np.isin(every, index))
    left, right, below = scan[index, column], scan[index, column + 1], codes[index, column]
    while (open_ := np.flatnonzero(right - left > 1)).size:
        middle = left[open_] + (right[open_] - left[open_]) // 2
        same = outcomes(index[open_], middle) == below[open_]
        left[open_] = np.where(same, middle, left[open_])
        right[open_] = np.where(same, right[open_], middle)
    return index, right


def _check_fixed(found: Bools) -> None:
    if not found.all():
        raise CannotSteer(
            "the rule emitted different tokens for the same draft block and the same coins; its "
            "rows depend on each other, or it draws from another source than its coins"
        )


def _verified(
    evaluate: Evaluate,
    confirm: Callable[[Ints, Ints, Ints], None],
    boxes: Boxes,
    generator: Generator,
) -> tuple[Boxes, Bools]:
    """Sample boxes, all mixed; return them with a witness where a point contradicts its box."""
    sizes = np.prod((boxes.high - boxes.low).astype(np.float64), axis=1)
    shares = sizes / np.bincount(boxes.rows, sizes)[boxes.rows]
    counts = _FEWEST_VERIFICATION_POINTS + np.ceil(VERIFICATION_POINTS * shares).astype(np.int64)
    points = _spread(boxes, counts, generator)
    owner = np.repeat(np.arange(len(boxes)), counts)
    order = generator.permutation(len(owner))
    points, owner = points[order], owner[order]
    codes = evaluate(boxes.rows[owner], points)
    against = np.flatnonzero(codes != boxes.outcomes[owner])
    wrong = np.zeros(len(boxes), np.bool_)
    witness = boxes.low.copy()
    if against.size:
        confirm(boxes.rows[owner[against]], points[against], codes[against])
        wrong[owner[against]] = True
        witness[owner[against]] = points[against]
    return replace(boxes, witness=witness), wrong
