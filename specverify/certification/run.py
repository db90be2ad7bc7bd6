"""Certifying a subject: plan, run, judge, write down."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from specverify.certification.asked import asked_of
from specverify.certification.blocked import with_blocked
from specverify.certification.certificate import CaseRecord, Certificate, NotApplicable
from specverify.certification.decoder_run import Sampling
from specverify.certification.exact_run import coupled, refused, undetermined
from specverify.certification.expected import Expected, Known, expectations_of
from specverify.certification.explain import explained
from specverify.certification.fuzzing.asked import Searching, fuzzing_of
from specverify.certification.kill_record import kill_record
from specverify.certification.limits import ALPHA, LARGEST_ALPHA, LARGEST_SEED, SMALLEST_ALPHA
from specverify.certification.overall import beside_expected, overall
from specverify.certification.phases import (
    Progress,
    Run,
    collect,
    decoder_records,
    exact_records,
    global_generators_kept,
    probe_records,
    single_threaded,
    transform_records,
)
from specverify.certification.plan import Plan, plan_decoder
from specverify.certification.probes.run import skipped
from specverify.certification.profiles import profile_named
from specverify.certification.records import (
    environment_record,
    run_manifest,
    subject_record,
    suite_record,
)
from specverify.certification.registry import properties_of
from specverify.certification.summary import level_of
from specverify.certification.together import with_adjusted
from specverify.certification.verdict import NOT_ASKED
from specverify.errors import UsageError
from specverify.models.pairs import Pair, load_pair
from specverify.sampling.engines import Engine, InProcess
from specverify.sampling.processes import Processes
from specverify.sampling.store import ShardStore
from specverify.settings import SamplingSettings
from specverify.subjects.guard import DEFAULT_TIME_LIMIT
from specverify.subjects.protocols import Subject
from specverify.subjects.registry import as_subject
from specverify.subjects.side_effects import lifted
from specverify.subjects.watchdog import LONGEST


def certify(
    subject: Subject | Callable[..., Any] | str,
    pair: Pair | str = "toy",
    *,
    settings: Mapping[str, SamplingSettings] | None = None,
    profile: str = "quick",
    seed: int = 0,
    alpha: float = ALPHA,
    progress: Progress | None = None,
    time_limit: float = DEFAULT_TIME_LIMIT,
    num_draft_tokens: int | None = None,
    tokens: int | None = None,
    run_length: int | None = None,
    exact: bool = True,
    jobs: int = 1,
    engine: Engine | None = None,
    isolate: bool = False,
    resume: str | Path | None = None,
    stop_early: bool = True,
    shrink: bool = True,
    sample: bool = True,
    only: Sequence[str] = ("*",),
    expected: Expected = None,
    strict: bool = False,
    fuzz_time: float | None = None,
    fuzz_inputs: int | None = None,
    database: str | Path | None = None,
    command: Sequence[str] = (),
) -> Certificate:
    """Test an implementation against its contract and say how well it holds.

    Args:
        subject: what to test: a `Subject`, a function decorated with `@specverify.subject`, or a
            name (see `load_subject`).
        pair: the models to test it on, or their name (see `load_pair`); a transform needs none.
        settings: the contracts to test under, by name; the presets when omitted.
        profile: quick, standard or thorough; how many tokens are sampled. fuzz: as many as quick,
            and then a search by random inputs.
        seed: everything random derives from it.
        alpha: false-alarm budget of the run: the probability that a right implementation is called
            violated, whatever the number of tests.
        progress: told how far each case has got.
        time_limit: seconds a single call of the subject may take.
        num_draft_tokens: K, draft tokens a round; the pair's own when omitted.
        tokens: tokens to sample over all settings, at most, instead of the profile's number.
        run_length: tokens a run has at most; K + 2 when omitted, which shows every position of a
            block and the token after it.
        exact: whether to compute distributions, where the subject can be steered, and to probe it
            on small cases, beside sampling.
        jobs: processes that sample; the certificate does not depend on it.
        engine: runs the shards instead of `jobs` processes; see `sampling.engines.Engine`.
        isolate: whether the subject runs in processes of its own only: when it ends one, or a call
            never returns, that case is an `error`, and the others go on. A subject that does
            neither has the same certificate either way.
        resume: folder that keeps finished shards while the run lasts; with those of a run that was
            ended, it goes on where that one was.
        stop_early: whether a case ends as soon as it is violated, or its bounds are reached.
        sample: whether to sample runs on the pair, beside what is computed and probed.
        only: properties to check, by id or pattern such as `joint.*`; `history.settings/top_k` is
            one input of a probed property.
        expected: failures that are known, an `expected.toml` or its entries; the verdict is formed
            without them, see `Certificate.expectations`.
        strict: whether findings, deviations below the tolerance that have a cause, are violations.
        fuzz_time: of profile fuzz: seconds the search goes on; 60 when neither this nor
            `fuzz_inputs` is given. How many inputs fit in depends on the machine.
        fuzz_inputs: of profile fuzz: inputs after which the search ends, on every machine the same.
        database: of profile fuzz: folder of inputs that failed, which are tried first; it also
            keeps how far the search got, so that the next one goes on from there.
        shrink: whether to explain violations: by the smallest input that shows them, and the known
            mistake they look like.
        command: the command line to record.

    Returns:
        The certificate. A subject that crashes, hangs or returns nonsense has verdict `error`; an
        interrupt ends the run early with what was computed.

    Raises:
        UsageError: the request makes no sense; raised before any work.
    """
    _check_request(profile, seed, alpha, time_limit)
    fuzzing = fuzzing_of(profile, fuzz_time, fuzz_inputs, database, isolate=isolate)
    if isolate and engine is not None:
        raise UsageError(
            "isolate=True runs the shards in processes of its own, and engine= elsewhere; leave "
            "one of them out"
        )
    subject = as_subject(subject)
    begin, started = time.perf_counter(), datetime.now(UTC)
    expectations = expectations_of(expected, subject)
    asked = asked_of(subject, only, sample=sample, exact=exact)
    known = Known.of(expectations, properties_of(subject.kind)) if expectations else None
    report = progress or (lambda event: None)
    not_applicable = [*asked.unmet.items(), *((id, NOT_ASKED) for id in asked.left_out)]
    searching = None if fuzzing is None else Searching.of(subject, fuzzing, asked.chosen)
    plan: Plan | None = None
    store: ShardStore | None = None
    # A subject may have made numpy raise when it was imported.
    with single_threaded(), np.errstate(all="warn", under="ignore"), ExitStack() as stack:
        stack.enter_context(global_generators_kept())
        apart = stack.enter_context(Processes(jobs, contain=True) if isolate else InProcess())
        if subject.kind == "transform":
            run = Run(subject, asked.budget(alpha, 0), alpha, seed, time_limit, report, apart)
            dtype, pair_name, prompts = "float32", "", ()
            records = transform_records(run, asked.sampled)
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
                run_length=run_length,
            )
            budget = asked.budget(alpha / 2, len(plan.cases))
            if searching is not None:
                budget = searching.shared(budget)
            run = Run(subject, budget, alpha, seed, time_limit, report, apart)
            dtype, pair_name, prompts = plan.dtype, pair.name, pair.prompts
            not_applicable += [(f"settings.{name}", reason) for name, reason in plan.left_out]
            if resume is not None:
                manifest = run_manifest(subject, pair, plan, seed, profile)
                store = stack.enter_context(ShardStore(Path(resume), manifest))
            if engine is None:
                engine = stack.enter_context(Processes(jobs)) if jobs > 1 and not isolate else apart
            # The runs of a lossy rule have another law than the target's.
            sampled = asked.sampled if subject.capabilities.lossy is None else ()
            records = decoder_records(
                run, plan, sampled, Sampling(engine, store, stop_early, known)
            )
        computing = exact_records(run, plan.presets if plan else (), asked.computed)
        probing = probe_records(run, asked.probes)
        done, interrupted = collect(itertools.chain(records, computing, probing))
        failed = any(case.verdict == "error" for case in done)
        if store is not None and not (interrupted or failed):
            store.discard()
        environment = environment_record(dtype=dtype)
        done, beside = lifted(done)
        done, remarks = with_blocked(with_adjusted(done), asked.chosen), list(beside)
        if shrink and not interrupted:
            explain = partial(
                explained,
                subject=subject,
                seed=seed,
                time_limit=time_limit,
                engine=apart,
                remarks=remarks,
            )
            done = _explained(done, known, explain)
        if searching is not None and not interrupted:
            searched, interrupted = searching.run(done, seed, time_limit, report, explain=shrink)
            done += searched
    findings = (*coupled(run.refusals), *undetermined(run.refusals, subject))
    result = overall(
        done,
        properties_of(subject.kind),
        tests=run.budget.tests,
        alpha=alpha,
        expectations=expectations,
        findings=findings,
        strict=strict,
        interrupted=interrupted,
    )
    not_applicable += [*refused(run.refusals), *skipped(run.unasked)]
    not_applicable += [] if searching is None else searching.left_out
    return Certificate(
        verdict=result.verdict,
        reason=result.reason,
        level=level_of(subject, dtype),
        subject=subject_record(subject),
        suite=suite_record(),
        environment=environment,
        pair=pair_name,
        prompts=prompts,
        profile=profile,
        seed=seed,
        alpha=alpha,
        tests=run.budget.tests,
        log_e=result.log_e,
        cases=tuple(done),
        not_applicable=tuple(NotApplicable(property=p, reason=r) for p, r in not_applicable),
        findings=findings,
        remarks=tuple(remarks),
        expectations=result.expectations,
        strict=strict,
        kill_table=kill_record(),
        interrupted=interrupted,
        started=started,
        finished=datetime.now(UTC),
        seconds=time.perf_counter() - begin,
        command=tuple(command),
    )


def _explained(
    cases: list[CaseRecord],
    known: Known | None,
    explain: Callable[[Sequence[CaseRecord]], list[CaseRecord]],
) -> list[CaseRecord]:
    """Explain violations, but for those that are expected: their cause is known."""
    if known is None:
        return explain(cases)
    judged = explain(beside_expected(cases, known))
    found = {case.id: case for case in judged}
    return [
        case.model_copy(
            update={
                "counterexample": found[case.id].counterexample,
                "diagnosis": found[case.id].diagnosis,
            }
        )
        if case.id in found
        else case
        for case in cases
    ]


def _check_request(profile: str, seed: int, alpha: float, time_limit: float) -> None:
    profile_named(profile)
    if seed < 0:
        raise UsageError(f"seed={seed}; give a whole number of at least 0")
    if seed > LARGEST_SEED:
        raise UsageError(f"seed={seed}; give a whole number of at most 2**63 - 1, {LARGEST_SEED}")
    if not SMALLEST_ALPHA <= alpha <= LARGEST_ALPHA:
        raise UsageError(
            f"alpha={alpha}; give a probability between {SMALLEST_ALPHA:g} and {LARGEST_ALPHA:g}"
        )
    if not 0 < time_limit <= LONGEST:  # false for NaN too
        raise UsageError(
            f"time_limit={time_limit}; give a positive number of seconds for one call, at most "
            f"{LONGEST:.0f}"
        )
