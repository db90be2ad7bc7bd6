"""The two callables that define a run's distribution, and the checks on what they return."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specverify.errors import UsageError

Conditional: TypeAlias = Callable[[NDArray[np.int64]], ArrayLike]
"""Prefixes int64 [N, t] (without the prompt) to next-token distributions float64 [N, V]."""

IsEnd: TypeAlias = Callable[[NDArray[np.int64]], ArrayLike]
"""Prefixes int64 [N, t], t >= 1, to bool [N]: whether a run stops right after that prefix."""


def checked_rows(
    values: ArrayLike, rows: int, vocab_size: int | None = None
) -> NDArray[np.float64]:
    """Normalise what a conditional returned, [rows, V]; raise `UsageError` if it is no such."""
    probs = np.asarray(values, np.float64)
    if probs.ndim != 2 or len(probs) != rows or (vocab_size or probs.shape[1]) != probs.shape[1]:
        raise UsageError(
            f"conditional returned shape {probs.shape} for {rows} prefixes; it must return "
            f"[{rows}, {vocab_size or 'V'}]"
        )
    totals = probs.sum(1)
    bad = ~((probs >= 0).all(1) & (np.abs(totals - 1) <= 1e-6))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise UsageError(
            f"conditional returned a row that is no distribution (row {row}, sum "
            f"{float(totals[row])!r}, smallest {float(probs[row].min())!r}); return float64 "
            "probabilities, not logits"
        )
    return probs / totals[:, None]


def checked_ends(is_end: IsEnd | None, prefixes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Ask the stopping rule about prefixes [N, t]; raise `UsageError` on another shape."""
    if is_end is None or not len(prefixes):
        return np.zeros(len(prefixes), np.bool_)
    ends = np.asarray(is_end(prefixes))
    if ends.shape != (len(prefixes),) or ends.dtype != np.bool_:
        raise UsageError(
            f"is_end returned {ends.dtype} of shape {ends.shape} for {len(prefixes)} prefixes; "
            f"it must return bool [{len(prefixes)}]"
        )
    return ends
