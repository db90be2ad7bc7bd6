"""Counts against distributions: the tests every comparison reports, and where it hurts."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specverify.certification.registry import Detectable, Outcome
from specverify.certification.seen_from import seen_tilt, seen_tv
from specverify.statistics.goodness import chi_squared, g_test
from specverify.statistics.result import TestResult
from specverify.statistics.small_samples import small_sample_p

SHOWN = 5

MOST_SIMULATED = 4096
"""Cells up to which small samples are simulated."""
DRAWS = 1_999
"""Tables that are simulated for them."""


@dataclass(frozen=True)
class Strata:
    """Observed counts and expected distributions, one array of cells a stratum."""

    counts: list[NDArray[np.int64]]
    laws: list[NDArray[np.float64]]
    label: Callable[[int, int], str]
    """What a cell of a stratum stands for, in words."""


def compare(
    strata: Strata,
    log_e: float,
    *,
    slack: float = 0.0,
    full: bool = True,
    boundaries: bool = False,
    what: str = "",
    log_threshold: float | None = None,
    learned: int | None = None,
) -> Outcome:
    """An e-process that decides, with chi-squared and G of the same counts beside it.

    Args:
        strata: observed counts and expected distributions.
        log_e: ln E of the e-process on these counts.
        slack: what a bet has to gain an observation before it counts, see `DecoderCase.slack`.
        full: whether anything but the decision is wanted.
        boundaries: see `Outcome`.
        what: whose total variation would have been seen, in words.
        log_threshold: ln E at which it rejects; None where that is not known.
        learned: shards that a `TiltProcess` has learned from; None for a Dirichlet e-process.
    """
    if not strata.counts:
        return Outcome(not_applicable="no run shows such a token")
    n = int(sum(counts.sum() for counts in strata.counts))
    cells = int(sum(np.count_nonzero(law) for law in strata.laws))
    test = TestResult.of_e_process(log_e - slack * n, n, cells=cells, strata=len(strata.laws))
    outcome = Outcome(tests=(test,), boundaries=boundaries)
    if not full:
        return outcome
    return replace(
        outcome,
        reported=_reported(strata),
        details={"worst": worst_cells(strata)},
        detectable=_seen(test, slack, what, log_threshold, learned),
    )


def _seen(
    test: TestResult, slack: float, what: str, log_threshold: float | None, learned: int | None
) -> Detectable | None:
    threshold = None if log_threshold is None else log_threshold + slack * test.n
    if learned is None:
        return seen_tv(test.n, test.cells, test.strata, threshold, what)
    return seen_tilt(test.n, test.cells, test.strata, threshold, what, learned)


def _reported(strata: Strata) -> tuple[TestResult, ...]:
    """Chi-squared and G on pooled cells; where pooling leaves nothing, G exact or simulated."""
    pooled = (chi_squared(strata.counts, strata.laws), g_test(strata.counts, strata.laws))
    if pooled[0].df or sum(len(law) for law in strata.laws) > MOST_SIMULATED:
        return pooled
    small = small_sample_p(strata.counts, strata.laws, seed=0, draws=DRAWS)
    return pooled if small is None else (small,)


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
