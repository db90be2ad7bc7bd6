"""One certificate from parts of a run that were certified apart, as by one pytest item each.

All parts were made with the false-alarm budget of the whole, see `asked`, so what they found may be
judged together.
"""

from collections.abc import Iterable, Sequence

from specverify.certification.blocked import with_blocked
from specverify.certification.case_records import CaseRecord, NotApplicable
from specverify.certification.certificate import Certificate
from specverify.certification.overall import overall
from specverify.certification.registry import all_properties
from specverify.certification.together import with_adjusted
from specverify.certification.verdict import EXACT, NOT_ASKED, PROBE


def merged(parts: Sequence[Certificate]) -> Certificate:
    """The certificate of the run that the parts make up.

    Args:
        parts: of one subject, at the same seed and budget, in any order; at least one. A case that
            several of them hold is the same in all, and taken once.
    """
    first = parts[0]
    properties = [p for p in all_properties() if first.subject.kind in p.kinds]
    cases = with_blocked(with_adjusted(_cases(parts)), properties)
    findings = tuple(dict.fromkeys(text for part in parts for text in part.findings))
    interrupted = any(part.interrupted for part in parts)
    result = overall(
        cases,
        properties,
        tests=first.tests,
        alpha=first.alpha,
        expectations=first.expectations,
        findings=findings,
        strict=first.strict,
        interrupted=interrupted,
    )
    return first.model_copy(
        update={
            "verdict": result.verdict,
            "reason": result.reason,
            "log_e": result.log_e,
            "cases": tuple(cases),
            "not_applicable": _not_applicable(parts, cases, (p.id for p in properties)),
            "findings": findings,
            "remarks": tuple(dict.fromkeys(text for part in parts for text in part.remarks)),
            "expectations": result.expectations,
            "interrupted": interrupted,
            "started": min(part.started for part in parts),
            "finished": max(part.finished for part in parts),
            "seconds": sum(part.seconds for part in parts),
        }
    )


def _cases(parts: Iterable[Certificate]) -> list[CaseRecord]:
    """Each case once, in the order of a run: sampled, computed, probed by property."""
    found: dict[str, CaseRecord] = {}
    for part in parts:
        for case in part.cases:
            found.setdefault(case.id, case)
    return sorted(found.values(), key=_place)


def _place(case: CaseRecord) -> tuple[int, str]:
    if case.id.startswith(PROBE):
        return 2, case.id.split("/")[1]
    return int(case.id.startswith(EXACT)), ""


def _not_applicable(
    parts: Iterable[Certificate], cases: Iterable[CaseRecord], properties: Iterable[str]
) -> tuple[NotApplicable, ...]:
    """What the parts could not check, and what none of them was to check."""
    entries = {(e.property, e.reason): e for part in parts for e in part.not_applicable}
    named = {property for property, _ in entries}
    for case in cases:
        named |= {test.property for test in case.tests}
        named |= {entry.property for entry in case.not_applicable}
    left = [NotApplicable(property=p, reason=NOT_ASKED) for p in properties if p not in named]
    return (*(entries[key] for key in sorted(entries)), *left)
