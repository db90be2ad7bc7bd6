"""Which tokens end a first round, and the distribution each is held against."""

import numpy as np
import pytest
import torch

from specverify.certification.conditional import correction_distribution
from specverify.certification.contexts import MOST_ENTRIES
from specverify.certification.round_ends import (
    count_first_rounds,
    new_first_rounds,
    round_end_label,
)
from specverify.models.table import TableModel

V, K = 4, 2


def counted(case, rows, accepted, drafted, *, algorithm="token", prompt=1):
    """First rounds of runs of one prompt."""
    width = max(map(len, rows))
    tokens = torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows])
    rounds = new_first_rounds(case)
    laws = case.laws(prompt, tokens[:, : case.length])
    count_first_rounds(
        rounds,
        case,
        algorithm,
        prompt,
        tokens,
        laws,
        torch.tensor(accepted),
        None if drafted is None else torch.tensor(drafted),
    )
    return rounds


def found(tally, case):
    """Observed tokens by their context in words."""
    groups, counts, _ = tally.strata()
    return {
        (round_end_label(case, int(group)), token): int(count)
        for group, row in zip(groups, counts, strict=True)
        for token, count in enumerate(row)
        if count
    }


def test_the_token_that_ends_a_round_goes_where_it_belongs(case):
    rows = [[0, 1, 1, 2], [0, 1, 0, 3], [1, 0, 0, 0], [0, 0, 1, 1], [0, 2], [2]]
    #       correction    bonus         correction    bonus         hidden  hidden
    made = case()
    rounds = counted(made, rows, [1, 2, 0, 1, 2, 1], [2, 2, 2, 1, 2, 2], algorithm="match")
    assert found(rounds.corrections, made) == {
        ("after ..., 3, 0", 1): 1,
        ("after ..., 2, 3", 1): 1,
    }
    assert found(rounds.bonuses, made) == {("after ..., 0, 1", 0): 1, ("after ..., 3, 0", 0): 1}
    assert rounds.accepted == {0: 1, 1: 3, 2: 2}
    assert rounds.judged_corrections == 2


def test_each_has_the_law_of_its_own_context(case):
    made = case()
    rounds = counted(made, [[0, 1, 1, 2], [2, 1, 0, 3]], [1, 2], [2, 2])
    prefix = np.array([[0]])
    p, q = made.target_forced[1](prefix), made.draft_forced[1](prefix)
    _, _, laws = rounds.corrections.strata()
    expected = correction_distribution("token", p[:, None], q[:, None], prefix)[0]
    np.testing.assert_allclose(laws[0], expected)
    _, _, laws = rounds.bonuses.strata()
    np.testing.assert_allclose(laws[0], made.target_forced[1](np.array([[2, 1]]))[0])


def test_without_the_number_offered_only_full_acceptance_is_certain(case):
    """A short block near the length limit, or by a schedule, looks like a rejection."""
    made = case()
    rounds = counted(made, [[0, 1, 1, 2], [0, 1, 0, 3]], [1, 2], None)
    assert found(rounds.corrections, made) == {}
    assert sum(found(rounds.bonuses, made).values()) == 1


def test_stops_inside_the_block_in_a_batch_narrower_than_the_block(case):
    rounds = counted(case(), [[2]], [2], [2])
    assert not rounds.bonuses.observed.any()
    assert rounds.accepted == {2: 1}


def test_a_run_beyond_the_length_limit(case):
    made = case(length=2)
    rounds = counted(made, [[0, 1, 2, 3, 0]], [2], [2])
    assert not rounds.bonuses.observed.any()


def test_an_undeclared_algorithm_is_only_counted(case):
    rounds = counted(case(), [[0, 1, 1, 2]], [1], [2], algorithm=None)
    assert rounds.accepted == {1: 1}
    assert not rounds.corrections.observed.any()


def test_excluded_corrections_of_the_token_rule(case):
    made = case()
    p, q = made.first_token(1), made.draft_forced[1](np.zeros((1, 0), np.int64))[0]
    assert 0 < (p < q).sum() < V
    for token in range(V):
        rounds = counted(made, [[token, 0, 0, 0]], [0], [2])
        assert rounds.excluded_corrections == int(p[token] < q[token])


@pytest.mark.parametrize("vocab_size", [1, 2, 8, 63, 64, 200, 5000])
def test_groups_stay_few_for_any_vocabulary(case, vocab_size):
    table = TableModel.random(vocab_size, 0, seed=0)
    rounds = new_first_rounds(case(target=table, prompts=((0,),)))
    corrections = rounds.corrections
    assert 1 <= corrections.groups * corrections.vocab_size <= MOST_ENTRIES
