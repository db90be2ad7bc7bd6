"""Whether ranks of one law are independent: of rows in a call, or of calls."""

import math
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from specverify.certification.registry import Detectable, Outcome
from specverify.certification.seen_from import seen_tv, threshold_of
from specverify.statistics.dirichlet import log_dirichlet
from specverify.statistics.result import TestResult

SHOWN = 8


def tuples_apart(
    ranks: NDArray[np.int64], law: NDArray[np.float64], apart: int, size: int = 2
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Counts of the ranks of rows `apart` from each other at the same place, with their law.

    Rows are used once: of every `size * apart` rows in order, row r goes with r + apart and so on.
    The ranks of a right subject are independent draws from `law`, so the tuples are independent
    draws from its product.

    Args:
        ranks: int [R, L], -1 where there is none.
        law: float64 [V].
        apart: distance.
        size: rows compared.

    Returns:
        Counts and law, both [V^size].
    """
    first = np.flatnonzero(np.arange(len(ranks)) // apart % size == 0)
    first = first[first + (size - 1) * apart < len(ranks)]
    cells = np.zeros((len(first), ranks.shape[1]), np.int64)
    there = np.ones(cells.shape, np.bool_)
    product = np.ones(1)
    for step in range(size):
        part = ranks[first + step * apart]
        there &= part >= 0
        cells = cells * len(law) + part.clip(0)
        product = (product[:, None] * law).reshape(-1)
    return np.bincount(cells[there], minlength=len(product)), product


def comparisons(rows: int) -> Iterator[tuple[str, int, int]]:
    """Name, distance and size of the tuples of so many rows that are worth a look."""
    for apart in (*range(1, 9), 12, 16, 24, 32, 48):
        if 2 * apart <= rows:
            yield f"{apart} apart", apart, 2
    if rows >= 3:
        yield "three in a row", 1, 3


def mixed_outcome(
    components: Mapping[str, tuple[list[NDArray[np.int64]], list[NDArray[np.float64]]]],
    n: int,
    share: float,
) -> Outcome:
    """One e-process for several ways of looking at the same ranks: the mean of theirs.

    Args:
        components: counts and laws, a pair for each stratum, by name.
        n: ranks looked at.
        share: of the budget, see `Trial.share`.
    """
    log_e = {name: log_dirichlet(counts, laws) for name, (counts, laws) in components.items()}
    mean = float(np.logaddexp.reduce(list(log_e.values()))) - math.log(len(log_e))
    largest = dict(sorted(log_e.items(), key=lambda item: -item[1])[:SHOWN])
    test = TestResult.of_e_process(mean, n, cells=len(log_e))
    return Outcome(
        tests=(test,),
        details={"components": largest},
        detectable=_first_seen(components, threshold_of(share)),
    )


def _first_seen(
    components: Mapping[str, tuple[list[NDArray[np.int64]], list[NDArray[np.float64]]]],
    threshold: float | None,
) -> Detectable | None:
    """The smallest deviation that one way of looking would have shown by itself."""
    if threshold is None:
        return None
    found = []
    for name, (counts, laws) in components.items():
        seen = int(sum(part.sum() for part in counts))
        cells = int(sum(np.count_nonzero(law) for law in laws))
        known = seen_tv(seen, cells, len(laws), threshold + math.log(len(components)), name)
        if known is not None:
            found.append(known)
    return min(found, key=lambda known: known.value, default=None)
