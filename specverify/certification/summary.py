"""What all cases of a run say together: verdict, reason, level."""

from collections.abc import Sequence

from specverify.certification.certificate import CaseRecord, Level
from specverify.certification.verdict import Verdict, listed, worst
from specverify.subjects.protocols import Subject


def level_of(subject: Subject, dtype: str) -> Level:
    """float64 throughout, as far as is known: models, and what the subject says of its coins."""
    exact = subject.kind == "transform" or subject.capabilities.coin_dtype == "float64"
    return "algorithmic" if dtype == "float64" and exact else "numerical"


def verdict_of(cases: Sequence[CaseRecord], *, interrupted: bool) -> Verdict:
    """The worst verdict; cases that were never run leave the rest at best inconclusive."""
    found: list[Verdict] = [case.verdict for case in cases]
    if interrupted:
        found.append("inconclusive")
    return worst(found)


def reason_of(cases: Sequence[CaseRecord], verdict: Verdict, *, interrupted: bool) -> str:
    """The reasons of the cases that gave the verdict, each with its case."""
    if verdict == "preserved":
        return _preserved(cases)
    every = [case for case in cases if case.verdict == verdict]
    found = [case for case in every if not _follows(case)] or every
    reasons = [f"{case.id}: {case.reason}" for case in found if not case.small]
    computed: dict[str, list[str]] = {}
    for case in found:
        if case.small:
            computed.setdefault(case.reason, []).append(case.id)
    reasons += [f"{listed(ids)}: {reason}" for reason, ids in computed.items()]
    if more := len(every) - len(found):
        reasons.append(f"what builds on it, in {more} more case{'s' * (more != 1)}")
    if interrupted and not reasons:
        return f"interrupted after {len(cases)} finished cases"
    return "; ".join(reasons)


def _follows(case: CaseRecord) -> bool:
    """Whether all that is violated in a case is blocked by something else."""
    decisions = {test.decision for test in case.tests}
    return case.verdict == "violated" and "blocked" in decisions and "violated" not in decisions


def _preserved(cases: Sequence[CaseRecord]) -> str:
    """What speaks for a subject."""
    bounded = any(case.tv_bound is not None for case in cases if not case.small)
    reason = "nothing was rejected" + (", and every bound is within its limit" if bounded else "")
    if distances := [case.tv_bound for case in cases if case.small and case.tv_bound is not None]:
        number = f"{len(distances)} exact case{'s' * (len(distances) != 1)}"
        reason += f"; TV at most {max(distances):.1e} in {number}"
    return reason
