"""Running and judging one case of a transform."""

import time
from collections.abc import Sequence

from specverify.certification.certificate import CaseRecord, TestRecord
from specverify.certification.judge import case_verdict, test_records
from specverify.certification.registry import Property
from specverify.certification.transform_case import TransformCase
from specverify.certification.transform_evidence import run_transform
from specverify.errors import SubjectError
from specverify.statistics.budget import Budget
from specverify.subjects.protocols import Subject


def run_transform_case(
    subject: Subject,
    case: TransformCase,
    properties: Sequence[Property],
    budget: Budget,
    seed: int,
    time_limit: float,
) -> CaseRecord:
    """Compare a transform with its reference under one set of parameters."""
    begin = time.perf_counter()
    records: list[TestRecord] = []
    findings: tuple[str, ...] = ()
    try:
        evidence = run_transform(subject, case, seed, time_limit)
    except SubjectError as error:
        verdict, reason = "error", str(error)
    else:
        findings = evidence.findings
        for property in properties:
            outcome = property.check(evidence, budget.alpha)
            records += test_records(property, outcome, budget, "structural")
            findings += outcome.findings
        verdict, reason = case_verdict(records)
    return CaseRecord(
        id=case.id,
        verdict=verdict,
        reason=reason,
        settings=case.record,
        tests=tuple(records),
        findings=findings,
        seconds=time.perf_counter() - begin,
    )
