"""Deciding a probe by samples, where what is emitted cannot be computed."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from specverify.certification.registry import Outcome
from specverify.certification.seen_from import HALF, threshold_of
from specverify.certification.worst_cells import Strata, compare
from specverify.exact.prefix_tree import ENDED_EARLY, ENDED_LATE
from specverify.statistics.cells import impossible_hits, log_cells


def sampled_outcome(
    counts: Sequence[NDArray[np.int64]],
    laws: Sequence[NDArray[np.float64]],
    what: str,
    *,
    tokens: int,
    coin_dtype: str,
    share: float = 0.0,
    violations: tuple[str, ...] = (),
) -> Outcome:
    """Hold counts against their laws, one pair a stratum.

    One e-process (`statistics.cells`) decides; chi-squared and G are reported beside it. What the
    target excludes is a finding until there is more of it than coins of exactly 0 explain.

    Args:
        counts: int [cells] of each stratum.
        laws: float64 [cells], each summing to 1.
        what: the input in words.
        tokens: of a sample, at most.
        coin_dtype: of the subject's uniforms.
        share: of the budget, see `Trial.share`.
        violations: what is wrong whatever the counts are, see `wrong_ends`.
    """
    impossible = impossible_hits(counts, laws)
    n = sum(int(c.sum()) for c in counts)
    findings = ()
    if impossible:
        findings = (
            f"{what}: {impossible} of {n:,} samples are impossible for the target; coins of "
            "exactly 0, accepted by u <= p/q, explain a few",
        )
    strata = Strata(list(counts), list(laws), lambda stratum, cell: f"outcome {cell} of {stratum}")
    log_e = log_cells(counts, laws, n * tokens, dtype=coin_dtype)
    threshold = threshold_of(share)
    outcome = compare(
        strata,
        log_e,
        what="what is emitted",
        log_threshold=None if threshold is None else threshold + HALF,
    )
    return replace(outcome, findings=findings, violations=violations)


def wrong_ends(tokens: NDArray[np.int64], cells: NDArray[np.int64], what: str) -> tuple[str, ...]:
    """Runs that end in the wrong place, in words; no coin explains one of them.

    Args:
        tokens: of the runs, [N, L], padded right with -1.
        cells: [N], as `PrefixTree.locate` finds them.
        what: the input in words.
    """
    wrong = np.flatnonzero(np.isin(cells, (ENDED_EARLY, ENDED_LATE)))
    if not len(wrong):
        return ()
    example = tokens[wrong[0]]
    return (
        f"{what}: {len(wrong):,} of {len(cells):,} runs end in the wrong place, e.g. "
        f"{example[example >= 0].tolist()}",
    )
