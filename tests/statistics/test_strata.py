import numpy as np
import pytest

from specverify.errors import UsageError
from specverify.statistics.strata import as_strata


def test_one_array_is_one_stratum_and_rows_are_several():
    (single,) = as_strata([3, 5], [0.5, 0.5])
    assert single.n == 8
    assert single.counts.tolist() == [3, 5]
    rows = as_strata(np.array([[3, 5], [1, 0]]), np.full((2, 2), 0.5))
    assert [row.n for row in rows] == [8, 1]


def test_strata_may_differ_in_width():
    first, second = as_strata([[1, 2], [3, 4, 5]], [[0.5, 0.5], [0.2, 0.3, 0.5]])
    assert (first.n, second.n) == (3, 12)


def test_probabilities_are_normalised_in_float64():
    law = np.full(3, 1 / 3, dtype=np.float32)
    (stratum,) = as_strata([1, 1, 1], law)
    assert stratum.probabilities.dtype == np.float64
    assert stratum.probabilities.sum() == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize(
    ("counts", "probabilities", "message"),
    [
        ([1, 2], [0.4, 0.4], "sum 0.8"),
        ([1, 2], [1.5, -0.5], "smallest entry"),
        ([1, 2], [np.nan, 1.0], "no distribution"),
        ([1, 2, 3], [0.5, 0.5], "match cell by cell"),
        ([1, -2], [0.5, 0.5], "-2"),
        ([1, 0.5], [0.5, 0.5], "0.5"),
        ([], [], "no cells"),
        ([[1, 2], []], [[0.5, 0.5], []], "stratum 1"),
        (np.ones((1, 2, 2)), np.ones((1, 2, 2)), "shape"),
    ],
)
def test_invalid_input_names_the_value(counts, probabilities, message):
    with pytest.raises(UsageError, match=message):
        as_strata(counts, probabilities)
