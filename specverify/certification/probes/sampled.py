"""Deciding a probe by samples, where what is emitted cannot be computed."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specverify.certification.registry import Outcome
from specverify.statistics.dirichlet import log_dirichlet
from specverify.statistics.result import TestResult

SHOWN = 3


def sampled_outcome(
    counts: Sequence[NDArray[np.int64]], laws: Sequence[NDArray[np.float64]], what: str
) -> Outcome:
    """Hold counts against their laws, one pair a stratum.

    A Dirichlet e-process (`statistics.dirichlet`). A cell that the target excludes is a violation
    by itself: the few thousand samples of a probe meet a coin of exactly 0 with probability 1e-3 at
    most, and then it is to be looked at.

    Args:
        counts: int [cells] of each stratum.
        laws: float64 [cells], each summing to 1.
        what: the input in words.
    """
    impossible = sum(int(c[p == 0].sum()) for c, p in zip(counts, laws, strict=True))
    n = sum(int(c.sum()) for c in counts)
    violations = ()
    if impossible:
        violations = (f"{what}: {impossible} of {n:,} samples are impossible for the target",)
    result = TestResult.of_e_process(
        log_dirichlet(list(counts), list(laws)),
        n,
        cells=sum(int((p > 0).sum()) for p in laws),
        strata=len(laws),
        impossible=impossible,
    )
    return Outcome(tests=(result,), violations=violations, details={"worst": _worst(counts, laws)})


def _worst(
    counts: Sequence[NDArray[np.int64]], laws: Sequence[NDArray[np.float64]]
) -> list[dict[str, float]]:
    cells = []
    for stratum, (observed, law) in enumerate(zip(counts, laws, strict=True)):
        expected = law * observed.sum()
        for cell in np.argsort(-np.abs(observed - expected))[:SHOWN]:
            found = {"observed": int(observed[cell]), "expected": float(expected[cell])}
            cells.append({"stratum": stratum, "cell": int(cell), **found})
    return cells
