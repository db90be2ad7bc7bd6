"""Running and judging probed properties."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specverify.certification.certificate import CaseRecord, Evidence
from specverify.certification.judge import case_verdict, test_records
from specverify.certification.probes.trial import Trial
from specverify.certification.registry import Outcome, Property
from specverify.certification.verdict import PROBE
from specverify.errors import CannotSteer, SubjectError
from specverify.statistics.budget import Budget
from specverify.subjects.protocols import Subject


@dataclass(frozen=True)
class Probe:
    """A property on one of its inputs."""

    asked: Property
    input: str

    @property
    def id(self) -> str:
        """Of the case."""
        return f"{PROBE}{self.asked.id}/{self.input}"


def probes_of(properties: Sequence[Property]) -> list[Probe]:
    """All probes of some probed properties."""
    return [Probe(property, input) for property in properties for input in property.inputs]


def new_trial(subject: Subject, probe: Probe, seed: int, time_limit: float) -> Trial:
    """A trial of the subject's kind."""
    if subject.kind == "rule":
        from specverify.certification.probes.rule_trial import RuleTrial as Kind
    elif subject.kind == "decoder":
        from specverify.certification.probes.decoder_trial import DecoderTrial as Kind
    else:
        from specverify.certification.probes.transform_trial import TransformTrial as Kind
    return Kind(subject, probe.id, probe.input, seed, time_limit)


def run_probe(
    subject: Subject, probe: Probe, budget: Budget, seed: int, time_limit: float
) -> CaseRecord | str:
    """Try a property on one of its inputs.

    Returns:
        The record, or why there is none.
    """
    begin = time.perf_counter()
    trial = new_trial(subject, probe, seed, time_limit)
    trial.share = budget.share
    try:
        outcome: Outcome = probe.asked.check(trial, budget.share)
    except CannotSteer as refusal:
        return str(refusal)
    except SubjectError as error:
        return CaseRecord(
            id=probe.id,
            verdict="error",
            reason=str(error),
            findings=tuple(trial.findings),
            seconds=time.perf_counter() - begin,
        )
    if outcome.not_applicable is not None:
        return outcome.not_applicable
    records = test_records(probe.asked, outcome, budget, _evidence(outcome))
    verdict, reason = case_verdict(records)
    computed = outcome.details.get("exact")
    return CaseRecord(
        id=probe.id,
        verdict=verdict,
        reason=reason,
        tests=tuple(records),
        tv_bound=None if computed is None else computed["total_variation"],
        tv_bound_alpha=None if computed is None else 0.0,
        findings=tuple(dict.fromkeys((*trial.findings, *outcome.findings))),
        seconds=time.perf_counter() - begin,
    )


def skipped(reasons: dict[str, tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Entries of the list of what is not applicable: one for a property and a reason.

    Args:
        reasons: property and reason by case.
    """
    inputs: dict[tuple[str, str], list[str]] = {}
    for id, entry in reasons.items():
        inputs.setdefault(entry, []).append(id.rpartition("/")[2])
    for (property, reason), names in inputs.items():
        yield property, f"{', '.join(names)}: {reason}"


def _evidence(outcome: Outcome) -> Evidence:
    if "exact" in outcome.details:
        return "exact"
    return "sampled" if outcome.tests else "structural"
