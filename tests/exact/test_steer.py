import pytest
import torch

from specverify.errors import CannotSteer
from specverify.exact.coins import Coins
from specverify.exact.compare_round import compare_round
from specverify.exact.round import Round
from specverify.exact.steer import joint_distribution

ROUND = Round.random(3, 1, seed=2)
WEIGHTS = torch.tensor([0.25, 0.75], dtype=torch.float64)


def accept_all(tokens, q, p, generator):
    return torch.cat([tokens, torch.multinomial(p[:, -1], 1, generator=generator)], 1)


def test_a_rule_is_forced():
    found = joint_distribution(accept_all, ROUND)
    assert found.method == "forcing"
    assert found.alone is None
    expected = {
        (x, y): float(ROUND.q(0)[0, x] * ROUND.p(1)[x, y]) for x in range(3) for y in range(3)
    }
    assert found.probabilities == pytest.approx(expected, abs=1e-15)


def test_a_rule_for_one_row_is_branched():
    def rule(tokens, q, p, generator):
        assert len(tokens) == 1
        return accept_all(tokens, q, p, generator)

    assert joint_distribution(rule, ROUND, batch=False).method == "branching"


def test_rows_that_cannot_be_followed_together_are_followed_alone():
    def rule(tokens, q, p, generator):
        return accept_all(tokens, q, p.roll(1, 0), generator)

    found = joint_distribution(rule, ROUND)
    assert found.method == "branching"
    assert "rows" in str(found.alone)


def test_a_rule_without_generator():
    def rule(tokens, q, p):
        return accept_all(tokens, q, p, None)

    found = joint_distribution(rule, ROUND, generator=False)
    assert abs(found.total - 1) < 1e-15


def test_declared_coins_are_fed():
    def rule(tokens, q, p, u):
        token = (p[:, -1].cumsum(1) <= u.unsqueeze(1)).sum(1, keepdim=True)
        return torch.cat([tokens, token.clamp(max=2)], 1)

    found = joint_distribution(rule, ROUND, coins=Coins({"u": "[B]"}))
    expected = joint_distribution(accept_all, ROUND)
    assert found.method == "coins"
    assert found.probabilities == pytest.approx(dict(expected.probabilities), abs=1e-14)


@pytest.mark.parametrize(
    "program",
    [
        lambda g: torch.multinomial(WEIGHTS, 1, generator=g),
        lambda g: torch.multinomial(WEIGHTS, 1, generator=g)[None],
    ],
    ids=["[L]", "[B, L]"],
)
def test_a_program(program):
    assert joint_distribution(program).probabilities == {(0,): 0.25, (1,): 0.75}


def test_arguments_of_a_program():
    def program(weights, count, generator):
        return torch.multinomial(weights, count, replacement=True, generator=generator)

    found = joint_distribution(program, (WEIGHTS, 2)).probabilities
    assert found == {(0, 0): 0.0625, (0, 1): 0.1875, (1, 0): 0.1875, (1, 1): 0.5625}


def test_a_program_that_draws_from_the_global_generator():
    found = joint_distribution(lambda: torch.multinomial(WEIGHTS, 1), generator=False)
    assert found.probabilities == {(0,): 0.25, (1,): 0.75}


def test_what_cannot_be_steered():
    with pytest.raises(CannotSteer, match=r"randn|normal|gt.*test_steer\.py"):
        joint_distribution(lambda g: (torch.randn(1, generator=g) > 0).long())


def test_float32_rounds():
    round = Round.random(3, 1, seed=2, dtype=torch.float32)
    found = joint_distribution(accept_all, round)
    assert abs(found.total - 1) < 1e-12
    assert compare_round(round, found.probabilities).total_variation > 0.01
