"""Running and judging one case of a decoder or a rule."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
    judged = _judge(evidence, properties, budget)
    verdict, reason = case_verdict(judged.records)
    if failure is not None:
        reason = f"{reason}; later {failure}" if verdict == "violated" else failure
        verdict = worst([verdict, "error"])
    elif interrupted and verdict != "violated":
        verdict = "inconclusive"
        reason = f"interrupted after {evidence.runs:,} of {case.runs:,} runs"
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
        tests=tuple(judged.records),
        runs=evidence.runs,
        tokens=evidence.tokens,
        tv_bound=judged.bound,
        tv_bound_alpha=budget.alpha if judged.bound is not None else None,
        missing=judged.missing,
        counters=_counters(evidence),
        findings=(*sampler.findings, *judged.findings),
        not_applicable=(*not_applicable, *judged.not_applicable),
        seconds=time.perf_counter() - begin,
    )
    return record, interrupted


@dataclass
class _Judged:
    """What all properties together found on one case."""

    records: list[TestRecord] = field(default_factory=list)
    bound: float | None = None
    missing: str | None = None
    findings: list[str] = field(default_factory=list)
    not_applicable: list[NotApplicable] = field(default_factory=list)


def _judge(evidence: DecoderEvidence, properties: Sequence[Property], budget: Budget) -> _Judged:
    """Check every property on what was tallied."""
    judged = _Judged()
    for property in properties if evidence.runs else ():
        outcome = property.check(evidence, budget.alpha)
        if outcome.not_applicable:
            reason = outcome.not_applicable
            judged.not_applicable.append(NotApplicable(property=property.id, reason=reason))
            continue
        kind = "sampled" if outcome.tests else "structural"
        judged.records += test_records(property, outcome, budget, kind)
        judged.findings += outcome.findings
        if outcome.tv_bound is not None:
            judged.bound = outcome.tv_bound
        judged.missing = outcome.missing or judged.missing
    return judged


def _counters(evidence: DecoderEvidence) -> dict[str, Any]:
    """Draft tokens accepted in the first round, where the subject reports them."""
    accepted = evidence.first_rounds.accepted
    if not accepted:
        return {}
    return {"first_round_accepted": {str(count): accepted[count] for count in sorted(accepted)}}
