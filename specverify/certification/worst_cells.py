"""Counts against distributions: the two tests every comparison reports, and where it hurts."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specverify.certification.registry import Outcome
from specverify.statistics.goodness import chi_squared, g_test

SHOWN = 5


def compare(strata: tuple[list[NDArray[np.int64]], list[NDArray[np.float64]]]) -> Outcome:
    """Chi-squared and G of observed counts against expected distributions, by stratum.

    Args:
        strata: counts and probabilities, one array of cells a stratum.
    """
    counts, laws = strata
    if not counts:
        return Outcome(not_applicable="no run shows such a token")
    return Outcome(
        tests=(chi_squared(counts, laws), g_test(counts, laws)),
        details={"worst": worst_cells(counts, laws)},
    )


def worst_cells(
    counts: list[NDArray[np.int64]], laws: list[NDArray[np.float64]]
) -> list[dict[str, Any]]:
    """The cells furthest from their expected count, in standard deviations.

    Returns:
        For each its stratum and cell index, the observed and the expected count.
    """
    found = []
    for stratum, (observed, law) in enumerate(zip(counts, laws, strict=True)):
        n = observed.sum()
        expected = n * law
        deviation = np.abs(observed - expected) / np.sqrt(np.maximum(expected * (1 - law), 1.0))
        for cell in np.argsort(-deviation, kind="stable")[:SHOWN]:
            found.append((float(deviation[cell]), stratum, int(cell)))
    found.sort(key=lambda item: (-item[0], item[1:]))
    return [
        {
            "stratum": stratum,
            "cell": cell,
            "observed": int(counts[stratum][cell]),
            "expected": round(float(counts[stratum].sum() * laws[stratum][cell]), 2),
        }
        for _, stratum, cell in found[:SHOWN]
    ]
