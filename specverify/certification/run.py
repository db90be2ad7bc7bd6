"""Certifying a subject: plan, run, judge, write down."""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import torch

from specverify.certification.certificate import CaseRecord, Certificate, Level, NotApplicable
from specverify.certification.decoder_run import run_decoder_case
from specverify.certification.exact_run import coupled, exact_cases, refused, run_exact_case
from specverify.certification.plan import Plan, plan_decoder
from specverify.certification.profiles import profile_named
from specverify.certification.progress import ProgressEvent
from specverify.certification.records import environment_record, subject_record, suite_record
from specverify.certification.registry import Property, properties_of
from specverify.certification.transform_case import TransformCase, transform_cases
from specverify.certification.transform_run import run_transform_case
from specverify.certification.verdict import Verdict, listed, worst
from specverify.errors import CannotSteer, OutsideRandomness, UsageError
from specverify.models.pairs import Pair, load_pair
from specverify.settings import SamplingSettings
from specverify.statistics.budget import Budget
from specverify.subjects.guard import DEFAULT_TIME_LIMIT
from specverify.subjects.protocols import Subject
from specverify.subjects.registry import load_subject

ALPHA = 1e-6
"""Probability that a run of a right implementation raises any alarm."""

_REFUSED = 3
"""Exact cases refused from the start after which a subject counts as one that cannot be steered."""

Progress = Callable[[ProgressEvent], None]


def certify(
    subject: Subject | str,
    pair: Pair | str = "toy",
    *,
    settings: Mapping[str, SamplingSettings] | None = None,
    profile: str = "quick",
    seed: int = 0,
    progress: Progress | None = None,
    time_limit: float = DEFAULT_TIME_LIMIT,
    num_draft_tokens: int | None = None,
    tokens: int | None = None,
    exact: bool = True,
    command: Sequence[str] = (),
) -> Certificate:
    """Test an implementation against its contract and say how well it holds.

    Args:
        subject: what to test, or its name (see `load_subject`).
        pair: the models to test it on, or their name (see `load_pair`); a transform needs none.
        settings: the contracts to test under, by name; the presets when omitted.
        profile: quick, standard or thorough; how many tokens are sampled.
        seed: everything random derives from it.
        progress: told how far each case has got.
        time_limit: seconds a single call of the subject may take.
        num_draft_tokens: K, draft tokens a round; the pair's own when omitted.
        tokens: tokens to sample over all settings, instead of the profile's number.
        exact: whether to compute distributions, beside sampling, where the subject can be steered.
        command: the command line to record.

    Returns:
        The certificate. A subject that crashes, hangs or returns nonsense has verdict `error`; an
        interrupt ends the run early with what was computed.

    Raises:
        UsageError: the request makes no sense; raised before any work.
    """
    _check_request(profile, seed, time_limit)
    subject = load_subject(subject) if isinstance(subject, str) else subject
    begin, started = time.perf_counter(), datetime.now(UTC)
    properties = properties_of(subject.kind)
    unmet = {p.id: reason for p in properties if (reason := p.needs(subject)) is not None}
    applicable = [p for p in properties if p.id not in unmet]
    computed = [p for p in applicable if p.evidence == "exact"]
    applicable = [p for p in applicable if p.evidence != "exact"]
    not_applicable = list(unmet.items())
    refusals: dict[str, CannotSteer] = {}
    report = progress or (lambda event: None)
    with single_threaded():
        if subject.kind == "transform":
            cases = transform_cases(subject.reference)
            budget = Budget(ALPHA)
            dtype, pair_name, prompts = "float32", "", ()
            presets: Sequence[str] = ()
            records = _transform_records(
                subject, cases, applicable, budget, seed, time_limit, report
            )
        else:
            pair = load_pair(pair) if isinstance(pair, str) else pair
            plan = plan_decoder(
                subject,
                pair,
                settings,
                profile=profile,
                num_draft_tokens=num_draft_tokens,
                tokens=tokens,
                time_limit=time_limit,
            )
            budget = Budget(ALPHA, max(1, len(plan.cases) * sum(p.tests for p in applicable)))
            dtype, pair_name, prompts = plan.dtype, pair.name, pair.prompts
            not_applicable += [(f"settings.{name}", reason) for name, reason in plan.left_out]
            presets = plan.presets
            records = _decoder_records(subject, plan, applicable, budget, seed, report)
        if exact:
            computing = _exact_records(
                subject, presets, computed, budget, seed, time_limit, report, refusals
            )
            records = itertools.chain(records, computing)
        done, interrupted = _collect(records)
        not_applicable += refused(refusals)
        environment = environment_record(dtype=dtype)
    verdict = _verdict(done, interrupted=interrupted)
    return Certificate(
        verdict=verdict,
        reason=_reason(done, verdict, interrupted=interrupted),
        level=_level(subject, dtype),
        subject=subject_record(subject),
        suite=suite_record(),
        environment=environment,
        pair=pair_name,
        prompts=prompts,
        profile=profile,
        seed=seed,
        alpha=budget.alpha,
        tests=budget.tests,
        cases=tuple(done),
        not_applicable=tuple(NotApplicable(property=p, reason=r) for p, r in not_applicable),
        findings=coupled(refusals),
        interrupted=interrupted,
        started=started,
        finished=datetime.now(UTC),
        seconds=time.perf_counter() - begin,
        command=tuple(command),
    )


def _check_request(profile: str, seed: int, time_limit: float) -> None:
    profile_named(profile)
    if seed < 0:
        raise UsageError(f"seed={seed}; give a whole number of at least 0")
    if not (math.isfinite(time_limit) and time_limit > 0):
        raise UsageError(f"time_limit={time_limit}; give a positive number of seconds for one call")


@contextmanager
def single_threaded() -> Iterator[None]:
    """Run torch on one thread, so that float sums do not depend on the number of cores.

    Small batches are also faster that way: the threads of a pool spend their time waiting.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _transform_records(
    subject: Subject,
    cases: Sequence[TransformCase],
    properties: Sequence[Property],
    budget: Budget,
    seed: int,
    time_limit: float,
    report: Progress,
) -> Iterator[tuple[CaseRecord, bool]]:
    for done, case in enumerate(cases, 1):
        yield run_transform_case(subject, case, properties, budget, seed, time_limit), False
        report(ProgressEvent(case.id, done, len(cases), "cases"))


def _decoder_records(
    subject: Subject,
    plan: Plan,
    properties: Sequence[Property],
    budget: Budget,
    seed: int,
    report: Progress,
) -> Iterator[tuple[CaseRecord, bool]]:
    for planned in plan.cases:
        yield run_decoder_case(subject, planned, properties, budget, seed, report)


def _exact_records(
    subject: Subject,
    presets: Sequence[str],
    properties: Sequence[Property],
    budget: Budget,
    seed: int,
    time_limit: float,
    report: Progress,
    refusals: dict[str, CannotSteer],
) -> Iterator[tuple[CaseRecord, bool]]:
    """Records of the cases whose distribution is computed; refusals by case are added.

    The first case of a rule is one of many decisions, so that hidden randomness shows there. When
    the first `_REFUSED` are refused, the others are not tried: each may take its time limit.
    """
    cases = exact_cases(subject, presets)
    for done, case in enumerate(cases, 1):
        record = run_exact_case(subject, case, properties, budget, seed, time_limit)
        if isinstance(record, OutsideRandomness):
            refusals |= dict.fromkeys((case.id for case in cases), record)
            return
        if isinstance(record, CannotSteer):
            refusals[case.id] = record
            if len(refusals) == done == _REFUSED:
                refusals |= dict.fromkeys((case.id for case in cases[done:]), record)
                return
        else:
            yield record, False
        report(ProgressEvent("exact", done, len(cases), "cases"))


def _collect(records: Iterator[tuple[CaseRecord, bool]]) -> tuple[list[CaseRecord], bool]:
    """Run the cases in order until all are done or the user interrupts."""
    done: list[CaseRecord] = []
    try:
        for record, interrupted in records:
            done.append(record)
            if interrupted:
                return done, True
    except KeyboardInterrupt:
        return done, True
    return done, False


def _level(subject: Subject, dtype: str) -> Level:
    """float64 throughout, as far as is known: models, and what the subject says of its coins."""
    exact = subject.kind == "transform" or subject.capabilities.coin_dtype == "float64"
    return "algorithmic" if dtype == "float64" and exact else "numerical"


def _verdict(cases: Sequence[CaseRecord], *, interrupted: bool) -> Verdict:
    """The worst verdict; cases that were never run leave the rest at best inconclusive."""
    found: list[Verdict] = [case.verdict for case in cases]
    if interrupted:
        found.append("inconclusive")
    return worst(found)


def _reason(cases: Sequence[CaseRecord], verdict: Verdict, *, interrupted: bool) -> str:
    """The reasons of the cases that gave the verdict, each with its case."""
    if verdict == "preserved":
        return _preserved(cases)
    found = [case for case in cases if case.verdict == verdict]
    reasons = [f"{case.id}: {case.reason}" for case in found if not case.computed]
    computed: dict[str, list[str]] = {}
    for case in found:
        if case.computed:
            computed.setdefault(case.reason, []).append(case.id)
    reasons += [f"{listed(ids)}: {reason}" for reason, ids in computed.items()]
    if interrupted and not reasons:
        return f"interrupted after {len(cases)} finished cases"
    return "; ".join(reasons)


def _preserved(cases: Sequence[CaseRecord]) -> str:
    """What speaks for a subject, and what could not be looked at."""
    bounded = any(case.tv_bound is not None for case in cases if not case.computed)
    reason = "nothing was rejected" + (", and every bound is within its limit" if bounded else "")
    if distances := [
        case.tv_bound for case in cases if case.computed and case.tv_bound is not None
    ]:
        number = f"{len(distances)} exact case{'s' * (len(distances) != 1)}"
        reason += f"; TV at most {max(distances):.1e} in {number}"
    untested = sorted(
        {
            f"{test.property} in {case.id}"
            for case in cases
            for test in case.tests
            if test.decision == "untested"
        }
    )
    return f"{reason}; too few counts to test {', '.join(untested)}" if untested else reason
