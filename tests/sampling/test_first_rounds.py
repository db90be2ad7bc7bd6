"""First rounds: how many draft tokens they accepted."""

import numpy as np

from specverify.sampling.first_rounds import FirstRounds

GROUPS, V = 3, 4


def test_accepted_counts_add_up():
    rounds = FirstRounds(GROUPS, V)
    rounds.count_accepted(np.array([0, 2, 2, 1]))
    rounds.count_accepted(np.array([2]))
    assert rounds.accepted == {0: 1, 1: 1, 2: 3}
