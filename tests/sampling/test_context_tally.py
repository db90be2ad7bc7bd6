"""Counts of tokens beside the sum of their distributions, and the level of tests on them."""

import numpy as np
import pytest
from scipy.stats import kstest

from specverify.sampling.context_tally import ContextTally, DrawnTokens
from specverify.statistics.goodness import chi_squared, g_test

V, GROUPS = 4, 3


def ends(groups, tokens, laws):
    return DrawnTokens(np.array(groups), np.array(tokens), np.array(laws, np.float64))


def test_observed_and_expected_counts_by_hand():
    tally = ContextTally(GROUPS, V)
    a, b = [0.5, 0.5, 0, 0], [0.25, 0.25, 0.5, 0]
    tally.add(ends([0, 0, 2], [1, 2, 1], [a, b, a]))
    tally.add(ends([0], [0], [b]))
    groups, counts, laws = tally.strata()
    assert groups.tolist() == [0, 2]
    assert [row.tolist() for row in counts] == [[1, 1, 1, 0], [0, 1, 0, 0]]
    np.testing.assert_allclose(laws[0], [1 / 3, 1 / 3, 1 / 3, 0])
    np.testing.assert_allclose(laws[1], a)


def test_tokens_that_nothing_may_follow_are_left_out():
    tally = ContextTally(GROUPS, V)
    tally.add(ends([1, 1], [3, 0], [[0, 0, 0, 0], [1, 0, 0, 0]]))
    groups, counts, _ = tally.strata()
    assert (groups.tolist(), counts[0].tolist()) == ([1], [1, 0, 0, 0])


def test_nothing_counted():
    groups, counts, laws = ContextTally(GROUPS, V).strata()
    assert (len(groups), counts, laws) == (0, [], [])


class TestUnderTheNull:
    """Every token has a distribution of its own; adding them up must not accuse."""

    REPLICATES = 300
    TOKENS = 4000

    def p_values(self, rng, shift=0.0):
        groups = rng.integers(GROUPS, size=self.TOKENS)
        laws = rng.dirichlet(np.full(V, 0.5), size=self.TOKENS)
        drawn_from = (1 - shift) * laws + shift * np.eye(V)[0]
        tokens = (rng.random((self.TOKENS, 1)) > drawn_from.cumsum(1)).sum(1).clip(max=V - 1)
        tally = ContextTally(GROUPS, V)
        tally.add(DrawnTokens(groups, tokens, laws))
        _, counts, expected = tally.strata()
        return [test(counts, expected).p_value for test in (chi_squared, g_test)]

    def test_p_values_are_not_smaller_than_uniform(self):
        rng = np.random.default_rng(5)
        found = np.array([self.p_values(rng) for _ in range(self.REPLICATES)])
        for values in found.T:
            # One-sided: are they stochastically smaller than uniform?
            assert kstest(values, "uniform", alternative="greater").pvalue > 1e-3
            assert values.min() > 1e-4
            # They are larger, as the counts vary less than multinomial ones.
            assert values.mean() > 0.6

    def test_a_shift_is_still_seen(self):
        assert max(self.p_values(np.random.default_rng(6), shift=0.1)) < 1e-9

    @pytest.mark.parametrize("concentration", [0.5, 50.0])
    def test_equal_distributions_give_uniform_p_values(self, concentration):
        rng = np.random.default_rng(7)
        law = rng.dirichlet(np.full(V, concentration) + 1)
        values = []
        for _ in range(200):
            tally = ContextTally(1, V)
            tokens = rng.choice(V, size=2000, p=law)
            tally.add(DrawnTokens(np.zeros(2000, np.int64), tokens, np.tile(law, (2000, 1))))
            _, counts, expected = tally.strata()
            values.append(g_test(counts, expected).p_value)
        assert kstest(values, "uniform").pvalue > 1e-3
