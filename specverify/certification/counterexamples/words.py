"""Numbers and tokens for a reader: halves and quarters, not 0.5 and 0.25."""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

from specverify.exact.programs import SEPARATOR

_LARGEST_DENOMINATOR = 64
_CLOSE = 1e-9


def number(value: float) -> str:
    """A fraction where it is one of small denominator, else six digits."""
    if math.isinf(value):
        return str(value)
    near = Fraction(value).limit_denominator(_LARGEST_DENOMINATOR)
    if abs(float(near) - value) < _CLOSE and (near or not value):
        return str(near)
    return f"{value:.6g}"


def row(values: Iterable[float]) -> str:
    """Probabilities in parentheses."""
    return f"({', '.join(map(number, values))})"


def rows(table: Sequence[Sequence[float]], prefixes: Sequence[Sequence[int]]) -> str:
    """Rows after prefixes; a single one where all are the same."""
    if all(tuple(entry) == tuple(table[0]) for entry in table):
        return row(table[0])
    return ", ".join(
        f"{row(entry)} after {tokens(prefix)}"
        for entry, prefix in zip(table, prefixes, strict=True)
    )


def tokens(sequence: Sequence[int]) -> str:
    """`0`, `0 1`, or `0 1 | 1 0` for two rows of a batch."""
    return " ".join("|" if token == SEPARATOR else str(token) for token in sequence) or "nothing"
