"""Which known mistake a subject looks like.

A mistake is known by what it emits. The subject's distributions are held against those of every
mutant, by the Kullback-Leibler divergence of the subject's from the mutant's, summed over a few
inputs and divided by its divergence from the target. That fit is 0 for the same mistake, and 1 for
one that explains nothing. `diagnosis_weights` makes a kind of it, or an unknown one. A transform
emits nothing; what it makes of rows of logits is compared likewise, see `diagnosis_transforms`.

Where nothing can be computed, the bets on sampled tokens say what they can: see `diagnosis_bets`.
"""

import math
from collections.abc import Mapping, Sequence

from specverify.certification.certificate import CaseRecord, DiagnosisRecord
from specverify.certification.counterexamples.attach import roots
from specverify.certification.diagnosis_bets import by_bets
from specverify.certification.diagnosis_transforms import diagnose_transform
from specverify.certification.diagnosis_weights import weighed
from specverify.certification.signatures import (
    Input,
    Known,
    emitted,
    inputs,
    library,
    signature,
)
from specverify.certification.verdict import EXACT
from specverify.exact.joint import Joint, total_variation
from specverify.subjects.protocols import Subject

_SIZES = (1.0, 0.125, 0.25, 0.5, 0.75, 1.5, 2.0, 4.0)
"""Of a mistake, in multiples of a mutant's."""
_OTHER_SIZE = 0.02
"""What another size than a mutant's costs it."""
_HOPELESS = 0.75
"""Fit from which a mutant is not compared any further."""
_SMALLEST = 1e-9
"""Mass that is spread over everything a mutant never emits, so that divergences are finite."""
_VISIBLE = 1e-9
"""Total variation from which there is something to compare."""


def with_diagnosis(cases: Sequence[CaseRecord], subject: Subject) -> list[CaseRecord]:
    """Say on the first case with a violated property which known mistake the subject looks like.

    Args:
        cases: of a run, blocked violations marked.
        subject: what they are of.
    """
    first = next(iter(roots(cases)), None)
    if first is None or subject.capabilities.lossy is not None:
        return list(cases)
    steered = any(case.id.startswith(EXACT) for case in cases)
    found, index = None, first[0]
    if subject.kind == "transform":
        found = diagnose_transform(subject)
    elif steered:
        found = diagnose(subject)
    if found is None and subject.kind != "transform":
        index, found = by_bets(cases)
    if found is None:
        return list(cases)
    return [
        case.model_copy(update={"diagnosis": found}) if place == index else case
        for place, case in enumerate(cases)
    ]


def diagnose(subject: Subject) -> DiagnosisRecord | None:
    """Compare what a subject emits with what known mistakes do.

    Args:
        subject: a rule or a decoder that can be steered.

    Returns:
        The diagnosis; None if nothing can be computed, or nothing is wrong on any input.
    """
    observed = {input: emitted(subject, input) for input in inputs(subject.kind)}
    return compared(subject.kind, observed)


def compared(
    kind: str, observed: Mapping[Input, Joint | None], *, without: frozenset[str] = frozenset()
) -> DiagnosisRecord | None:
    """Compare distributions with those of known mistakes.

    Args:
        kind: of the subject.
        observed: what it emits, by input; None where that is not known.
        without: ids of mutants to leave out.

    Returns:
        As `diagnose`.
    """
    known = {input: joint for input, joint in observed.items() if joint is not None}
    if all(total_variation(joint, i.expected) <= _VISIBLE for i, joint in known.items()):
        return None
    whole = math.fsum(divergence(joint, i.expected) for i, joint in known.items())
    # The most telling input first: it rules most of the mutants out.
    order = sorted(known, key=lambda i: -divergence(known[i], i.expected))
    mutants = [mutant for mutant in library(kind) if mutant.id not in without]
    return weighed([(_fit(mutant, known, order, whole), mutant) for mutant in mutants])


def divergence(observed: Joint, expected: Joint) -> float:
    """Kullback-Leibler divergence of `observed` from `expected`, which is smoothed a little."""
    keys = observed.keys() | expected.keys()
    spread = _SMALLEST / len(keys)
    return math.fsum(
        mass * math.log(mass / ((1 - _SMALLEST) * expected.get(key, 0.0) + spread))
        for key, mass in observed.items()
        if mass > 0
    )


def _fit(
    mutant: Known, observed: Mapping[Input, Joint], order: Sequence[Input], whole: float
) -> float:
    """What a mutant leaves unexplained, as a share of the subject's divergence from the target.

    The same mistake may be larger or smaller than the mutant's, which is a number in its code.
    """
    return min(
        _OTHER_SIZE * (size != 1) + _left(mutant, observed, order, whole, size) for size in _SIZES
    )


def _left(
    mutant: Known,
    observed: Mapping[Input, Joint],
    order: Sequence[Input],
    whole: float,
    size: float,
) -> float:
    left = 0.0
    for input in order:
        # Where a mutant is not known, it is taken to be no better than the target.
        joint = signature(mutant, input) or input.expected
        left += max(0.0, divergence(observed[input], _resized(joint, input.expected, size)))
        if left > _HOPELESS * whole:
            break
    return left / whole


def _resized(joint: Joint, expected: Joint, size: float) -> Joint:
    """A distribution as far from the expected one, in the same direction, as `size` times this."""
    if size == 1:
        return joint
    keys = joint.keys() | expected.keys()
    masses = {
        key: max(0.0, (1 - size) * expected.get(key, 0.0) + size * joint.get(key, 0.0))
        for key in keys
    }
    total = math.fsum(masses.values())
    return {key: mass / total for key, mass in masses.items()}
