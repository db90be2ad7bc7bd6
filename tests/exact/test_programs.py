import pytest
import torch

from specverify.errors import CannotSteer
from specverify.exact.joint import total_variation
from specverify.exact.programs import program_distribution

WEIGHTS = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)


def test_one_row():
    found = program_distribution(lambda g: torch.multinomial(WEIGHTS, 1, generator=g)[None])
    assert found.probabilities == {(0,): 0.5, (1,): 0.3, (2,): 0.2}
    assert (found.method, found.runs, found.crashes) == ("branching", found.runs, {})


def test_rows_are_told_apart():
    found = program_distribution(
        lambda g: torch.multinomial(WEIGHTS.expand(2, 3), 1, generator=g)
    ).probabilities
    weights = WEIGHTS.tolist()
    expected = {(x, -1, y): weights[x] * weights[y] for x in range(3) for y in range(3)}
    assert total_variation(found, expected) < 1e-15


def test_rows_of_several_lengths():
    def program(g):
        head = torch.rand((), dtype=torch.float64, generator=g) < 0.25
        return torch.tensor([[1, -1], [2, 3 if head else -1]])

    assert program_distribution(program).probabilities == {(1, -1, 2, 3): 0.25, (1, -1, 2): 0.75}


def decode(step):
    """A loop that draws up to three tokens and stops at 2."""

    def program(g):
        tokens = []
        while len(tokens) < 3 and 2 not in tokens:
            tokens.append(step(g))
        return torch.tensor([tokens + [-1] * (3 - len(tokens))])

    return program


def test_a_loop_of_its_own_length():
    weights = WEIGHTS.tolist()
    found = program_distribution(decode(lambda g: int(torch.multinomial(WEIGHTS, 1, generator=g))))
    expected = {(2,): weights[2]}
    for x in range(2):
        expected[x, 2] = weights[x] * weights[2]
        expected |= {
            (x, y, z): weights[x] * weights[y] * weights[z] for y in range(2) for z in range(3)
        }
    assert total_variation(found.probabilities, expected) < 1e-15


def test_crashes_have_their_mass():
    def program(g):
        token = int(torch.multinomial(WEIGHTS, 1, generator=g))
        return torch.tensor([[[4, 5][token]]])

    found = program_distribution(program)
    assert found.probabilities == {(4,): 0.5, (5,): 0.3}
    assert found.crashes == {"IndexError: list index out of range": 0.2}
    assert found.total == 1.0


def test_too_many_runs():
    with pytest.raises(CannotSteer, match="paths"):
        program_distribution(lambda g: (torch.rand(1, 9, generator=g) < 0.5).long(), maximum_runs=9)
