"""What one round of a subject emits, held against the target's distribution."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specverify.errors import UsageError
from specverify.exact.conditional import Conditional, checked_rows
from specverify.exact.joint import Joint, Tokens
from specverify.exact.round import Round
from specverify.exact.tuple_tables import (
    Rows,
    Table,
    autoregressive_table,
    completed_table,
    from_dict,
    to_dict,
    tuples,
)

WORST = 5
"""Sequences a comparison names."""

_SUM_TOLERANCE = 1e-6


class Deviation(NamedTuple):
    """A sequence of K+1 tokens whose probability is not the target's."""

    tokens: Tokens
    observed: float
    expected: float


@dataclass(frozen=True)
class RoundComparison:
    """The completed distribution of a round against the target's, over K+1 tokens.

    Tuples that no round may emit (empty, too long, with a token outside the vocabulary) and the
    mass that `emitted` lacks are outcomes of their own, which the target never has.
    """

    total_variation: float
    """Half the sum of absolute differences, between 0 and 1."""
    first_token_total_variation: float
    """The same for the first token alone, which is all that many tests look at."""
    largest_ratio: float
    """Largest observed / expected over what was observed; infinite outside the support."""
    outside_support: dict[Tokens, float]
    """Prefixes that the target cannot produce, the shortest of their kind, and tuples that no round
    may emit, as they were emitted; with their mass, largest first."""
    missing: float
    """Mass without tokens, such as that of crashes."""
    worst: tuple[Deviation, ...]
    """The `WORST` largest absolute differences that are not 0, largest first."""


def compare_round(
    round: Round, emitted: Joint, *, target: Conditional | None = None
) -> RoundComparison:
    """Complete what a round emits and compare it with the target (design.md section 1).

    Dense: V^(K+1) numbers, about a second for 64^3.

    Args:
        round: what the rule was handed.
        emitted: tuples of 1 to K+1 tokens to probability. A sum below 1 leaves mass `missing`.
        target: the reference, where it is not the round's own target, such as when the rule
            transforms the rows that it is handed; int64 [N, t] to [N, V], t from 0 to K, asked
            only after prefixes that it can itself produce.

    Raises:
        UsageError: a negative probability, a sum above 1 by more than 1e-6, or `target` returns
            rows that are no distributions.

    Example:
        >>> from specverify.exact.enumerate import round_distribution
        >>> round = Round.random(3, 2)
        >>> compare_round(round, round_distribution("block", round)).total_variation < 1e-12
        True
        >>> stuck = compare_round(round, {(0,): 1.0})
        >>> bool(abs(stuck.total_variation - (1 - round.p(0)[0, 0])) < 1e-12)
        True
    """
    missing = max(0.0, 1.0 - _checked_total(emitted))
    length, size = round.num_draft_tokens + 1, round.vocab_size
    rows = round.p if target is None else _reference_rows(round, target)
    tables, unfit = from_dict(emitted, size, length)
    observed = completed_table(tables, rows)
    expected = autoregressive_table(length, rows)
    stray = missing + math.fsum(unfit.values())
    outside = unfit | _impossible_prefixes(observed, length, size, rows)
    first = np.abs(observed.reshape(size, -1).sum(1) - rows(0)[0]).sum()
    return RoundComparison(
        total_variation=float(np.abs(observed - expected).sum() + stray) / 2,
        first_token_total_variation=float(first + stray) / 2,
        largest_ratio=math.inf if outside else _largest_ratio(observed, expected),
        outside_support=dict(sorted(outside.items(), key=lambda item: (-item[1], item[0]))),
        missing=missing,
        worst=_worst(observed, expected, unfit, length, size),
    )


def completed(round: Round, emitted: Joint) -> dict[Tokens, float]:
    """`joint.complete` with the round's target to K+1 tokens, by whole tables at once.

    Args:
        round: gives the target that continues the shorter tuples.
        emitted: tuples of 1 to K+1 tokens to probability.

    Returns:
        Distribution over sequences of exactly K+1 tokens, positive entries only.

    Raises:
        UsageError: a tuple of positive mass is empty, longer than K+1 or outside the vocabulary, or
            the masses do not sum to 1 within 1e-6.
    """
    total = _checked_total(emitted)
    if total < 1 - _SUM_TOLERANCE:
        raise UsageError(f"emitted sums to {total!r}; probabilities are nonnegative and sum to 1")
    length = round.num_draft_tokens + 1
    tables, unfit = from_dict(emitted, round.vocab_size, length)
    if unfit:
        raise UsageError(
            f"a round emitted {next(iter(unfit))}; it must emit 1 to {length} tokens from 0 to "
            f"{round.vocab_size - 1}"
        )
    return to_dict(completed_table(tables, round.p), length, round.vocab_size)


def _checked_total(emitted: Joint) -> float:
    total = math.fsum(emitted.values())
    if min(emitted.values(), default=0.0) < 0 or not total <= 1 + _SUM_TOLERANCE:
        raise UsageError(f"emitted sums to {total!r}; probabilities are nonnegative and sum to 1")
    return total


def _reference_rows(round: Round, target: Conditional) -> Rows:
    """Rows of another target; uniform after prefixes it never produces, where it may have none."""
    size = round.vocab_size
    possible = np.ones(1, np.bool_)
    tables: list[NDArray[np.float64]] = []
    for depth in range(round.num_draft_tokens + 1):
        prefixes = round.prefixes(depth)[possible]
        table = np.full((size**depth, size), 1 / size)
        table[possible] = checked_rows(target(prefixes), len(prefixes), size)
        possible = (possible[:, None] & (table > 0)).reshape(-1)
        tables.append(table)
    return tables.__getitem__


def _impossible_prefixes(
    observed: Table, length: int, vocab_size: int, rows: Rows
) -> dict[Tokens, float]:
    """Mass of each prefix whose last token is the first that the target cannot produce."""
    found: dict[Tokens, float] = {}
    possible = np.ones(1, np.bool_)
    for depth in range(length):
        allowed = rows(depth) > 0
        masses = observed.reshape(vocab_size ** (depth + 1), -1).sum(1)
        first = (possible[:, None] & ~allowed).reshape(-1) & (masses > 0)
        codes = np.flatnonzero(first)
        if len(codes):
            keys = tuples(codes, depth + 1, vocab_size)
            found |= zip(keys, masses[codes].tolist(), strict=True)
        possible = (possible[:, None] & allowed).reshape(-1)
    return found


def _largest_ratio(observed: Table, expected: Table) -> float:
    """Over expected > 0: inside the support a product of tiny probabilities may still be 0."""
    inside = expected > 0
    with np.errstate(over="ignore"):  # infinite where a subnormal probability is exceeded by far
        return float((observed[inside] / expected[inside]).max())


def _worst(
    observed: Table, expected: Table, unfit: Joint, length: int, vocab_size: int
) -> tuple[Deviation, ...]:
    differences = np.abs(observed - expected)
    codes = np.argsort(-differences, kind="stable")[:WORST]
    codes = codes[differences[codes] > 0]
    masses = (observed[codes].tolist(), expected[codes].tolist())
    sequences = zip(tuples(codes, length, vocab_size), *masses, strict=True)
    deviations = [
        *(Deviation(*entry) for entry in sequences),
        *(Deviation(tokens, mass, 0.0) for tokens, mass in unfit.items()),
    ]
    return tuple(
        sorted(deviations, key=lambda entry: -abs(entry.observed - entry.expected))[:WORST]
    )
