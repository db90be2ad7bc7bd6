"""Small inputs of a transform, the simplest first: short histories, few tokens, plain logits."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specverify.certification.transform_case import TransformCase

LARGEST = 8.0
"""Magnitude of a logit up to which a float32 transform may be off by no more than 1e-6."""

_SIZES = (2, 3, 4, 6, 8)
_HALF = -math.log(2)
_LEVELS: dict[int, tuple[float, ...]] = {
    2: (0.0, 1.0, _HALF, -1.0, 4.0, 8.0, -math.inf),
    3: (0.0, 1.0, _HALF, 4.0, -math.inf),
    4: (0.0, _HALF, 2.0, -math.inf),
}
"""Logits of which rows are made, the plainest first, by V."""
_LEVELS_WITH_HISTORY: dict[int, tuple[float, ...]] = {2: (0.0, 1.0, -1.0), 3: (0.0, 1.0, -1.0)}
_TWO = (0.0, 1.0)
_STEPS = (1.0, 0.5, 0.125)
"""Between the logits of rows of more tokens than `_LEVELS` has, none of which tie."""

_EXACT = (
    (0, 0),
    (0, 1, 1),
    (0, 0, 0, 0),
    (0, 1, 2, 2),
    (0, 0, 1, 1, 1, 1),
    (0, 0, 1, 1, 2, 2, 2, 2),
    (0,) * 8,
)
"""Halvings of rows whose probabilities are powers of 2, computed exactly in float32 too."""
_SPREAD = ((4.0, 0.0), (4.0, 4.0, 0.0, 0.0))
"""The smaller logit lies 2 standard deviations below the larger one."""
_APART = 1e-6
_ROUNDED = (1, 2, 4)
"""Logits are rounded to whole ones, halves or quarters."""

History = tuple[int, ...]
Row = tuple[float, ...]


def plain_inputs(case: TransformCase, vocab_size: int) -> Iterator[tuple[History, Row]]:
    """Histories and logits of V tokens, all combinations of a few plain ones.

    Args:
        case: whose reference says whether histories matter.
        vocab_size: V, one of `sizes`.
    """
    levels = _LEVELS.get(vocab_size, _TWO)
    histories: Sequence[History] = ((0,),)
    if not case.build_reference().history_free:
        levels = _LEVELS_WITH_HISTORY.get(vocab_size, _TWO)
        histories = _histories(vocab_size)
    rows = _ladders(vocab_size) if vocab_size > max(_LEVELS) else _combined(levels, vocab_size)
    return ((history, row) for history in histories for row in rows)


def sizes(case: TransformCase) -> tuple[int, ...]:
    """V of the inputs that are tried, large enough for the tokens that parameters name."""
    needed = 1 + max(_named_tokens(case.parameters), default=0)
    return tuple(size for size in _SIZES if size >= needed) or (needed,)


def exact_rows(case: TransformCase) -> Iterator[Row]:
    """Rows that lie exactly at boundaries, the smallest first.

    Typical sampling would have to decide some of them by rounding, where one surprise is as far
    above the entropy as another is below it; those are left out for it.
    """
    halved = [tuple(_HALF * count for count in halvings) for halvings in _EXACT]
    for row in (*halved, *_SPREAD):
        if case.reference != "typical_p" or _decides_typical(row):
            yield from dict.fromkeys((row, row[::-1]))


def simpler(case: TransformCase, history: History, row: Row) -> Iterator[tuple[History, Row]]:
    """Inputs with less in them than one that is large: history, tokens, then digits.

    Tokens are left out where no history and no parameter names them.
    """
    yield from ((history[start:], row) for start in range(len(history) - 1, 0, -1))
    if case.build_reference().history_free and next(_named_tokens(case.parameters), None) is None:
        if history != (0,):
            yield (0,), row
        if len(row) > _SIZES[0]:
            yield from (((0,), row[:token] + row[token + 1 :]) for token in range(len(row)))
    for parts in _ROUNDED:
        rounded = tuple(round(logit * parts) / parts for logit in row if math.isfinite(logit))
        if len(rounded) == len(row) and rounded != row:
            yield history, rounded


def _combined(levels: Row, vocab_size: int) -> list[Row]:
    rank = {level: index for index, level in enumerate(levels)}
    rows = [
        row
        for row in itertools.product(levels, repeat=vocab_size)
        if len(set(row)) > 1 or row[0] == levels[0]  # a constant changes nothing
    ]
    return sorted(rows, key=lambda row: (len(set(row)), sum(rank[level] for level in row)))


def _ladders(vocab_size: int) -> list[Row]:
    rising = [tuple(step * index for index in range(vocab_size)) for step in _STEPS]
    return [row for ladder in rising for row in (ladder, ladder[::-1])]


def _histories(vocab_size: int) -> Sequence[History]:
    """All of one token and of two, and some that repeat n-grams."""
    short = [
        history
        for length in (1, 2)
        for history in itertools.product(range(vocab_size), repeat=length)
    ]
    return (*short, (0, 0, 0), (0, 1, 0), (0, 0, 0, 0), (0, 1, 0, 1))


def _named_tokens(parameters: Mapping[str, Any]) -> Iterator[int]:
    for word in parameters.get("bad_words", ()):
        yield from word
    yield from parameters.get("bias", ())
    yield from parameters.get("stop_token_ids", ())
    yield from parameters.get("forced", {}).values()
    if "allowed" in parameters:
        yield from parameters["allowed"].tokens


def _decides_typical(row: Row) -> bool:
    total = math.fsum(map(math.exp, row))
    surprises = [math.log(total) - logit for logit in row]
    entropy = math.fsum(math.exp(-surprise) * surprise for surprise in surprises)
    distances = sorted(abs(surprise - entropy) for surprise in set(surprises))
    return all(after - before > _APART for before, after in itertools.pairwise(distances))
