import math

import numpy as np
import pytest
from scipy import stats

from specverify.errors import UsageError
from specverify.statistics.budget import Budget, combined, holm, mean_log_e, product_log_e


def test_shares_are_equal_and_add_up_to_alpha():
    budget = Budget(alpha=1e-6, tests=400)
    assert budget.share == 2.5e-9
    assert budget.share * budget.tests == pytest.approx(1e-6)


def test_rejects_at_its_share():
    budget = Budget(alpha=0.01, tests=4)
    assert budget.rejects(0.0025)
    assert not budget.rejects(0.0026)


def test_a_share_can_be_split_further():
    part = Budget(alpha=1e-6, tests=10).split(5)
    assert part.share == pytest.approx(1e-6 / 50)


@pytest.mark.parametrize("arguments", [{"alpha": 0.0}, {"alpha": 1.0}, {"tests": 0}])
def test_invalid_budgets_are_refused(arguments):
    with pytest.raises(UsageError):
        Budget(**arguments)


def test_an_e_process_rejects_at_tests_over_alpha():
    assert Budget(alpha=1e-6, tests=400).log_threshold == pytest.approx(math.log(4e8))
    budget = Budget(alpha=0.01, tests=4)
    assert budget.rejects(math.exp(-budget.log_threshold - 1e-9))
    assert not budget.rejects(math.exp(-budget.log_threshold + 1e-6))


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_holm_keeps_the_family_error_and_rejects_more_than_bonferroni():
    """Three true hypotheses beside two false ones: unadjusted, an alarm in 14 % of the runs."""
    rng = np.random.default_rng(0)
    p = np.column_stack([rng.random((4_000, 3)), rng.random((4_000, 2)) / 60])
    adjusted = np.array([holm(row.tolist()) for row in p])
    alarms = int((adjusted[:, :3] <= 0.05).any(axis=1).sum())
    assert stats.binom.sf(alarms - 1, 4_000, 0.05) > 1e-3
    assert (p[:, :3] <= 0.05).any(axis=1).mean() > 0.12
    assert ((adjusted <= 0.05) >= (p <= 0.01)).all()
    assert (adjusted <= 0.05).sum() > (p <= 0.01).sum()


def test_the_mean_counts_tests_not_run_as_one():
    assert mean_log_e([math.log(7)], 4) == pytest.approx(math.log(10 / 4))
    assert mean_log_e([math.log(7), -math.inf], 2) == pytest.approx(math.log(3.5))
    assert mean_log_e([], 3) == pytest.approx(0.0)
    assert mean_log_e([5_000.0, 0.0], 2) == pytest.approx(5_000 - math.log(2))


def test_the_product_adds_logs():
    assert product_log_e([1.0, 2.5, -0.5]) == pytest.approx(3.0)
    assert product_log_e([]) == 0.0


def test_both_together_are_half_and_half():
    value = combined([math.log(8), 0.0], [math.log(4), math.log(3)], 2)
    assert value == pytest.approx(math.log((4.5 + 12) / 2))


def e_values(rng, shape):
    """Log likelihood ratios of N(1, 1) to N(0, 1) under N(0, 1): means of exactly 1."""
    return rng.normal(size=shape) - 0.5


def test_false_alarms_of_the_combinations():
    """The same tokens in all tests: the mean keeps its level; a product of them would not."""
    rng = np.random.default_rng(1)
    cases = e_values(rng, (4_000, 6))
    tests = np.repeat(cases, 3, axis=1)
    for alpha in (0.1, 0.02):
        level = -math.log(alpha)
        mean = sum(mean_log_e(row.tolist(), 20) >= level for row in tests)
        product = sum(product_log_e(row.tolist()) >= level for row in cases)
        both = sum(
            combined(test.tolist(), case.tolist(), 20) >= level
            for test, case in zip(tests, cases, strict=True)
        )
        for alarms in (mean, product, both):
            assert stats.binom.sf(alarms - 1, 4_000, alpha) > 1e-3
    dependent = np.repeat(0.5 * rng.normal(size=(4_000, 1)) - 0.125, 8, axis=1)
    wrong = sum(product_log_e(row.tolist()) >= -math.log(0.1) for row in dependent)
    assert wrong > 0.15 * 4_000


@pytest.mark.parametrize(
    "call",
    [
        lambda: holm([0.1, 1.5]),
        lambda: holm([math.nan]),
        lambda: mean_log_e([0.0, 0.0], 1),
        lambda: mean_log_e([], 0),
        lambda: product_log_e([math.nan]),
        lambda: product_log_e([math.inf, -math.inf]),
    ],
)
def test_invalid_values_are_refused(call):
    with pytest.raises(UsageError):
        call()
