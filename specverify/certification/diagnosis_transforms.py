"""Which known mistake a transform looks like.

It is known by what it makes of rows of logits and, where it is right on all of those, by what its
calls do to each other. What is seen of it is held against what is seen of every known mistake of
its reference, look by look; the distances are summed and divided by those from the reference. That
fit is 0 for the same mistake and 1 for one that explains nothing.
"""

import math
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

from torch import Generator, Tensor

from specverify.certification.case_records import DiagnosisRecord
from specverify.certification.diagnosis_weights import weighed
from specverify.certification.signatures import Known, of_transform
from specverify.certification.transform_case import PARAMETERS
from specverify.certification.transform_looks import SEED, Look, looks
from specverify.errors import SubjectError, SubjectTimeout
from specverify.subjects.calling import build_transform
from specverify.subjects.guard import DEFAULT_TIME_LIMIT, run_guarded
from specverify.subjects.protocols import Subject, Transform

_EXACT = 0.01
"""Fit up to which a known mistake is taken to be the subject's: rounding differs on a few rows."""
_KEPT = 4_096
"""Results of known mistakes that are kept, some 40 kB each: more than one reference has."""
_HOPELESS = 0.3
"""Fit from which a mistake is not compared any further; its weight is next to nothing."""


def diagnose_transform(subject: Subject) -> DiagnosisRecord | None:
    """Compare what a transform gives with what known mistakes of its reference do.

    Args:
        subject: a transform.

    Returns:
        The diagnosis; None if it names no reference that has cases, if nothing of it can be seen,
        or if it is right wherever it is looked at.
    """
    if subject.reference not in PARAMETERS:
        return None
    return compared_transform(subject.reference, seen_of(subject))


def seen_of(subject: Subject) -> dict[Look, Tensor]:
    """What is seen of a subject, without the looks at which it fails.

    Args:
        subject: a transform with a reference in `PARAMETERS`. Once it runs past its time limit it
            is not looked at any more.
    """
    found: dict[Look, Tensor] = {}
    factory = partial(_guarded, subject)
    for look in looks(str(subject.reference)):
        # Kernels that take float32 alone are shown the exact rows in that.
        for narrow in (False, True) if look.tied else (False,):
            try:
                found[look] = look.seen(factory, narrow=narrow)
                break
            except SubjectTimeout:
                return found
            except SubjectError:
                continue
    return found


def compared_transform(
    reference: str, observed: Mapping[Look, Tensor], *, without: frozenset[str] = frozenset()
) -> DiagnosisRecord | None:
    """Compare what was seen of a transform with known mistakes.

    Args:
        reference: that it claims to be.
        observed: what was seen of it.
        without: ids of mistakes to leave out.

    Returns:
        As `diagnose_transform`.
    """
    apart = {look: look.distance(seen, look.expected) for look, seen in observed.items()}
    whole = math.fsum(apart.values())
    if not whole:
        return None
    # The most telling looks first: they rule most of the mistakes out.
    order = sorted(observed, key=lambda look: -apart[look])
    known = [mistake for mistake in of_transform(reference) if mistake.id not in without]
    fits = [(_fit(mistake, observed, order, whole), mistake) for mistake in known]
    return weighed(fits, _EXACT)


def _fit(mistake: Known, observed: Mapping[Look, Tensor], order: list[Look], whole: float) -> float:
    """What a mistake leaves unexplained, as a share of the distance from the reference."""
    left = 0.0
    for look in order:
        left += look.distance(observed[look], seen_of_known(mistake, look))
        if left > _HOPELESS * whole:
            break
    return left / whole


@lru_cache(_KEPT)
def seen_of_known(mistake: Known, look: Look) -> Tensor:
    """What is seen of a known mistake; where it fails, it is taken to be no better than right."""
    try:
        return look.seen(mistake.subject.call)
    # It is handed parameters that it may refuse in any way.
    except Exception:
        return look.expected


def _guarded(subject: Subject, **parameters: Any) -> Transform:
    """The transform of a subject, each call of which is watched and kept within a time limit."""
    transform = build_transform(subject, time_limit=DEFAULT_TIME_LIMIT, **parameters)

    def call(ids: Tensor, logits: Tensor, /) -> Tensor:
        generator = Generator().manual_seed(SEED)
        return run_guarded(subject, transform, ids, logits, generator=generator).value

    return call
