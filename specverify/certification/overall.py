"""One verdict of a run, from its cases, what is expected to fail, and how strict it is.

A function of what the certificate holds, so that it can be formed again offline, and for parts of a
run that were certified apart.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specverify.certification.case_records import CaseRecord, ExpectationRecord, TestRecord
from specverify.certification.certificate import Certificate
from specverify.certification.expected import FAILING, Known, failed_to_run, outcome_of
from specverify.certification.registry import Property
from specverify.certification.summary import reason_of, verdict_of
from specverify.certification.together import TOGETHER, together
from specverify.certification.verdict import Verdict, listed

STRICT = "strict, so that findings are violations"
ONLY_EXPECTED = "nothing else was checked than what is expected to fail"


@dataclass(frozen=True)
class Overall:
    """What all cases say together."""

    verdict: Verdict
    reason: str
    log_e: float | None
    """Of all cases, expected failures among them."""
    expectations: tuple[ExpectationRecord, ...]

    @property
    def stale(self) -> bool:
        """Whether a failure is expected that does not occur: the run fails."""
        return any(entry.state == "passes" for entry in self.expectations)


def overall(
    cases: Sequence[CaseRecord],
    properties: Iterable[Property],
    *,
    tests: int,
    alpha: float,
    expectations: Sequence[ExpectationRecord] = (),
    findings: Sequence[str] = (),
    strict: bool = False,
    interrupted: bool = False,
) -> Overall:
    """Form the verdict.

    Args:
        cases: of the run, blocked violations marked.
        properties: with what they build on.
        tests: that share the budget.
        alpha: the budget.
        expectations: known failures; their states are found anew, but for those that have expired.
        findings: of the run as a whole.
        strict: whether findings are violations.
        interrupted: whether cases are missing.
    """
    after = tuple(outcome_of(entry, cases, interrupted=interrupted) for entry in expectations)
    judged = beside_expected(cases, Known.of(after, properties))
    log_e = together(cases, tests)
    counted = log_e if judged == list(cases) else together(judged, tests)
    verdict = verdict_of(judged, interrupted=interrupted)
    reason = reason_of(judged, verdict, interrupted=interrupted)
    if cases and not judged and not interrupted:
        reason = ONLY_EXPECTED
    if counted is not None and counted >= -math.log(alpha) and verdict != "violated":
        verdict, reason = "violated", TOGETHER
    if strict and (found := _findings(judged, findings)):
        said = f"{STRICT}: {'; '.join(found)}"
        reason = f"{reason}; {said}" if verdict == "violated" else said
        verdict = "violated"
    return Overall(verdict, "; ".join([reason, *_said(after)]), log_e, after)


def only_together(certificate: Certificate) -> bool:
    """Whether a run is violated by all of its cases together, and by none alone."""
    return certificate.verdict == "violated" and certificate.reason.startswith(TOGETHER)


def beside_expected(cases: Sequence[CaseRecord], known: Known) -> list[CaseRecord]:
    """The cases as they count, without what is expected to fail and what builds on it.

    Where a failure was expected and shows, a bound cannot be reached and too little evidence is no
    news: there only violations of other properties count. A case of which nothing is left is left
    out.
    """
    failing = known.failing(cases)
    kept = (_beside(case, known, failing) for case in cases)
    return [case for case in kept if case is not None]


def _beside(case: CaseRecord, known: Known, failing: frozenset[str]) -> CaseRecord | None:
    alarms = [test for test in case.tests if test.decision in FAILING]
    excused = [test for test in alarms if _excused(test, case, known, failing)]
    forgiven = failed_to_run(case) and known.excuses_error(case)
    if not excused and not forgiven:
        return case
    dropped = {id(test) for test in excused}
    tests = [
        test for test in case.tests if id(test) not in dropped and test.decision != "undecided"
    ]
    left = [test for test in tests if test.decision in FAILING]
    update: dict[str, object] = {"tests": tuple(tests), "bounds": (), "tv_bound": None}
    if failed_to_run(case) and not forgiven and not left:
        update |= {"verdict": "error", "reason": case.error or case.reason}
    elif any(test.decision != "suspect" for test in left):
        violated = sorted({test.property for test in left})
        update |= {"verdict": "violated", "reason": ", ".join(violated)}
    elif left:
        update |= {"verdict": "inconclusive", "reason": left[0].detail}
    elif any(test.decision == "pass" for test in tests):
        update |= {"verdict": "preserved", "reason": ""}
    else:
        return None
    return case.model_copy(update=update)


def _excused(test: TestRecord, case: CaseRecord, known: Known, failing: frozenset[str]) -> bool:
    if known.covers(test.property, case.id):
        return True
    return known.follows(test.property, failing) is not None


def _findings(cases: Sequence[CaseRecord], findings: Sequence[str]) -> list[str]:
    """Findings in words, each once with all the cases it was met in."""
    where: dict[str, list[str]] = {}
    for case in cases:
        for finding in case.findings:
            where.setdefault(finding, []).append(case.id)
    said = [f"in {listed(ids)}, {finding}" for finding, ids in where.items()]
    return [*dict.fromkeys(findings), *said]


def _said(expectations: Sequence[ExpectationRecord]) -> list[str]:
    """What the reason says of expected failures."""
    by_state: dict[str, list[str]] = {}
    for entry in expectations:
        by_state.setdefault(entry.state, []).append(entry.property)
    said = []
    if failed := by_state.get("failed as expected"):
        said.append(f"apart from what is expected to fail: {_names(failed)}")
    if passes := by_state.get("passes"):
        said.append(f"expected to fail and passes: {_names(passes)}; remove the entry")
    if expired := by_state.get("expired"):
        said.append(f"expired, and counts as absent: the expected failure of {_names(expired)}")
    return said


def _names(properties: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(properties))
