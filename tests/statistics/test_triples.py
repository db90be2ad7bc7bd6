import numpy as np
import pytest

from specverify.errors import UsageError
from specverify.statistics.budget import Budget
from specverify.statistics.triples import Triple, smallest, triples

BUDGET = Budget(1e-6, 10)


def of(method: str, vocab_size: int = 8) -> Triple:
    return next(triple for triple in triples(vocab_size, BUDGET) if triple.method == method)


@pytest.mark.parametrize("vocab_size", [8, 1024])
def test_both_directions_agree(vocab_size):
    for triple in triples(vocab_size, BUDGET):
        n = triple.samples_needed(0.004)
        assert triple.detectable(n) == pytest.approx(0.004, rel=2e-3), triple.method
        # A hit more may be asked for at a larger n, so the rate is only about monotone.
        assert triple.detectable(4 * n) < 0.7 * 0.004, triple.method


def test_only_what_is_agnostic_pays_for_the_vocabulary():
    small, large = (triples(v, BUDGET) for v in (8, 1024))
    dearer = {
        a.method
        for a, b in zip(small, large, strict=True)
        if b.samples_needed(0.01) > a.samples_needed(0.01)
    }
    assert dearer == {
        "chi-squared or G",
        "Dirichlet e-process",
        "learned tilt",
        "homogeneity",
        "agnostic bound",
    }


def test_too_few_samples_see_nothing():
    for triple in triples(1024, BUDGET):
        found = triple.detectable(2)
        assert found is None or found > 0.99 or triple.method == "support"
    assert of("mixture e-process").samples_needed(0.4) is None
    assert of("independence").samples_needed(0.5) is None


def test_what_is_learned_waits_until_cells_are_filled():
    for method in ("Dirichlet e-process", "learned tilt"):
        assert of(method, 1024).detectable(5 * 1024 - 1) is None
        assert of(method, 1024).samples_needed(0.99) >= 5 * 1024


def test_smallest_inverts():
    assert smallest(lambda x: int(1 / x**2), 10_000, 1.0) == pytest.approx(0.01, rel=1e-3)
    assert smallest(lambda x: int(1 / x**2), 1, 0.5) is None
    assert smallest(lambda x: None, 10, 0.5) is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: triples(1, BUDGET),
        lambda: triples(8, BUDGET, overlap=1.0),
        lambda: triples(8, BUDGET, power=1.0),
        lambda: smallest(lambda x: 1, 0, 1.0),
    ],
)
def test_invalid_input_is_refused(call):
    with pytest.raises(UsageError):
        call()


def test_the_agnostic_prediction_is_for_the_hardest_law():
    from specverify.statistics.bounds import samples_needed

    zipf = 1 / np.arange(1, 65)
    even = of("agnostic bound", 64).samples_needed(0.01)
    assert samples_needed(zipf / zipf.sum(), 0.01, BUDGET.share / 8) < even
