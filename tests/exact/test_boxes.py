"""Functions with known boxes, cut without looking inside."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specverify.errors import CannotSteer
from specverify.exact.boxes import constant_boxes

BITS = 24
SIZE = 1 << BITS


def trusting(rows, points, codes):
    """No point is evaluated again."""


def cut(function, axes, *, rows=1, seed=0, confirm=trusting):
    """Outcome to exact share of row 0, of a function of (rows, points)."""
    generator = np.random.default_rng(seed)
    boxes = constant_boxes(function, confirm, rows, axes, BITS, generator)
    assert np.bincount(boxes.rows, minlength=rows).all()
    shares = {}
    for row, code, volume in zip(
        boxes.rows.tolist(), boxes.outcomes.tolist(), boxes.volumes(), strict=True
    ):
        if row == 0:
            shares[code] = shares.get(code, 0) + Fraction(volume, SIZE**axes)
    assert sum(shares.values()) == 1
    return shares


def tree_of(thresholds, depth):
    """A decision tree: coin `d` decides at depth d, with a threshold of its own at every node."""

    def function(rows, points):
        node = np.zeros(len(points), np.int64)
        for level in range(depth):
            node = 2 * node + 1 + (points[:, level] >= thresholds[node])
        return node

    shares = {0: Fraction(1)}
    for node in range(2**depth - 1):
        reach, low = shares.pop(node), Fraction(int(thresholds[node]), SIZE)
        shares[2 * node + 1], shares[2 * node + 2] = reach * low, reach * (1 - low)
    return function, {node: share for node, share in shares.items() if share}


@given(st.lists(st.integers(0, SIZE), min_size=7, max_size=7), st.permutations(range(3)))
def test_every_leaf_of_a_decision_tree_has_its_exact_volume(thresholds, order):
    function, shares = tree_of(np.array(thresholds), 3)
    assert cut(lambda rows, points: function(rows, points[:, order]), 3) == shares


def test_rows_have_boundaries_of_their_own():
    boundaries = np.array([3, 1 << 20, SIZE - 1])
    generator = np.random.default_rng(0)
    boxes = constant_boxes(
        lambda rows, points: (points[:, 0] >= boundaries[rows]).astype(np.int64),
        trusting,
        3,
        1,
        BITS,
        generator,
    )
    below = boxes[boxes.outcomes == 0]
    assert dict(zip(below.rows.tolist(), below.high[:, 0].tolist(), strict=True)) == dict(
        enumerate(boundaries.tolist())
    )


def test_a_single_point_between_two_outcomes_is_never_missed():
    middle = 12_345_678

    def function(rows, points):
        return np.sign(points[:, 0] - middle)

    assert cut(function, 2)[0] == Fraction(1, SIZE)


def test_single_points_at_both_ends_are_never_missed():
    def function(rows, points):
        return np.where(points[:, 1] == 0, 1, np.where(points[:, 1] == SIZE - 1, 2, 0))

    assert cut(function, 2) == {
        0: 1 - Fraction(2, SIZE),
        1: Fraction(1, SIZE),
        2: Fraction(1, SIZE),
    }


@pytest.mark.parametrize("seed", range(5))
def test_a_window_of_a_thirtieth_with_the_same_outcome_around_it_is_found(seed):
    low, width = SIZE // 5 * 3 + 1, SIZE // 30

    def function(rows, points):
        return ((points[:, 1] >= low) & (points[:, 1] < low + width)).astype(np.int64)

    assert cut(function, 3, seed=seed)[1] == Fraction(width, SIZE)


def test_what_the_verification_meets_is_evaluated_again():
    """A point that contradicts its box is told, with its outcome."""
    told = []
    window = SIZE // 30

    def function(rows, points):
        inside = (points[:, 0] > SIZE // 3) & (points[:, 0] < SIZE // 3 + window)
        return inside.astype(np.int64)

    def confirm(rows, points, codes):
        told.append((function(rows, points) == codes).all())

    for seed in range(10):
        cut(function, 1, seed=seed, confirm=confirm)
    assert told
    assert all(told)


def test_more_axes_than_corners_can_be_listed():
    def function(rows, points):
        return (points[:, [0, 5, 9]] < SIZE // 2).sum(1)

    halves = Fraction(1, 8)
    assert cut(function, 10) == {0: halves, 1: 3 * halves, 2: 3 * halves, 3: halves}


def test_no_axes():
    assert cut(lambda rows, points: rows + 7, 0, rows=2) == {7: 1}


def test_a_sum_of_coins_is_refused():
    with pytest.raises(CannotSteer, match="4,096 boxes"):
        cut(lambda rows, points: (points.sum(1) >= SIZE).astype(np.int64), 2)


def test_a_function_that_forgets_is_refused():
    generator = np.random.default_rng(0)
    with pytest.raises(CannotSteer, match="same coins"):
        cut(lambda rows, points: generator.integers(0, 2, len(rows)), 2)
