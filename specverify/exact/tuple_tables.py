"""Distributions over token tuples of at most K+1 tokens as arrays, one for each length."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from specverify.exact.joint import Joint, Tokens

Table: TypeAlias = NDArray[np.float64]
"""Masses of all tuples of n tokens, [V^n]: entry c is that of the tuple whose tokens are the digits
of c in base V, the first the most significant."""

Rows: TypeAlias = Callable[[int], NDArray[np.float64]]
"""Number of tokens n to the next-token distributions after all tuples of n tokens, [V^n, V]."""


def to_dict(table: Table, length: int, vocab_size: int) -> dict[Tokens, float]:
    """The positive entries of the table for `length` tokens, by tuple."""
    codes = np.flatnonzero(table > 0)
    return dict(zip(tuples(codes, length, vocab_size), table[codes].tolist(), strict=True))


def tuples(codes: NDArray[np.int64], length: int, vocab_size: int) -> list[Tokens]:
    """The tuples of `length` tokens, at least 1, that have these codes."""
    powers = vocab_size ** np.arange(length - 1, -1, -1)
    return list(zip(*(codes // powers[:, None] % vocab_size).tolist(), strict=True))


def from_dict(
    masses: Joint, vocab_size: int, max_length: int
) -> tuple[list[Table], dict[Tokens, float]]:
    """Tables for 1 to `max_length` tokens, and what fits into none of them.

    Returns:
        The tables; the tuples of positive mass that are empty, longer than `max_length`, or hold a
        token outside 0 to V - 1.
    """
    tables = [np.zeros(vocab_size**length) for length in range(1, max_length + 1)]
    unfit: dict[Tokens, float] = {}
    by_length: dict[int, list[Tokens]] = {}
    for tokens, mass in masses.items():
        if mass <= 0:
            continue
        if 1 <= len(tokens) <= max_length:
            by_length.setdefault(len(tokens), []).append(tokens)
        else:
            unfit[tokens] = mass
    for length, group in by_length.items():
        tokens = np.array(group, np.int64)
        values = np.array([masses[key] for key in group])
        fits = ((tokens >= 0) & (tokens < vocab_size)).all(1)
        codes = tokens @ vocab_size ** np.arange(length - 1, -1, -1)
        tables[length - 1][codes[fits]] = values[fits]
        unfit |= {group[i]: float(values[i]) for i in np.flatnonzero(~fits)}
    return tables, unfit


def autoregressive_table(length: int, rows: Rows) -> Table:
    """Masses of all sequences of `length` tokens drawn one by one."""
    whole = np.ones(1)
    for depth in range(length):
        whole = (whole[:, None] * rows(depth)).reshape(-1)
    return whole


def completed_table(tables: Sequence[Table], rows: Rows) -> Table:
    """Continue the tuples of every table autoregressively to the length of the last one's.

    Args:
        tables: masses of tuples of 1, 2, ... tokens.
        rows: see `Rows`.
    """
    whole = tables[0]
    for length, table in enumerate(tables[1:], 1):
        whole = (whole[:, None] * rows(length)).reshape(-1) + table
    return whole
