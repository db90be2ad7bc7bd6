"""Running and judging one case of a transform."""

import time
from collections.abc import Sequence

from specverify.certification.certificate import CaseRecord, TestRecord
from specverify.certification.judge import case_verdict, test_records
from specverify.certification.random_transform import run_random_transform
from specverify.certification.registry import Property
from specverify.certification.transform_case import TransformCase
from specverify.certification.transform_evidence import run_transform
from specverify.errors import CannotSteer, SubjectError
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
        gather = run_random_transform if case.random else run_transform
        evidence = gather(subject, case, seed, time_limit)
    except SubjectError as error:
        verdict, reason = "error", str(error)
    except CannotSteer as refusal:
        # Nothing else is known of a law than what is computed.
        verdict, reason = "error", f"its coins cannot be followed: {refusal}"
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
