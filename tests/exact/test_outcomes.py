import numpy as np
import pytest
import torch

from specverify.errors import CannotSteer, SubjectError
from specverify.exact.branching import Leaf, Slot
from specverify.exact.outcomes import Outcomes, check_padding, spread
from specverify.exact.steering.draws import Group
from specverify.exact.steering.source_line import Line

HALVES = torch.tensor([[0.25, 0.75], [1.0, 0.0]], dtype=torch.float64)


def leaf(tokens, slots=()):
    rows = torch.arange(len(tokens))
    return Leaf(rows, torch.full((len(rows),), 0.5).double(), torch.tensor(tokens), slots, ())


def slot(place, member, probabilities=HALVES, values=(7, 8)):
    group = Group(
        0, probabilities, torch.tensor(values), torch.arange(2), None, None, Line("x.py", 1)
    )
    return Slot(torch.tensor(place), torch.tensor(member), group)


def masses(part):
    index, tokens, mass = spread(part)
    return {
        (i, *t): m for i, t, m in zip(index.tolist(), tokens.tolist(), mass.tolist(), strict=True)
    }


def test_nothing_open():
    assert masses(leaf([[1, 2], [3, -1]])) == {(0, 1, 2): 0.5, (1, 3, -1): 0.5}


def test_open_places_take_every_value():
    part = leaf([[0, 2], [0, 3]], (slot([[0, 0], [1, 0]], [0, 1]),))
    assert masses(part) == {(0, 7, 2): 0.125, (0, 8, 2): 0.375, (1, 7, 3): 0.5}


def test_two_open_places_of_one_row():
    part = leaf([[0, 0]], (slot([[0, 0]], [0]), slot([[0, 1]], [0])))
    assert masses(part) == {
        (0, 7, 7): 0.03125, (0, 7, 8): 0.09375, (0, 8, 7): 0.09375, (0, 8, 8): 0.28125
    }  # fmt: skip


def test_a_row_without_open_places_beside_one():
    part = leaf([[0, 2], [5, 3]], (slot([[0, 0]], [0]),))
    assert masses(part) == {(1, 5, 3): 0.5, (0, 7, 2): 0.125, (0, 8, 2): 0.375}


def test_too_many():
    size = 1 << 23
    wide = torch.full((1, size), 1 / size, dtype=torch.float64)
    part = leaf([[0] * 5], (slot([[0, 0]], [0], wide, range(2)),))
    with pytest.raises(CannotSteer, match="different outputs"):
        spread(part)


def test_masses_are_summed_without_padding():
    outcomes = Outcomes()
    outcomes.add(np.array([[1, -1], [1, 2]]), np.array([0.25, 0.25]))
    outcomes.add(np.array([[1, -1, -1], [-1, -1, -1]]), np.array([0.25, 0.25]))
    assert outcomes.distribution() == {(1,): 0.5, (1, 2): 0.25, (): 0.25}


@pytest.mark.parametrize("vocab_size", [5, 1 << 40])
def test_large_token_ids(vocab_size):
    outcomes = Outcomes()
    outcomes.add(np.array([[vocab_size, 0], [vocab_size, 0], [0, vocab_size]]), np.full(3, 0.25))
    assert outcomes.distribution() == {(vocab_size, 0): 0.5, (0, vocab_size): 0.25}


def test_no_mass_is_no_outcome():
    outcomes = Outcomes()
    outcomes.add(np.array([[1], [2]]), np.array([0.0, 1.0]))
    assert outcomes.distribution() == {(2,): 1.0}
    assert Outcomes().distribution() == {}


@pytest.mark.parametrize("row", [[-1, 3], [2, -2], [-100, -100], [1, -1, 2]])
def test_padding_stands_on_the_right(row):
    with pytest.raises(SubjectError, match="padding"):
        check_padding(np.array([[1] * len(row), row]))
    check_padding(np.array([[1, -1, -1], [-1, -1, -1], [1, 2, 3]]))
