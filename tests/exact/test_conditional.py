import numpy as np
import pytest

from specverify.errors import UsageError
from specverify.exact.conditional import checked_ends, checked_rows


def test_rows_are_normalised_in_float64():
    rows = checked_rows(np.full((2, 3), 1 / 3, dtype=np.float32), 2, 3)
    assert rows.dtype == np.float64
    assert np.abs(rows.sum(1) - 1).max() < 1e-15


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.ones((2, 1)), r"must return \[1, V\]"),
        (np.ones(3), "shape"),
        ([[0.5, 0.4]], "sum 0.9"),
        ([[1.5, -0.5]], "smallest -0.5"),
        ([[np.inf, 0.0]], "not logits"),
    ],
)
def test_what_is_no_distribution_is_refused(values, message):
    with pytest.raises(UsageError, match=message):
        checked_rows(values, 1)


def test_without_a_rule_nothing_ends():
    assert not checked_ends(None, np.zeros((3, 1), int)).any()


@pytest.mark.parametrize("answer", [True, [1, 0], [[True, False]]])
def test_ends_must_be_one_bool_a_prefix(answer):
    with pytest.raises(UsageError, match=r"must return bool \[2\]"):
        checked_ends(lambda prefixes: answer, np.zeros((2, 1), int))
