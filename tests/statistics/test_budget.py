import pytest

from specverify.errors import UsageError
from specverify.statistics.budget import Budget


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
