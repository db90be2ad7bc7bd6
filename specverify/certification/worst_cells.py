"""Counts against distributions: the two tests every comparison reports, and where it hurts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specverify.certification.registry import Outcome
from specverify.statistics.goodness import chi_squared, g_test

SHOWN = 5


@dataclass(frozen=True)
class Strata:
    """Observed counts and expected distributions, one array of cells a stratum."""

    counts: list[NDArray[np.int64]]
    laws: list[NDArray[np.float64]]
    label: Callable[[int, int], str]
    """What a cell of a stratum stands for, in words."""


def compare(strata: Strata) -> Outcome:
    """Chi-squared and G of observed counts against expected distributions."""
    if not strata.counts:
        return Outcome(not_applicable="no run shows such a token")
    return Outcome(
        tests=(chi_squared(strata.counts, strata.laws), g_test(strata.counts, strata.laws)),
        certain=all(np.count_nonzero(law) == 1 for law in strata.laws),
        details={"worst": worst_cells(strata)},
    )


def worst_cells(strata: Strata) -> list[dict[str, Any]]:
    """The cells furthest from their expected count, in standard deviations.

    Returns:
        For each its stratum and cell index, what it stands for, the observed and the expected
        count.
    """
    found = []
    for stratum, (observed, law) in enumerate(zip(strata.counts, strata.laws, strict=True)):
        expected = observed.sum() * law
        deviation = np.abs(observed - expected) / np.sqrt(np.maximum(expected * (1 - law), 1.0))
        for cell in np.argsort(-deviation, kind="stable")[:SHOWN]:
            found.append((float(deviation[cell]), stratum, int(cell)))
    found.sort(key=lambda item: (-item[0], item[1:]))
    return [
        {
            "stratum": stratum,
            "cell": cell,
            "label": strata.label(stratum, cell),
            "observed": int(strata.counts[stratum][cell]),
            "expected": round(float(strata.counts[stratum].sum() * strata.laws[stratum][cell]), 2),
        }
        for _, stratum, cell in found[:SHOWN]
    ]
