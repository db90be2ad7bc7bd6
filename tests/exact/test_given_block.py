"""Closed forms for a given block, against those over all blocks and against a rule itself."""

import numpy as np
import pytest

from specverify.errors import UsageError
from specverify.exact.enumerate import round_distribution
from specverify.exact.given_block import emission_given_block
from specverify.exact.programs import program_distribution
from specverify.exact.round import Round
from specverify.verification.block import BLOCK
from specverify.verification.match import MATCH
from specverify.verification.token import TOKEN

ALGORITHMS = ("greedy", "token", "block", "match")


def given(algorithm, round):
    blocks, q, p = round.inputs(round.blocks)
    return emission_given_block(algorithm, blocks.numpy(), q.numpy(), p.numpy())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("size", "count"), [(2, 1), (3, 2), (4, 3)])
def test_blocks_together_are_the_whole_round(algorithm, size, count):
    round = Round.random(size, count, seed=4)
    table = given(algorithm, round)
    assert table.sum((1, 2)) == pytest.approx(1.0, abs=1e-12)
    found = {}
    for block, mass, rows in zip(
        round.blocks.tolist(), round.block_probabilities, table, strict=True
    ):
        for accepted, row in enumerate(rows):
            for token, probability in enumerate(row):
                key = (*block[:accepted], token)
                found[key] = found.get(key, 0.0) + mass * probability
    expected = round_distribution(algorithm, round)
    for key in found.keys() | expected.keys():
        assert found.get(key, 0.0) == pytest.approx(expected.get(key, 0.0), abs=1e-12)


@pytest.mark.parametrize("rule", [TOKEN, BLOCK, MATCH], ids=lambda rule: rule.name)
def test_the_reference_rule_emits_it_for_each_block(rule):
    round = Round.random(3, 2, seed=9)
    table = given(rule.name, round)
    for row, block in enumerate(round.blocks):
        tokens, q, p = round.inputs(block[None])
        joint = program_distribution(lambda g, a=(tokens, q, p): rule(*a, g).tokens)
        for accepted in range(3):
            for token in range(3):
                key = (*block[:accepted].tolist(), token)
                assert joint.probabilities.get(key, 0.0) == pytest.approx(
                    table[row, accepted, token], abs=1e-12
                )


def test_equal_rows_leave_nothing_to_reject():
    p = np.full((1, 2, 2), 0.5)
    for algorithm in ("token", "block"):
        table = emission_given_block(algorithm, np.array([[1]]), p[:, :1], p)
        assert np.allclose(table, [[[0, 0], [0.5, 0.5]]])


def test_an_unknown_algorithm_is_refused():
    round = Round.random(2, 1)
    with pytest.raises(UsageError, match=r"no closed form for algorithm 'blok'.*block"):
        given("blok", round)
