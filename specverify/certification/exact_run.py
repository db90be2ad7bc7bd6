"""Running and judging the cases of a subject that have exact evidence."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specverify.certification.certificate import CaseRecord, NotApplicable, TestRecord
from specverify.certification.exact_evidence import ExactEvidence
from specverify.certification.exact_rounds import RoundCase, exact_rounds
from specverify.certification.exact_rule import steer_rule
from specverify.certification.exact_runs import RunCase, exact_runs, steer_decoder
from specverify.certification.exact_transform import (
    TransformedCase,
    steer_transform,
    transformed_cases,
)
from specverify.certification.judge import case_verdict, test_records
from specverify.certification.records import settings_record
from specverify.certification.registry import Property
from specverify.certification.verdict import Verdict, listed, worst
from specverify.errors import CannotSteer, CoupledRandomness, OutsideRandomness, SubjectError
from specverify.statistics.budget import Budget
from specverify.subjects.protocols import Subject

Case = RoundCase | RunCase | TransformedCase


def exact_cases(subject: Subject, presets: Sequence[str]) -> Sequence[Case]:
    """What a subject is steered through.

    Args:
        subject: a rule, which knows no settings, a transform, or a decoder.
        presets: names of the presets that a decoder is certified under.
    """
    if subject.kind == "rule":
        return exact_rounds(subject.capabilities.algorithm)
    if subject.kind == "transform":
        return transformed_cases(subject.reference)
    return exact_runs(subject, presets) if subject.capabilities.tiny_models else ()


def run_exact_case(
    subject: Subject,
    case: Case,
    properties: Sequence[Property],
    budget: Budget,
    seed: int,
    time_limit: float,
) -> CaseRecord | CannotSteer:
    """Compute the distribution of one case and judge it.

    Returns:
        The record, or why there is none: sampled evidence has to do then.
    """
    begin = time.perf_counter()
    try:
        evidence = _steer(subject, case, seed, time_limit)
    except CannotSteer as refusal:
        return refusal
    except SubjectError as error:
        return CaseRecord(id=case.id, verdict="error", reason=str(error), **case_fields(case))
    records: list[TestRecord] = []
    findings = list(evidence.findings)
    skipped: list[NotApplicable] = []
    if evidence.rows_unknown is not None:
        skipped.append(NotApplicable(property="randomness.own_draws", reason=evidence.rows_unknown))
    for property in properties:
        outcome = property.check(evidence, budget.alpha)
        if not outcome.asked:
            continue
        if outcome.not_applicable:
            skipped.append(NotApplicable(property=property.id, reason=outcome.not_applicable))
            continue
        records += test_records(property, outcome, budget, "exact")
        findings += outcome.findings
    verdict, reason = _verdict(evidence, records)
    distance = evidence.to_target
    if distance is None:
        distance = evidence.comparison.total_variation
    return CaseRecord(
        id=case.id,
        verdict=verdict,
        reason=reason,
        tests=tuple(records),
        tv_bound=distance,
        tv_bound_alpha=0.0,
        findings=tuple(dict.fromkeys(findings)),
        not_applicable=tuple(skipped),
        error=_crashes(evidence) if verdict == "violated" else "",
        seconds=time.perf_counter() - begin,
        **case_fields(case),
    )


def refused(refusals: Mapping[str, CannotSteer]) -> Iterator[tuple[str, str]]:
    """Entries of the list of what is not applicable, one for each reason, from those by case."""
    cases: dict[str, list[str]] = {}
    for case, refusal in refusals.items():
        cases.setdefault(str(refusal), []).append(case)
    for reason, ids in cases.items():
        yield "exact/*", f"in {listed(ids)}: {reason}"


def coupled(refusals: Mapping[str, CannotSteer]) -> tuple[str, ...]:
    """Refusals that are mistakes of the subject, each once."""
    mistakes = (refusal for refusal in refusals.values() if isinstance(refusal, CoupledRandomness))
    return tuple(dict.fromkeys(f"couples its randomness: {refusal}" for refusal in mistakes))


def undetermined(refusals: Mapping[str, CannotSteer], subject: Subject) -> tuple[str, ...]:
    """Refusals of a subject that is to draw everything from its generator and does not, each once.

    One that declares the global generators may draw from all of them, and not all can be followed.
    """
    if not subject.capabilities.generator:
        return ()
    outside = (refusal for refusal in refusals.values() if isinstance(refusal, OutsideRandomness))
    return tuple(dict.fromkeys(f"is not determined by its seed: {refusal}" for refusal in outside))


def _steer(subject: Subject, case: Case, seed: int, time_limit: float) -> ExactEvidence:
    if isinstance(case, RoundCase):
        return steer_rule(subject, case, seed, time_limit)
    if isinstance(case, TransformedCase):
        return steer_transform(subject, case, seed, time_limit)
    return steer_decoder(subject, case, seed, time_limit)


def _verdict(evidence: ExactEvidence, records: Sequence[TestRecord]) -> tuple[Verdict, str]:
    verdict, reason = case_verdict(records)
    if failed := _crashes(evidence):
        reason = f"{reason}; {failed}" if verdict == "violated" else failed
        return worst([verdict, "error"]), reason
    if verdict == "preserved" and evidence.to_target is not None:
        contract = evidence.subject.capabilities.lossy
        assert contract is not None
        return "lossy-as-declared", (
            f"exact: as {contract.name} says, TV {evidence.to_target:.3g} from the target over "
            f"{evidence.case.size}"
        )
    if verdict == "preserved":
        distance = evidence.comparison.total_variation
        return verdict, f"exact: TV {distance:.1e} over {evidence.case.size}"
    return verdict, reason


def _crashes(evidence: ExactEvidence) -> str:
    return "; ".join(
        f"with probability {mass:.3g} {text.removeprefix('SubjectError: ')}"
        for text, mass in evidence.joint.crashes.items()
    )


def case_fields(case: Case) -> dict[str, Any]:
    """Fields of a record that say what the case is."""
    settings = {}
    if isinstance(case, RunCase):
        settings = settings_record(case.settings)
    elif isinstance(case, TransformedCase):
        settings = case.transform.record
    return {"settings": settings, "num_draft_tokens": case.num_draft_tokens}
