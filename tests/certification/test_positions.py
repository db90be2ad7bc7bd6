"""Tokens by position, each with the distribution after its own prefix."""

import numpy as np
import torch

from specverify.certification.positions import count_positions, new_positions, position_label
from specverify.sampling.context_tally import ContextTally


def counted(case, rows, prompt=1) -> ContextTally:
    width = max(map(len, rows))
    tokens = torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows])
    tally = new_positions(case)
    probs = case.target_forced[prompt].along(tokens[:, : case.length])
    count_positions(tally, case, prompt, tokens, probs)
    return tally


def found(tally, case):
    groups, counts, _ = tally.strata()
    return {
        (position_label(case, int(group)), token): int(count)
        for group, row in zip(groups, counts, strict=True)
        for token, count in enumerate(row)
        if count
    }


def test_every_token_is_counted_once_where_it_stands(case):
    made = case()
    last = made.prompts[1][-1]
    assert found(counted(made, [[3, 0], [3, 1], [2]]), made) == {
        (f"as token 1 of a run, after ..., {last}", 3): 2,
        (f"as token 1 of a run, after ..., {last}", 2): 1,
        ("as token 2 of a run, after ..., 3", 0): 1,
        ("as token 2 of a run, after ..., 3", 1): 1,
    }


def test_each_has_the_law_after_its_own_prefix(case):
    made = case()
    groups, _, laws = counted(made, [[3, 0], [3, 1]]).strata()
    assert len(groups) == 2
    np.testing.assert_allclose(laws[0], made.first_token(1))
    np.testing.assert_allclose(laws[1], made.target_forced[1](np.array([[3]]))[0])


def test_what_follows_the_length_limit_is_not_looked_at(case):
    made = case()
    tally = counted(made, [[1] * (made.length + 3)])
    assert tally.observed.sum() == made.length
