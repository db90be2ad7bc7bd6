"""Joint distributions held against the ones they should be."""

import math

import pytest

from specverify.certification.exact_evidence import Comparison, tolerance_of
from specverify.subjects.protocols import Capabilities, Subject

EXPECTED = {(0,): 0.5, (1, 0): 0.25, (1, 1): 0.25}


def test_runs_that_agree() -> None:
    compared = Comparison.of_runs(EXPECTED, EXPECTED, 0.0)
    assert (compared.total_variation, compared.largest_ratio) == (0.0, 1.0)
    assert (compared.outside_support, compared.worst) == ({}, ())


def test_runs_that_differ() -> None:
    compared = Comparison.of_runs({(0,): 0.5, (1, 0): 0.375, (1,): 0.125}, EXPECTED, 0.0)
    assert compared.total_variation == 0.25
    assert compared.largest_ratio == math.inf
    assert compared.outside_support == {(1,): 0.125}
    assert compared.worst[0] == ((1, 1), 0.0, 0.25)
    assert len(compared.worst) == 3


def test_crashes_may_have_been_right() -> None:
    crashed = Comparison.of_runs({(0,): 0.5, (1, 0): 0.25}, EXPECTED, 0.25)
    assert (crashed.total_variation, crashed.certain) == (0.25, 0.0)
    wrong = Comparison.of_runs({(0,): 0.75}, EXPECTED, 0.25)
    assert wrong.certain == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("coins", "float64", "tolerance"),
    [("float64", True, 1e-12), ("float64", False, 1e-6), ("float32", True, 1e-6)],
)
def test_tolerances(coins: str, float64: bool, tolerance: float) -> None:
    subject = Subject("mine", "rule", len, Capabilities(coin_dtype=coins))
    assert tolerance_of(subject, float64=float64) == tolerance
