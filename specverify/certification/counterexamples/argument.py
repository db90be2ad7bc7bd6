"""Where two distributions over token sequences part, and the argument that they do."""

import math
from collections import defaultdict

from specverify.certification.certificate import OutcomeRecord
from specverify.certification.counterexamples.words import number, tokens
from specverify.exact.joint import Joint, Tokens

SHOWN = 27
"""Outcomes that are recorded, the largest differences first where there are more."""


def outcomes(observed: Joint, expected: Joint) -> tuple[OutcomeRecord, ...]:
    """Both distributions side by side, by sequence."""
    keys = sorted(observed.keys() | expected.keys())
    if len(keys) > SHOWN:
        keys.sort(key=lambda key: -abs(observed.get(key, 0.0) - expected.get(key, 0.0)))
    return tuple(
        OutcomeRecord(
            what=tokens(key),
            tokens=key,
            observed=observed.get(key, 0.0),
            expected=expected.get(key, 0.0),
        )
        for key in keys[:SHOWN]
    )


def contradiction(observed: Joint, expected: Joint, tolerance: float) -> str:
    """The sentences after "Let ...": what the target does, and the subject, where they part first.

    Args:
        observed: what the subject emits, a distribution but for the mass of crashes.
        expected: what it should.
        tolerance: differences in total variation that count.
    """
    longest = max(map(len, [*observed, *expected]))
    for length in range(1, longest + 1):
        seen, wanted = _heads(observed, length), _heads(expected, length)
        if length == longest or _distance(seen, wanted) > tolerance:
            return _sentence(_furthest(seen, wanted), length, longest)
    return "Then the target emits tokens. However, the subject emits none."


def _sentence(found: OutcomeRecord, length: int, longest: int) -> str:
    """How often target and subject begin with some tokens, or end after them."""
    if len(found.tokens) < length:
        does = f"ends after {tokens(found.tokens)}"
    elif length in (1, longest):
        does = f"emits {tokens(found.tokens)}{' first' * (length == 1 < longest)}"
    else:
        does = f"begins with {tokens(found.tokens)}"
    return (
        f"Then the target {does} with probability {number(found.expected)}. However, the subject "
        f"does so with probability {number(found.observed)}."
    )


def _heads(joint: Joint, length: int) -> dict[Tokens, float]:
    """Masses of what sequences begin with."""
    masses: dict[Tokens, float] = defaultdict(float)
    for sequence, mass in joint.items():
        masses[sequence[:length]] += mass
    return masses


def _distance(seen: Joint, wanted: Joint) -> float:
    keys = seen.keys() | wanted.keys()
    return math.fsum(abs(seen.get(key, 0.0) - wanted.get(key, 0.0)) for key in keys) / 2


def _furthest(seen: Joint, wanted: Joint) -> OutcomeRecord:
    """The sequence whose probability is furthest from what it should be."""

    def deviation(key: Tokens) -> tuple[float, Tokens]:
        # Rounded, so that the last digit of a float does not choose among equals.
        return -round(abs(seen.get(key, 0.0) - wanted.get(key, 0.0)), 12), key

    key = min(seen.keys() | wanted.keys(), key=deviation)
    masses = {"observed": seen.get(key, 0.0), "expected": wanted.get(key, 0.0)}
    return OutcomeRecord(what=tokens(key), tokens=key, **masses)
