"""A row of the target and one of the draft: equal, disjoint, peaked, an ulp apart."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from specverify.certification.generated.rows import Row, distributions, sizes

PAIR_KINDS = (
    "simple",
    "equal",
    "permuted",
    "one-hot draft",
    "one-hot target",
    "disjoint",
    "peaked",
    "close",
    "any",
)
"""How a target's row p and a draft's row q lie to each other: simple fractions; q = p; q has the
probabilities of p in another order; q or p has one possible token; no token is possible under both;
each has a token that is nearly certain; q is an ulp of float64 off in one entry; numbers with
nothing in common."""

SIMPLE = ("simple",)
ONE_TARGET = ("one-hot target",)
"""Kinds whose target has one possible token, as at temperature 0."""

_EXPONENTS = (10, 20, 30, 40)
"""Of a peaked row: all but 2^-k of the mass is on one token."""
_WEIGHT = 1 << 16


@st.composite
def row_pairs(
    draw: DrawFn,
    vocab_size: int | None = None,
    *,
    kinds: tuple[str, ...] = PAIR_KINDS,
    zeros: bool = True,
) -> tuple[Row, Row]:
    """A row of the target and one of the draft.

    Args:
        draw: of Hypothesis.
        vocab_size: V; drawn when omitted.
        kinds: which of `PAIR_KINDS` there may be, the simplest first.
        zeros: whether tokens of simple rows may be impossible; one-hot and disjoint rows have
            zeros all the same.
    """
    size = draw(sizes()) if vocab_size is None else vocab_size
    kind = draw(st.sampled_from(kinds))
    rows = distributions(size, zeros=zeros)
    if kind == "one-hot draft":
        return draw(rows), draw(_one_hot(size))
    if kind == "one-hot target":
        return draw(_one_hot(size)), draw(rows)
    if kind == "disjoint" and size > 1:
        return draw(_disjoint(size))
    if kind == "peaked":
        return draw(_peaked(size)), draw(_peaked(size))
    if kind == "any":
        return draw(_weighted(size)), draw(_weighted(size))
    target = draw(rows)
    if kind == "permuted":
        return target, draw(st.permutations(target).map(tuple))
    if kind == "close":
        return target, _nudged(target, draw(st.integers(0, size - 1)))
    return target, target if kind == "equal" else draw(rows)


def _one_hot(size: int) -> SearchStrategy[Row]:
    return st.sampled_from([tuple(row) for row in np.eye(size).tolist()])


def _weighted(size: int) -> SearchStrategy[Row]:
    weights = st.lists(st.integers(1, _WEIGHT), min_size=size, max_size=size)
    return weights.map(_normalised)


@st.composite
def _peaked(draw: DrawFn, size: int) -> Row:
    rest = 2.0 ** -draw(st.sampled_from(_EXPONENTS))
    top = draw(st.integers(0, size - 1))
    others = draw(distributions(size, zeros=False))
    return _normalised(
        [rest * others[token] + (1 - rest) * (token == top) for token in range(size)]
    )


@st.composite
def _disjoint(draw: DrawFn, size: int) -> tuple[Row, Row]:
    cut = draw(st.integers(1, size - 1))
    order = draw(st.permutations(range(size)))
    first, second = draw(distributions(cut)), draw(distributions(size - cut))
    target, draft = (*first, *[0.0] * (size - cut)), (*[0.0] * cut, *second)
    return tuple(target[token] for token in order), tuple(draft[token] for token in order)


def _nudged(row: Row, token: int) -> Row:
    """One entry is the neighbouring float, the sum off by as much."""
    away = 0.0 if row[token] > 0 else 1.0
    return (*row[:token], float(np.nextafter(row[token], away)), *row[token + 1 :])


def _normalised(weights: list[int] | list[float]) -> Row:
    total = sum(weights)
    return tuple(weight / total for weight in weights)
