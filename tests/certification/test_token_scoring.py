"""Scores of the tokens of a call, whether runs share the law they begin under or not."""

import numpy as np
import pytest
import torch

from specverify.certification.token_scoring import TokenScoring
from specverify.sampling.token_scores import TokenScores

RUNS = torch.tensor([[-1, -1, -1], [2, 0, 1], [1, 1, -1], [2, 3, 0], [-1, -1, -1], [0, -1, -1]])


@pytest.fixture
def made(case):
    return case(runs=12, num_draft_tokens=2)


def scores(made, rows: list[list[int]], *, recorded: bool = False) -> TokenScores:
    """What runs of the first prompt come to, scored in these groups, without a table."""
    found = made.new_scores()
    call = TokenScoring(made, found, None).open_call(
        RUNS, np.random.default_rng(0), recorded=recorded
    )
    for group in rows:
        index = torch.tensor(group, dtype=torch.long)
        call.add(index, 0, made.laws(0, RUNS[index]))
    call.close()
    return found


def test_groups_and_shared_laws_change_nothing(made) -> None:
    """Some groups are empty, and in some the first run has no token."""
    one_by_one = scores(made, [[row] for row in range(len(RUNS))])
    assert one_by_one.n.sum() == (RUNS >= 0).sum()
    for groups in ([[0, 1, 2, 3, 4, 5]], [[0, 4], [], [5, 3], [2, 1]]):
        for recorded in (False, True):
            found = scores(made, groups, recorded=recorded)
            np.testing.assert_array_equal(found.n, one_by_one.n)
            np.testing.assert_allclose(found.logs, one_by_one.logs, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(found.halves, one_by_one.halves, rtol=1e-9, atol=1e-12)
            np.testing.assert_array_equal(found.bins, one_by_one.bins)


def test_recorded_laws_are_those_of_each_run(made) -> None:
    """A subject may say it drew the first tokens of two runs from different laws."""
    index = torch.tensor([1, 3])
    laws = made.laws(0, RUNS[index])
    laws.p[1, 0] = torch.tensor([0.1, 0.2, 0.6, 0.1], dtype=torch.float64)
    apart, together = made.new_scores(), made.new_scores()
    for found, groups in ((apart, [[0], [1]]), (together, [[0, 1]])):
        call = TokenScoring(made, found, None).open_call(
            RUNS, np.random.default_rng(0), recorded=True
        )
        for group in groups:
            call.add(index[group], 0, laws[group])
        call.close()
    np.testing.assert_allclose(together.logs, apart.logs, rtol=1e-9, atol=1e-12)
