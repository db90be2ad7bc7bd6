"""Counts of cells against a law, of which some are impossible: one e-process for both."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specverify.statistics.dirichlet import log_dirichlet
from specverify.statistics.support import support_e_value


def impossible_hits(
    counts: Sequence[NDArray[np.int64]], laws: Sequence[NDArray[np.float64]]
) -> int:
    """Observations in cells of probability 0, over all strata: sum of N_b where P_b = 0."""
    return sum(int(c[law == 0].sum()) for c, law in zip(counts, laws, strict=True))


def log_cells(
    counts: Sequence[NDArray[np.int64]],
    laws: Sequence[NDArray[np.float64]],
    tokens: int,
    *,
    dtype: str,
    hits: int | None = None,
) -> float:
    """Logarithm of an e-value that counts have the given laws, but for coins that are exactly 0.

    E = (E_possible + E_impossible) / 2: `dirichlet.log_dirichlet` on the cells with P > 0, and
    `support.support_e_value` on hits of the others. A right implementation that accepts where
    u <= p/q emits an impossible token when its coin is exactly 0 (statistics.md section 6); a few
    of those are explained, and a rate above that is bet against.

    Validity: a mean of two e-processes is one, so P(sup E >= 1/alpha) <= alpha at every look, with
    the strata fixed before what they count. An observation may be several tokens, of which the
    first impossible one counts: those after it are counted as tokens without a hit, which only
    lowers E.

    Args:
        counts: int [cells] of each stratum.
        laws: float64 [cells] of each stratum.
        tokens: drawn in all observations, each of which could have been an impossible one.
        dtype: of the uniforms the implementation draws.
        hits: impossible tokens, where cells of several laws were put together; those in cells of
            probability 0 when omitted.

    Returns:
        ln E.

    Raises:
        UsageError: invalid counts or laws, more hits than tokens, or an unknown dtype.
    """
    possible = log_dirichlet(list(counts), list(laws)) if len(counts) else 0.0
    hits = impossible_hits(counts, laws) if hits is None else hits
    impossible = support_e_value(hits, tokens, dtype=dtype).statistic
    return float(np.logaddexp(possible, impossible)) - math.log(2)
