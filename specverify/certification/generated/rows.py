"""Distributions and logits over one vocabulary."""

import itertools
import math
from functools import cache

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from torch import Tensor

from specverify.errors import UsageError

Row = tuple[float, ...]
"""Probabilities that sum to 1 exactly."""

DENOMINATORS = (1, 2, 4, 8)
"""Of simple rows: each is exact in every float format there is."""
_LISTED = 4
"""Vocabulary up to which simple rows are listed, the simplest first."""
_LARGEST_WEIGHT = 8
_MOST_SIZES = 6


@cache
def simple_rows(vocab_size: int, *, zeros: bool = False) -> tuple[Row, ...]:
    """Rows of eighths, the simplest first: small denominators, then few different numbers.

    Args:
        vocab_size: V, at most 4.
        zeros: whether rows with impossible tokens follow those without.

    Raises:
        UsageError: V is larger: there would be too many.
    """
    if vocab_size > _LISTED:
        raise UsageError(f"vocab_size={vocab_size}; rows are listed up to {_LISTED} tokens")
    found: dict[Row, tuple[bool, int, int]] = {}
    for denominator in DENOMINATORS:
        for weights in _compositions(denominator, vocab_size):
            row = tuple(weight / denominator for weight in weights)
            if (0 not in weights or zeros) and row not in found:
                found[row] = (0 in weights, denominator, len(set(weights)))
    return tuple(sorted(found, key=lambda row: found[row]))


def simplest_row(vocab_size: int) -> Row:
    """What rows without impossible tokens shrink to."""
    return simple_rows(vocab_size)[0] if vocab_size <= _LISTED else _filled([1] * vocab_size)


def _compositions(total: int, parts: int) -> list[tuple[int, ...]]:
    """All ways to write a number as a sum of so many whole numbers, larger ones first."""
    ways = itertools.product(range(total, -1, -1), repeat=parts - 1)
    return [(*head, total - sum(head)) for head in ways if sum(head) <= total]


def sizes(smallest: int = 2, largest: int = _MOST_SIZES) -> SearchStrategy[int]:
    """Numbers of tokens of a vocabulary."""
    return st.integers(smallest, largest)


def distributions(vocab_size: int | None = None, *, zeros: bool = True) -> SearchStrategy[Row]:
    """Probabilities that are whole numbers over a power of two; they shrink to halves and quarters.

    Args:
        vocab_size: V; drawn when omitted.
        zeros: whether tokens may be impossible.

    Raises:
        UsageError: V is below 1.
    """
    if vocab_size is None:
        return sizes().flatmap(lambda size: distributions(size, zeros=zeros))
    if vocab_size < 1:
        raise UsageError(f"vocab_size={vocab_size}; a distribution needs at least one token")
    if vocab_size <= _LISTED:
        return st.sampled_from(simple_rows(vocab_size, zeros=zeros))
    weights = st.lists(
        st.integers(0 if zeros else 1, _LARGEST_WEIGHT), min_size=vocab_size, max_size=vocab_size
    )
    return weights.map(_filled)


def _filled(weights: list[int]) -> Row:
    """Weights as they are, but for the first, which fills them up to a power of two."""
    total = 1 << math.ceil(math.log2(max(1, sum(weights))))
    first = weights[0] + total - sum(weights)
    return tuple(weight / total for weight in (first, *weights[1:]))


KINDS = ("dyadic", "tied", "zeros", "masked", "peaked", "any")
"""What rows of logits look like: logs of simple probabilities; values that repeat; all 0; some of
them -inf; one far above the others; anything finite."""


@st.composite
def logits(
    draw: DrawFn,
    vocab_size: int | None = None,
    *,
    kinds: tuple[str, ...] = KINDS,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """One row of logits [V], finite or -inf, with a finite entry at least.

    Args:
        draw: of Hypothesis.
        vocab_size: V; drawn when omitted.
        kinds: which of `KINDS` there may be.
        dtype: of the row.
    """
    size = draw(sizes()) if vocab_size is None else vocab_size
    kind = draw(st.sampled_from(kinds))
    if kind == "dyadic":
        row = torch.tensor(draw(distributions(size)), dtype=torch.float64).log()
    elif kind == "zeros":
        row = torch.zeros(size, dtype=torch.float64)
    elif kind == "tied":
        row = _entries(draw, size, st.sampled_from((0.0, 1.0, -1.0, 2.0)))
    elif kind == "peaked":
        row = _entries(draw, size, st.integers(-2, 2).map(float))
        row[draw(st.integers(0, size - 1))] = draw(st.sampled_from((10.0, 30.0, 200.0)))
    else:
        row = _entries(draw, size, st.integers(-16, 16).map(lambda entry: entry / 4))
    if kind == "masked":
        kept = draw(st.integers(0, size - 1))
        for token in range(size):
            if token != kept and draw(st.booleans()):
                row[token] = -torch.inf
    return row.to(dtype)


def _entries(draw: DrawFn, size: int, entries: SearchStrategy[float]) -> Tensor:
    values = draw(st.lists(entries, min_size=size, max_size=size))
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def logit_rows(
    draw: DrawFn,
    rows: int | None = None,
    vocab_size: int | None = None,
    *,
    kinds: tuple[str, ...] = KINDS,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Logits [B, V], each row of a kind of its own; see `logits`."""
    count = draw(st.integers(1, 4)) if rows is None else rows
    size = draw(sizes()) if vocab_size is None else vocab_size
    each = [draw(logits(size, kinds=kinds, dtype=dtype)) for _ in range(count)]
    return torch.stack(each)
