"""Certificates without a run: what a report or a merge makes of given cases."""

from datetime import UTC, datetime

from specverify.certification.case_records import CaseRecord, TestRecord
from specverify.certification.certificate import (
    Certificate,
    EnvironmentRecord,
    SubjectRecord,
    SuiteRecord,
)

START = datetime(2026, 1, 1, tzinfo=UTC)


def plain_case(id: str, property: str, decision: str = "pass", **more: object) -> CaseRecord:
    """A case with one exact test."""
    test = TestRecord.model_validate(
        {"property": property, "claim": "c", "evidence": "exact", "decision": decision}
    )
    verdict = "violated" if decision == "violated" else "preserved"
    return CaseRecord(id=id, verdict=verdict, tests=(test,)).model_copy(update=more)


def plain_certificate(*cases: CaseRecord, **more: object) -> Certificate:
    """The certificate of a rule that passed on the toy pair."""
    plain = Certificate(
        verdict="preserved",
        reason="nothing was rejected",
        level="numerical",
        subject=SubjectRecord(name="mine:verify", kind="rule"),
        suite=SuiteRecord(version="0"),
        environment=EnvironmentRecord(python="3", torch="2", numpy="2"),
        pair="toy",
        profile="quick",
        seed=0,
        alpha=1e-6,
        tests=1,
        cases=cases,
        started=START,
        finished=START,
        seconds=1.0,
    )
    return plain.model_copy(update=more)
