"""The properties of a subject as checks of their own, each to be called in one pytest item."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from specverify.certification.asked import chosen_of
from specverify.certification.blocked import BLOCKED_BY
from specverify.certification.case_records import CaseRecord, ExpectationRecord, NotApplicable
from specverify.certification.certificate import Certificate
from specverify.certification.expected import (
    FAILING,
    Known,
    expectations_of,
    failed_to_run,
    outcome_of,
)
from specverify.certification.overall import beside_expected
from specverify.certification.registry import Property, properties_of, unmet_need
from specverify.certification.together import EVERY_TOKEN, TOGETHER, together
from specverify.certification.verdict import worst
from specverify.check_plan import CheckPlan, request
from specverify.conformance import of_part, where_violated
from specverify.models.pairs import Pair
from specverify.subjects.protocols import Subject


@dataclass(frozen=True, repr=False)
class PropertyCheck:
    """One property of a subject, to be called in a test."""

    asked: Property
    plan: CheckPlan

    @property
    def id(self) -> str:
        """The property's."""
        return self.asked.id

    @property
    def chapter(self) -> str:
        """The property's."""
        return self.asked.chapter

    @property
    def group(self) -> str:
        """Names the run it shares with other checks; empty if it has one of its own."""
        evidence = self.asked.evidence
        return f"{self.plan.subject.name}/{evidence}" if evidence in self.plan.together else ""

    @cached_property
    def expected(self) -> tuple[ExpectationRecord, ...]:
        """Entries that say it fails."""
        return tuple(entry for entry in self.plan.known.entries if entry.property == self.id)

    def __repr__(self) -> str:
        return f"PropertyCheck({self.plan.subject.name!r}, {self.id!r})"

    def __call__(self) -> Certificate:
        """Check it.

        Returns:
            What the certificate says of this property.

        Raises:
            ConformanceError: it is violated, or the subject failed; `ExpectedFailure` where that is
                listed. With strict, a finding counts too.
            pytest.skip.Exception: nothing could be checked, or it is violated since one that it
                builds on is.
            pytest.xfail.Exception: it builds on one that is expected to fail.
        """
        whole = self.plan.certificate_of(self.asked)
        mine = self._only_this(whole.cases, whole)
        if any(test.decision == "violated" for case in mine.cases for test in case.tests):
            mine = self._only_this(self.plan.beside_bases(self.asked, whole), whole)
        self.plan.judge(self.id, mine.verdict, whole)
        self._raise_if_it_fails(mine)
        if self.id == EVERY_TOKEN:
            self._judge_together(whole)
        if not self.group:
            _raise_for_findings(mine)
        self._skip_if_unchecked(mine, whole)
        return mine

    def _raise_if_it_fails(self, mine: Certificate) -> None:
        known = self.plan.known
        failed = [case for case in mine.cases if failed_to_run(case)]
        violated = [case for case in mine.cases if case.verdict == "violated"]
        new = [case for case in violated if not known.covers(self.id, case.id)]
        if new:
            shown = next((case for case in new if case.diagnosis is not None), new[0])
            raise of_part(where_violated(shown), mine, shown=shown)
        for case in failed:
            if not known.excuses_error(case):
                said = (case.error or case.reason).partition("\n")[0]
                raise of_part(f"error in {case.id}: {said}", mine, shown=case)
        if self.expected and (failed or violated or _blocked(mine)):
            raise of_part(f"as expected: {self.expected[0].reason}", mine, expected=True)

    def _judge_together(self, whole: Certificate) -> None:
        """All cases together, at the half of the budget that single tests do not have."""
        counted = beside_expected(whole.cases, self.plan.known)
        log_e = together(counted, whole.tests)
        violated = any(case.verdict == "violated" for case in counted)
        if log_e is not None and log_e >= math.log(2 / whole.alpha) and not violated:
            raise of_part(TOGETHER, whole)

    def _skip_if_unchecked(self, mine: Certificate, whole: Certificate) -> None:
        import pytest

        if blocked := _blocked(mine):
            if self.plan.known.covers(blocked.partition(" in ")[0], "*"):
                pytest.xfail(f"blocked by {blocked}, which is expected to fail")
            pytest.skip(f"blocked by {blocked}")
        if not any(case.tests for case in mine.cases):
            entries = [
                entry
                for part in (whole, *whole.cases)
                for entry in part.not_applicable
                if entry.property in (self.id, "exact/*")
            ]
            reasons = {entry.reason for entry in entries}
            pytest.skip("; ".join(sorted(reasons)) or "nothing to check")
        for entry in self.expected:
            if outcome_of(entry, mine.cases, interrupted=False).state == "undecided":
                pytest.skip("expected to fail, and too little was seen to say that it passes")

    def _only_this(self, cases: Iterable[CaseRecord], certificate: Certificate) -> Certificate:
        """What the certificate says of this property, and of cases that failed."""
        cases = [self._of_case(case) for case in cases]
        said = [f"{case.id}: {case.reason}" for case in cases if case.verdict == "violated"]
        return certificate.model_copy(
            update={
                "cases": tuple(cases),
                "verdict": worst(case.verdict for case in cases),
                "reason": "; ".join(said[:1]) or "nothing was rejected",
                "not_applicable": (),
                "log_e": None,
            }
        )

    def _of_case(self, case: CaseRecord) -> CaseRecord:
        tests = tuple(test for test in case.tests if test.property == self.id)
        if case.verdict == "error":
            return case.model_copy(update={"tests": tests})
        violated = any(test.decision == "violated" for test in tests)
        update: dict[str, Any] = {
            "tests": tests,
            "verdict": "violated" if violated else "preserved",
            "reason": self.id if violated else "",
            "not_applicable": (),
            "bounds": (),
            "findings": case.findings if self.plan.options.get("strict") else (),
        }
        shown = case.counterexample
        if shown is None or shown.property != self.id:
            update |= {"counterexample": None, "diagnosis": None}
        return case.model_copy(update=update)


@dataclass(frozen=True, repr=False)
class FindingsCheck:
    """What a strict session asks of a shared run beside its properties: that it has no finding."""

    evidence: str
    plan: CheckPlan
    chapter = "findings"
    expected = ()

    @property
    def id(self) -> str:
        """`findings.sampled` or `findings.exact`."""
        return f"findings.{self.evidence}"

    @property
    def group(self) -> str:
        """See `PropertyCheck`."""
        return f"{self.plan.subject.name}/{self.evidence}"

    def __repr__(self) -> str:
        return f"FindingsCheck({self.plan.subject.name!r}, {self.evidence!r})"

    def __call__(self) -> Certificate:
        """Check it.

        Raises:
            ConformanceError: there are findings, in a case without an expected failure.
        """
        whole = self.plan.shared(self.evidence)
        counted = beside_expected(whole.cases, self.plan.known)
        found = [case.model_copy(update={"tests": ()}) for case in counted if case.findings]
        mine = whole.model_copy(update={"cases": tuple(found), "not_applicable": ()})
        self.plan.judge(self.id, "violated" if found else "preserved", whole)
        _raise_for_findings(mine)
        return mine


Check = PropertyCheck | FindingsCheck


def property_checks(
    subject: Subject | Callable[..., Any] | str, pair: Pair | str | None = None, **options: Any
) -> list[Check]:
    """A check for every property that can be asked of a subject, by id.

    Args:
        subject: what to test; see `specverify.certify`.
        pair: the models to test it on.
        **options: of `specverify.certify`, and `kind`; see `request`.

    Raises:
        UsageError: the request makes no sense.
    """
    loaded, pair, options = request(subject, pair, options)
    only = options.pop("only", ("*",))
    sample, exact = options.pop("sample", True), options.pop("exact", True)
    everything = properties_of(loaded.kind)
    unmet = {p.id: why for p in everything if (why := unmet_need(p, loaded)) is not None}
    taken = {"sampled": sample, "exact": exact, "probed": exact}
    askable = [p for p in everything if p.id not in unmet and taken[p.evidence]]
    shared = {
        evidence: tuple(p.id for p in askable if p.evidence == evidence)
        for evidence in ("sampled", "exact")
    }
    plan = CheckPlan(
        loaded,
        pair,
        options,
        Known.of(expectations_of(options.get("expected"), loaded), everything),
        tuple(NotApplicable(property=p, reason=why) for p, why in unmet.items()),
        tuple(askable),
        {evidence: ids for evidence, ids in shared.items() if ids},
    )
    chosen = {p.id for p in chosen_of(everything, only)}
    checks: list[Check] = [PropertyCheck(p, plan) for p in askable if p.id in chosen]
    if options.get("strict"):
        run = {check.asked.evidence for check in checks if isinstance(check, PropertyCheck)}
        checks += [FindingsCheck(evidence, plan) for evidence in plan.together if evidence in run]
    return checks


def _blocked(certificate: Certificate) -> str:
    """What a property is blocked by; empty if it is not."""
    alarms = [t for case in certificate.cases for t in case.tests if t.decision in FAILING]
    details = (test.detail for test in alarms if test.decision == "blocked")
    return next(details, "").removeprefix(BLOCKED_BY)


def _raise_for_findings(certificate: Certificate) -> None:
    if not certificate.strict:
        return
    for case in certificate.cases:
        if case.findings:
            raise of_part(f"strict, in {case.id}: {case.findings[0]}", certificate)
    if certificate.findings:
        raise of_part(f"strict: {certificate.findings[0]}", certificate)
