"""Running one case of a certificate again, from what the certificate says of it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest

from specverify.certification.certificate import CaseRecord, Certificate, Decision, TestRecord
from specverify.certification.counterexamples.result import Result
from specverify.certification.counterexamples.stored import compute_stored
from specverify.certification.decoder_run import Sampling, run_decoder_case
from specverify.certification.exact_run import exact_cases, run_exact_case
from specverify.certification.phases import single_threaded
from specverify.certification.plan import plan_decoder
from specverify.certification.probes.run import probes_of, run_probe
from specverify.certification.registry import Property, properties_of, unmet_need
from specverify.certification.transform_case import transform_cases
from specverify.certification.transform_run import run_transform_case
from specverify.certification.verdict import EXACT, FUZZ, PROBE
from specverify.errors import CannotSteer, UsageError
from specverify.lookup import did_you_mean, import_object
from specverify.models.pairs import Pair, load_pair
from specverify.settings import SamplingSettings
from specverify.statistics.budget import Budget
from specverify.subjects.protocols import Subject

_RELATIVE = 1e-9
"""Numbers closer than this are the same: machines of another kind round differently."""
_ABSOLUTE = 1e-12


@dataclass(frozen=True)
class Replay:
    """One case, as it was and as it is."""

    recorded: CaseRecord
    now: CaseRecord
    differences: tuple[str, ...]
    """In words; none if the result is the same."""


def recorded_case(certificate: Certificate, case_id: str) -> CaseRecord:
    """Look a case up.

    Raises:
        UsageError: the certificate has no such case; the message suggests one.
    """
    cases = {case.id: case for case in certificate.cases}
    if case_id not in cases:
        suggested = did_you_mean(case_id, cases) or "; its cases begin with " + ", ".join(
            list(cases)[:5]
        )
        raise UsageError(f"the certificate has no case {case_id!r}{suggested}")
    return cases[case_id]


def check_subject(certificate: Certificate, subject: Subject) -> None:
    """Refuse a subject that a certificate is not about.

    Raises:
        UsageError: it has another name or kind.
    """
    of = certificate.subject
    if subject.kind != of.kind or subject.name != of.name:
        raise UsageError(
            f"the certificate is of {of.name!r}, a {of.kind}; {subject.name!r} is another subject, "
            f"a {subject.kind}: certify that by itself"
        )


def replay_case(
    certificate: Certificate,
    case_id: str,
    subject: Subject,
    pair: Pair | None = None,
    *,
    time_limit: float = 60.0,
) -> Replay:
    """Run one case again, with the seed, the settings and the share of the budget it had.

    Args:
        certificate: that has the case.
        case_id: of the case.
        subject: that the certificate is of.
        pair: that it was sampled on; by the name in the certificate when omitted.
        time_limit: seconds for one call of the subject.

    Raises:
        UsageError: there is no such case, the subject or the pair is another one, or the suite has
            no such case any more.
    """
    check_subject(certificate, subject)
    recorded = recorded_case(certificate, case_id)
    with single_threaded():
        now = _run(certificate, recorded, subject, pair, time_limit)
    return Replay(recorded, now, tuple(_differences(recorded, now)))


def replay_counterexample(
    certificate: Certificate, case_id: str, subject: Subject, *, time_limit: float = 60.0
) -> tuple[Result, bool]:
    """Compute a subject on the counterexample of a case again.

    Returns:
        What it emits now, and whether its distance is the same as before.

    Raises:
        UsageError: as `replay_case`, or the case has no counterexample that can be run.
        CannotSteer: the subject cannot be followed any more.
    """
    check_subject(certificate, subject)
    record = recorded_case(certificate, case_id).counterexample
    if record is None:
        having = [case.id for case in certificate.cases if case.counterexample is not None]
        where = f"; {', '.join(having)} has one" if having else ""
        raise UsageError(f"case {case_id!r} has no counterexample{where}")
    with single_threaded():
        result = compute_stored(record, subject, certificate.seed, time_limit)
    before = record.total_variation or 0.0
    return result, abs(result.comparison.total_variation - before) <= result.tolerance


def _run(
    certificate: Certificate,
    recorded: CaseRecord,
    subject: Subject,
    pair: Pair | None,
    time_limit: float,
) -> CaseRecord:
    alpha = certificate.alpha if subject.kind == "transform" else certificate.alpha / 2
    budget = Budget(alpha, certificate.tests)
    properties = [p for p in properties_of(subject.kind) if unmet_need(p, subject) is None]
    if recorded.id.startswith(EXACT):
        return _exact(certificate, recorded, subject, properties, budget, time_limit)
    if recorded.id.startswith(PROBE):
        return _probe(certificate, recorded, subject, properties, budget, time_limit)
    if recorded.id.startswith(FUZZ):
        from specverify.certification.fuzzing.run import replay_fuzzed

        return replay_fuzzed(recorded, subject, certificate.seed, time_limit)
    sampled = [p for p in properties if p.evidence == "sampled"]
    if subject.kind == "transform":
        for case in transform_cases(subject.reference):
            if case.id == recorded.id:
                arguments = (sampled, budget, certificate.seed, time_limit)
                return run_transform_case(subject, case, *arguments)
        raise _gone(recorded)
    return _sampled(certificate, recorded, subject, pair, sampled, budget, time_limit)


def _exact(
    certificate: Certificate,
    recorded: CaseRecord,
    subject: Subject,
    properties: list[Property],
    budget: Budget,
    time_limit: float,
) -> CaseRecord:
    asked = [p for p in properties if p.evidence == "exact"]
    for case in exact_cases(subject, (recorded.id.removeprefix(EXACT),)):
        if case.id == recorded.id:
            return _record(
                run_exact_case(subject, case, asked, budget, certificate.seed, time_limit)
            )
    raise _gone(recorded)


def _probe(
    certificate: Certificate,
    recorded: CaseRecord,
    subject: Subject,
    properties: list[Property],
    budget: Budget,
    time_limit: float,
) -> CaseRecord:
    for probe in probes_of([p for p in properties if p.evidence == "probed"]):
        if probe.id == recorded.id:
            return _record(run_probe(subject, probe, budget, certificate.seed, time_limit))
    raise _gone(recorded)


def _sampled(
    certificate: Certificate,
    recorded: CaseRecord,
    subject: Subject,
    pair: Pair | None,
    properties: list[Property],
    budget: Budget,
    time_limit: float,
) -> CaseRecord:
    pair = pair or load_pair(certificate.pair)
    if pair.name != certificate.pair:
        raise UsageError(
            f"the case was sampled on pair {certificate.pair!r}, not on {pair.name!r}; leave "
            "the pair out, or name that one"
        )
    settings = _settings(recorded)
    plan = plan_decoder(
        subject,
        pair,
        {recorded.id: settings},
        profile=certificate.profile,
        num_draft_tokens=recorded.num_draft_tokens,
        tokens=None,
        time_limit=time_limit,
        run_length=settings.max_new_tokens,
    )
    (planned,) = plan.cases
    planned = replace(planned, case=replace(planned.case, runs=recorded.planned_runs), request=None)
    now, _ = run_decoder_case(
        subject,
        planned,
        properties,
        budget,
        certificate.seed,
        lambda event: None,
        alpha=certificate.alpha,
        sampling=Sampling(stop_early=bool(recorded.stopped)),
    )
    return now


def _settings(recorded: CaseRecord) -> SamplingSettings:
    """Settings from their record; a constraint is imported by its name."""
    fields = dict(recorded.settings)
    constraint = fields.get("allowed_tokens")
    if isinstance(constraint, str):
        fields["allowed_tokens"] = import_object(constraint)
    return SamplingSettings(**fields)


def _record(result: CaseRecord | CannotSteer | str) -> CaseRecord:
    """What came of a case, or why there is nothing now, as an inconclusive record."""
    if isinstance(result, CaseRecord):
        return result
    return CaseRecord(id="", verdict="inconclusive", reason=str(result))


def _gone(recorded: CaseRecord) -> UsageError:
    return UsageError(
        f"this version of specverify has no case {recorded.id!r}; install the one that wrote the "
        "certificate, or certify anew"
    )


def _differences(recorded: CaseRecord, now: CaseRecord) -> Iterator[str]:
    if recorded.verdict != now.verdict:
        reason = f" ({now.reason})" if now.reason else ""
        yield f"the verdict was {recorded.verdict}, and is {now.verdict}{reason}"
    for before, after in zip_longest(recorded.tests, now.tests):
        if before is None or after is None or before.property != after.property:
            yield "other properties were judged: the suite has changed"
            return
        yield from _test_differences(before, after)


def _test_differences(before: TestRecord, after: TestRecord) -> Iterator[str]:
    what = f"{before.property} {before.test or ''}".strip()
    if _root(before.decision) != _root(after.decision):
        yield f"{what}: {before.decision} before, {after.decision} now"
    numbers = [
        ("statistic", before.statistic, after.statistic),
        ("n", before.n, after.n),
        ("total variation", _distance(before), _distance(after)),
    ]
    for name, old, new in numbers:
        if not _same(old, new):
            yield f"{what}: {name} {old} before, {new} now"


def _root(decision: Decision) -> Decision:
    """A case by itself does not know what blocks it."""
    return "violated" if decision == "blocked" else decision


def _distance(test: TestRecord) -> float | None:
    return None if test.exact is None else test.exact.total_variation


def _same(old: float | None, new: float | None) -> bool:
    if old is None or new is None:
        return old is new
    return math.isclose(old, new, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
