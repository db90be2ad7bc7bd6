import pytest
import torch

from specverify.errors import CannotSteer, OutsideRandomness
from specverify.exact.branching import Crash, Exploration

ONE = torch.zeros(1, dtype=torch.long)
WEIGHTS = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)


def explored(program):
    exploration = Exploration(lambda rows, g: program(g).long().reshape(1, -1), replays=0)
    return exploration, list(exploration.paths(ONE))


def tosses(count):
    return lambda g: (torch.rand(count, dtype=torch.float64, generator=g) < 0.25).long()


def test_probabilities_of_the_leaves():
    _, leaves = explored(tosses(2))
    found = {tuple(leaf.tokens[0].tolist()): float(leaf.probability) for leaf in leaves}
    assert found == {(0, 0): 0.5625, (0, 1): 0.1875, (1, 0): 0.1875, (1, 1): 0.0625}


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_leaf_costs_one_run(count):
    exploration, leaves = explored(tosses(count))
    assert len(leaves) == exploration.runs == 2**count


def test_the_likeliest_path_comes_first():
    _, leaves = explored(tosses(2))
    assert leaves[0].choices == (1, 1)
    assert leaves[0].probability == max(leaf.probability for leaf in leaves)


def test_draws_that_nothing_looks_at_stay_open():
    exploration, (leaf,) = explored(lambda g: torch.multinomial(WEIGHTS, 4, True, generator=g))
    assert exploration.runs == 1
    assert leaf.choices == ()
    (slot,) = leaf.slots if len(leaf.slots) == 1 else (leaf.slots[0],)
    assert torch.equal(slot.probabilities[0], WEIGHTS)
    assert slot.values[0].tolist() == [0, 1, 2]


def test_a_draw_that_is_looked_at_forks():
    exploration, leaves = explored(lambda g: torch.multinomial(WEIGHTS, 1, generator=g) + 1)
    assert exploration.runs == 3
    assert sorted(int(leaf.tokens) for leaf in leaves) == [1, 2, 3]


def test_impossible_outcomes_are_not_run():
    weights = torch.tensor([0.0, 0.4, 0.0, 0.6], dtype=torch.float64)
    exploration, _ = explored(lambda g: torch.multinomial(weights, 1, generator=g) + 1)
    assert exploration.runs == 2


def crashing(g):
    if torch.rand((), dtype=torch.float64, generator=g) < 0.25:
        raise ZeroDivisionError("no")
    return torch.zeros(1)


def test_crashes():
    _, ends = explored(crashing)
    (crash,) = [end for end in ends if isinstance(end, Crash)]
    assert crash.probability == 0.25
    assert isinstance(crash.error, ZeroDivisionError)


def test_too_many_paths():
    exploration = Exploration(lambda rows, g: tosses(5)(g).reshape(1, -1), maximum_runs=10)
    with pytest.raises(CannotSteer, match="more paths than may be run"):
        list(exploration.paths(ONE))
    assert exploration.runs == 10


def test_state_kept_between_calls():
    calls = []

    def program(g):
        calls.append(0)
        level = 0.5 if len(calls) % 2 else 0.25
        return torch.stack([torch.rand((), generator=g) < level for _ in range(2)])

    with pytest.raises(OutsideRandomness, match="run again"):
        explored(program)


def test_rows_of_their_own():
    levels = torch.tensor([0.25, 0.5, 1.0], dtype=torch.float64)

    def program(rows, g):
        u = torch.rand(len(rows), 1, dtype=torch.float64, generator=g)
        return (u < levels[rows].unsqueeze(1)).long()

    exploration = Exploration(program, replays=0)
    heads = dict.fromkeys(range(3), 0.0)
    for leaf in exploration.paths(torch.arange(3)):
        for row, mass, token in zip(leaf.rows, leaf.probability, leaf.tokens, strict=True):
            heads[int(row)] += float(mass) * int(token)
    assert exploration.runs == 2
    assert heads == {0: 0.25, 1: 0.5, 2: 1.0}


def test_a_row_that_raises_ends_a_batch():
    def program(rows, g):
        raise ValueError("no")

    with pytest.raises(CannotSteer, match="a row of a batch raises"):
        list(Exploration(program).paths(torch.arange(3)))


def test_the_line_of_global_draws():
    exploration, _ = explored(lambda g: torch.rand(1) < 0.5)
    (line,) = exploration.global_draws
    assert line.path == __file__
    exploration, _ = explored(tosses(1))
    assert not exploration.global_draws
