"""Counts and expected probabilities of one or several strata, checked and brought to one shape."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specverify.errors import UsageError

OneOrMore: TypeAlias = ArrayLike | Sequence[ArrayLike]
"""One array [k], or several (a list, or the rows of [S, k]): one a stratum, k may differ."""

_SUM_TOLERANCE = 1e-6


class Stratum(NamedTuple):
    """Observations that share one distribution and whose number is fixed or conditioned on.

    counts [k] and probabilities [k], summing to n and to 1.
    """

    counts: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    n: int


def as_arrays(values: OneOrMore) -> list[NDArray]:
    """Split into one array a stratum; a single array [k] is a single stratum.

    What the entries are is not checked here. Several strata are a list, or the rows of [S, k].

    Args:
        values: one array [k], or several.

    Raises:
        UsageError: no array at all, or one of several that is not [k] with k >= 1.
    """
    items = list(values) if isinstance(values, Sequence | np.ndarray) else [values]
    if not items:
        raise UsageError("no cells were given; pass counts and probabilities of at least one cell")
    if np.ndim(items[0]) == 0:
        return [np.asarray(values)]
    arrays = [np.asarray(item) for item in items]
    for index, array in enumerate(arrays):
        if array.ndim != 1 or not len(array):
            raise UsageError(
                f"stratum {index} has shape {array.shape}; every stratum is one row of cells [k]"
            )
    return arrays


def as_probabilities(probabilities: OneOrMore) -> list[NDArray[np.float64]]:
    """Check the expected probabilities of every stratum and normalise them in float64.

    p / sum p: what rounding left of the sum goes, so that tests see a law.

    Args:
        probabilities: nonnegative [k], or one such array a stratum, each summing to 1 within 1e-6.

    Raises:
        UsageError: negative, infinite or NaN entries, or a sum further from 1.
    """
    rows = []
    for index, array in enumerate(as_arrays(probabilities)):
        row = array.astype(np.float64)
        total = float(row.sum())
        if not (np.isfinite(row).all() and (row >= 0).all() and abs(total - 1) <= _SUM_TOLERANCE):
            raise UsageError(
                f"probabilities of stratum {index} are no distribution (sum {total!r}, smallest "
                f"entry {float(row.min())!r}); pass float64 probabilities that sum to 1"
            )
        rows.append(row / total)
    return rows


def as_strata(counts: OneOrMore, probabilities: OneOrMore) -> list[Stratum]:
    """Pair counts with expected probabilities, n = sum of the counts a stratum.

    Both are checked, and probabilities normalised; cells of probability 0 stay in.

    Args:
        counts: whole, nonnegative numbers [k], or one such array a stratum.
        probabilities: of the same shapes; see `as_probabilities`.

    Raises:
        UsageError: shapes differ, counts are negative or not whole, or see `as_probabilities`.
    """
    observed, expected = as_arrays(counts), as_probabilities(probabilities)
    if [len(row) for row in observed] != [len(row) for row in expected]:
        raise UsageError(
            f"counts have {[len(row) for row in observed]} cells a stratum, probabilities "
            f"{[len(row) for row in expected]}; they must match cell by cell"
        )
    strata = []
    for index, (row, law) in enumerate(zip(observed, expected, strict=True)):
        whole = row.astype(np.int64)
        if not np.array_equal(whole, row) or (whole < 0).any():
            offending = float(row[(whole != row) | (whole < 0)][0])
            raise UsageError(
                f"counts of stratum {index} include {offending!r}; "
                "counts are whole and nonnegative (multiply frequencies by n)"
            )
        strata.append(Stratum(whole, law, int(whole.sum())))
    return strata
