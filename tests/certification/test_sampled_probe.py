"""Counts of a probe: what coins of exactly 0 explain is no violation."""

import numpy as np
import pytest

from specverify.certification.probes.sampled import sampled_outcome

LAW = np.array([0.5, 0.3, 0.2, 0.0])
SHARE = 1e-9
"""Of the budget, about what a test of a run has."""


def outcome(hits: int, dtype: str, n: int = 20_000, tokens: int = 2):
    rest = np.round((n - hits) * LAW[:3]).astype(int)
    return sampled_outcome(
        [np.array([*rest, hits])], [LAW], "a run", tokens=tokens, coin_dtype=dtype
    )


@pytest.mark.parametrize(
    ("dtype", "hits"), [("float64", 0), ("float32", 1), ("float32", 2), ("bfloat16", 120)]
)
def test_a_few_hits_are_a_finding(dtype: str, hits: int) -> None:
    """Of bfloat16 coins 2^-9 are 0: with two comparisons a token 156 of 40,000 tokens."""
    found = outcome(hits, dtype)
    assert found.tests[0].p_value > SHARE
    assert not found.violations
    assert len(found.findings) == (hits > 0)


@pytest.mark.parametrize(
    ("dtype", "hits"), [("float64", 2), ("float32", 8), ("bfloat16", 600), ("float32", 9_000)]
)
def test_more_than_coins_explain_is_rejected(dtype: str, hits: int) -> None:
    assert outcome(hits, dtype).tests[0].p_value < SHARE


def test_what_is_possible_is_judged_too_and_usual_tests_are_beside() -> None:
    shifted = sampled_outcome(
        [np.array([10_600, 5_600, 3_800, 0])], [LAW], "a run", tokens=2, coin_dtype="float32"
    )
    assert shifted.tests[0].p_value < SHARE
    assert [test.name for test in shifted.reported] == ["chi-squared", "G"]


def test_false_alarms_with_coins_that_are_often_zero() -> None:
    """A right rule that accepts where u <= p/q, on half-width coins, at every level."""
    rng = np.random.default_rng(0)
    rate, n, repeats = 2 * (2.0**-9 + 2.0**-24), 2_000, 2_000
    hits = rng.binomial(n, rate, size=repeats)
    p_values = [outcome(int(h), "bfloat16", n, tokens=1).tests[0].p_value for h in hits]
    for alpha in (0.1, 0.01):
        assert np.mean(np.array(p_values) <= alpha) <= alpha
