"""From how much each known mistake leaves unexplained to the kind that is named.

Weights fall exponentially with what is left, and an unknown mistake has the weight of one that
leaves a tenth unexplained. So what fits worse than that is called unknown.
"""

import math
from collections.abc import Sequence

from specverify.certification.case_records import DiagnosisRecord, SuspectRecord
from specverify.certification.diagnosis_bets import UNKNOWN
from specverify.certification.signatures import Known

SHOWN = 3
"""Suspects that are recorded."""

_STEEPNESS = 40.0
"""How fast weights fall: what leaves 2.5 % more unexplained weighs e times less."""
_UNKNOWN_FIT = 0.1
"""What a mistake of an unknown kind is taken to leave unexplained."""
EXACT = 1e-3
"""Fit up to which a mutant is taken to be the mistake itself."""
_CLOSE = 0.1
"""Weight of all others beside it."""


def weighed(fits: Sequence[tuple[float, Known]], exact: float = EXACT) -> DiagnosisRecord:
    """Weights of kinds, each as heavy as its best mutant, beside an unknown one.

    Args:
        fits: known mistakes, each with the share that it leaves unexplained: 0 for the mistake
            itself, 1 for one that explains nothing.
        exact: fit up to which a known mistake is taken to be the subject's own.
    """
    ranked = sorted(fits, key=lambda entry: round(entry[0], 9))
    weighed = [(_weight(fit, exact), mutant) for fit, mutant in ranked]
    unknown = math.exp(-_STEEPNESS * _UNKNOWN_FIT)
    kinds, best = {UNKNOWN: unknown}, dict[str, Known]()
    for weight, mutant in weighed:
        kinds.setdefault(mutant.family, weight)
        best.setdefault(mutant.family, mutant)
    total = math.fsum(kinds.values())
    kind = max(kinds, key=lambda name: (kinds[name], name))
    suspects = tuple(
        SuspectRecord(mutant=mutant.id, kind=mutant.family, probability=round(weight / total, 6))
        for weight, mutant in weighed[:SHOWN]
        if weight > unknown
    )
    named = best.get(kind)
    # The summary of a mutant says the change and, for decoders, what it does to the output.
    return DiagnosisRecord(
        kind=kind,
        confidence=round(kinds[kind] / total, 6),
        mutant="" if named is None else named.id,
        description="" if named is None else named.subject.summary or named.description,
        basis="exact",
        suspects=suspects,
    )


def _weight(fit: float, exact: float) -> float:
    """Of a mutant; distributions are exact, so what only comes close is another mistake."""
    return (1.0 if fit < exact else _CLOSE) * math.exp(-_STEEPNESS * fit)
