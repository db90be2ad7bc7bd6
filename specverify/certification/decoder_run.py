"""Running and judging one case of a decoder or a rule."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from specverify.certification.certificate import CaseRecord, NotApplicable, TestRecord
from specverify.certification.decoder_evidence import DecoderEvidence
from specverify.certification.judge import case_verdict, test_records
from specverify.certification.plan import PlannedCase
from specverify.certification.progress import ProgressEvent
from specverify.certification.records import settings_record
from specverify.certification.registry import Property
from specverify.certification.sampled import DecoderSampler
from specverify.certification.verdict import worst
from specverify.errors import SubjectError
from specverify.statistics.budget import Budget
from specverify.subjects.protocols import Subject


def run_decoder_case(
    subject: Subject,
    planned: PlannedCase,
    properties: Sequence[Property],
    budget: Budget,
    seed: int,
    progress: Callable[[ProgressEvent], None],
) -> tuple[CaseRecord, bool]:
    """Sample one case and judge what was sampled.

    Returns:
        The record, and whether the user interrupted the sampling. A subject that failed has
        verdict `error`, or `violated` if what it emitted before is already proof.
    """
    begin = time.perf_counter()
    case = planned.case
    sampler = DecoderSampler(subject, planned.generate, case, planned.rows, seed)
    failure, interrupted = None, False
    try:
        sampler.run(lambda done: progress(ProgressEvent(case.id, done, case.runs, "runs")))
    except SubjectError as error:
        failure = str(error)
    except KeyboardInterrupt:
        interrupted = True
    evidence = sampler.evidence()
    records, bound, missing, findings, skipped = _judge(evidence, properties, budget)
    verdict, reason = case_verdict(records)
    if failure is not None:
        reason = f"{reason}; later {failure}" if verdict == "violated" else failure
        verdict = worst([verdict, "error"])
    elif interrupted and verdict != "violated":
        verdict, reason = (
            "inconclusive",
            f"interrupted after {evidence.runs:,} of {case.runs:,} runs",
        )
    not_applicable = [
        NotApplicable(property=f"settings.{name}", reason="the subject does not honour it")
        for name in planned.dropped
    ]
    record = CaseRecord(
        id=case.id,
        verdict=verdict,
        reason=reason,
        settings=settings_record(case.settings),
        num_draft_tokens=case.num_draft_tokens,
        rows=planned.rows,
        tests=tuple(records),
        runs=evidence.runs,
        tokens=evidence.tokens,
        tv_bound=bound,
        tv_bound_alpha=budget.alpha if bound is not None else None,
        missing=missing,
        counters=_counters(evidence),
        findings=(*sampler.findings, *findings),
        not_applicable=(*not_applicable, *skipped),
        seconds=time.perf_counter() - begin,
    )
    return record, interrupted


def _judge(
    evidence: DecoderEvidence, properties: Sequence[Property], budget: Budget
) -> tuple[list[TestRecord], float | None, str | None, list[str], list[NotApplicable]]:
    """Check every property on what was tallied."""
    records: list[TestRecord] = []
    bound, missing = None, None
    findings: list[str] = []
    skipped: list[NotApplicable] = []
    if not evidence.runs:
        return records, bound, missing, findings, skipped
    for property in properties:
        outcome = property.check(evidence, budget.alpha)
        if outcome.not_applicable:
            skipped.append(NotApplicable(property=property.id, reason=outcome.not_applicable))
            continue
        kind = "sampled" if outcome.tests else "structural"
        records += test_records(property, outcome, budget, kind)
        findings += outcome.findings
        bound = outcome.tv_bound if outcome.tv_bound is not None else bound
        missing = outcome.missing or missing
    return records, bound, missing, findings, skipped


def _counters(evidence: DecoderEvidence) -> dict[str, Any]:
    """Draft tokens accepted in the first round, where the subject reports them."""
    accepted = evidence.first_rounds.accepted
    if not accepted:
        return {}
    return {"first_round_accepted": {str(count): accepted[count] for count in sorted(accepted)}}
