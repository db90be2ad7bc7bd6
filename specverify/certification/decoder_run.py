"""Running and judging one case of a decoder or a rule."""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from specverify.certification.accumulator import Accumulator
from specverify.certification.case_tally import CaseTally
from specverify.certification.certificate import (
    BoundRecord,
    CaseRecord,
    NotApplicable,
    TestRecord,
)
from specverify.certification.decoder_evidence import DecoderEvidence
from specverify.certification.expected import Known
from specverify.certification.judge import case_verdict, corroborated, test_records
from specverify.certification.looks import Looks
from specverify.certification.plan import PlannedCase
from specverify.certification.progress import ProgressEvent
from specverify.certification.records import settings_record
from specverify.certification.registry import Outcome, Property
from specverify.certification.shard_work import ShardWork
from specverify.certification.verdict import Verdict, worst
from specverify.errors import SubjectError
from specverify.sampling.engines import Engine, InProcess
from specverify.sampling.prefix import in_order
from specverify.sampling.store import ShardStore, stored
from specverify.sampling.tally import State
from specverify.statistics.budget import Budget
from specverify.statistics.result import TestResult
from specverify.statistics.sequences import look_schedule
from specverify.subjects.protocols import Subject

Stopped = Literal["", "violated", "bounds reached"]


@dataclass(frozen=True)
class Sampling:
    """How shards are run, the same for all cases of a certification."""

    engine: Engine = field(default_factory=InProcess)
    store: ShardStore | None = None
    """Keeps finished shards, for a run that goes on where another was ended."""
    stop_early: bool = True
    """Whether a case ends once it is violated, or once its bounds are reached."""
    known: Known | None = None
    """Expected failures, at which a case does not end."""


def run_decoder_case(
    subject: Subject,
    planned: PlannedCase,
    properties: Sequence[Property],
    budget: Budget,
    seed: int,
    progress: Callable[[ProgressEvent], None],
    *,
    alpha: float | None = None,
    sampling: Sampling | None = None,
) -> tuple[CaseRecord, bool]:
    """Sample one case shard by shard and judge it after each.

    Only the contiguous prefix of finished shards is looked at: the first one that crosses a
    threshold decides and fixes the sample, whatever order shards were finished in.

    Args:
        subject: what is tested.
        planned: the case.
        properties: what is asked.
        budget: each test's share of the false alarms of the run.
        seed: of the run.
        progress: told the number of runs judged after each shard.
        alpha: at which bounds fail; the budget's when omitted.
        sampling: how shards are run; in this process, stopping early, when omitted.

    Returns:
        The record, and whether the user interrupted the sampling. A subject that failed has
        verdict `error`, or `violated` if what it emitted before is already proof.
    """
    begin = time.perf_counter()
    case = planned.case
    run = _CaseRun(
        subject, planned, properties, budget, seed, alpha or budget.alpha, sampling or Sampling()
    )
    failure, interrupted = None, False
    try:
        run.sample(lambda done: progress(ProgressEvent(case.id, done, case.runs, "runs")))
    except SubjectError as error:
        failure = str(error)
    except KeyboardInterrupt:
        interrupted = True
    tally = run.accumulator.total
    failure = failure or tally.failure
    judged = run.judge()
    if tally.runs:
        run.look(judged)
    if run.accumulator.shards not in run.looks or tally.failure or run.stopped == "violated":
        judged.withdraw_fixed_bounds()
    verdict, reason = judged.verdict, judged.reason
    if failure is not None:
        reason = f"{reason}; later {failure}" if verdict == "violated" else failure
        verdict = worst([verdict, "error"])
    elif interrupted and verdict != "violated":
        verdict = "inconclusive"
        reason = f"interrupted after {tally.runs:,} of {case.runs:,} runs"
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
        runs=tally.runs,
        tokens=tally.tokens,
        planned_runs=case.runs,
        shards=run.accumulator.shards,
        stopped=run.stopped,
        bounds=tuple(judged.bounds),
        looks=run.path.record({b.name: b.value for b in judged.bounds if b.limit is not None}),
        tv_bound=judged.tv_bound,
        tv_bound_alpha=run.alpha if judged.tv_bound is not None else None,
        missing=judged.missing,
        error=failure if failure is not None and verdict == "violated" else "",
        counters=_counters(run.accumulator.evidence()),
        findings=(*tally.findings, *judged.findings),
        not_applicable=(*not_applicable, *judged.not_applicable),
        seconds=time.perf_counter() - begin,
    )
    return record, interrupted


@dataclass
class _Judged:
    """What all properties together found on one case."""

    records: list[TestRecord] = field(default_factory=list)
    bounds: list[BoundRecord] = field(default_factory=list)
    tv_bound: float | None = None
    fixed: set[str] = field(default_factory=set)
    """Names of the bounds that hold at looks fixed beforehand only."""
    missing: str | None = None
    findings: list[str] = field(default_factory=list)
    not_applicable: list[NotApplicable] = field(default_factory=list)
    verdict: Verdict = "inconclusive"
    reason: str = ""

    @property
    def asks_fixed_bounds(self) -> bool:
        """Whether one of those is asked for."""
        return any(bound.limit is not None and bound.name in self.fixed for bound in self.bounds)

    def withdraw_fixed_bounds(self) -> None:
        """Sampling ended where counts or a failure said so, not at a look fixed beforehand."""
        self.bounds = [bound for bound in self.bounds if bound.name not in self.fixed]
        self.tv_bound = None


class _CaseRun:
    """A case while it is sampled."""

    def __init__(
        self,
        subject: Subject,
        planned: PlannedCase,
        properties: Sequence[Property],
        budget: Budget,
        seed: int,
        alpha: float,
        sampling: Sampling,
    ) -> None:
        self.properties, self.budget, self.alpha = properties, budget, alpha
        self.case, self.sampling = planned.case, sampling
        self.work = ShardWork(subject, planned, seed)
        self.shards = self.work.sampler.shards
        self.looks = look_schedule(self.shards)
        self.accumulator = Accumulator(
            subject, planned.case, looks=len(self.looks), log_threshold=budget.log_threshold
        )
        self.stopped: Stopped = ""
        self.path = Looks(self.shards, self.looks)
        self._crossings: dict[tuple[str, int], TestResult] = {}

    def sample(self, progress: Callable[[int], None]) -> None:
        """Add shards until something decides, or all are done."""
        with closing(in_order(self._results())) as states:
            for state in states:
                shard = CaseTally.restored(self.case, state)
                self.accumulator.add(shard)
                progress(self.accumulator.total.runs)
                if shard.failure is not None:
                    return
                judged = self.judge(full=False)
                if self.path.due(self.accumulator.shards):
                    self.look(judged)
                if not self.sampling.stop_early:
                    continue
                verdict = self._verdict_beside_expected(judged)
                if verdict == "violated":
                    self.stopped = "violated"
                    return
                done = self.accumulator.shards
                # Bounds for a fixed n may be used at these looks only; others hold at every look.
                waiting = judged.asks_fixed_bounds and done not in self.looks
                if verdict == "preserved" and not waiting and done < self.shards:
                    self.stopped = "bounds reached"
                    return

    def judge(self, *, full: bool = True) -> _Judged:
        """Check every property on what was added so far; see `DecoderEvidence.full`."""
        judged, evidence = _Judged(), self.accumulator.evidence(full=full)
        for property in self.properties if evidence.runs else ():
            outcome = self._with_crossings(property, property.check(evidence, self.alpha))
            if outcome.not_applicable:
                reason = outcome.not_applicable
                judged.not_applicable.append(NotApplicable(property=property.id, reason=reason))
                continue
            kind = "sampled" if outcome.tests else "structural"
            judged.records += test_records(property, outcome, self.budget, kind)
            judged.bounds += [_bound_record(bound) for bound in outcome.bounds]
            judged.findings += outcome.findings
            judged.fixed |= {bound.name for bound in outcome.bounds if bound.fixed_n}
            if outcome.tv_bound is not None:
                judged.tv_bound = outcome.tv_bound
            judged.missing = outcome.missing or judged.missing
        judged.records = corroborated(judged.records)
        judged.verdict, judged.reason = case_verdict(judged.records)
        return judged

    def _verdict_beside_expected(self, judged: _Judged) -> Verdict:
        known = self.sampling.known
        if known is None:
            return judged.verdict
        excused = known.excused([p.id for p in self.properties], self.case.id)
        return case_verdict([r for r in judged.records if r.property not in excused])[0]

    def look(self, judged: _Judged) -> None:
        """Record how the case stands."""
        total = self.accumulator.total
        self.path.add(
            self.accumulator.shards,
            total.runs,
            total.tokens,
            judged.records,
            judged.bounds,
            judged.fixed,
        )

    def _results(self) -> Generator[tuple[int, State], None, None]:
        engine, store, indices = self.sampling.engine, self.sampling.store, range(self.shards)
        if store is None:
            return engine.run(self.work, indices)
        return stored(engine, store, self.case.id, self.work, indices, keep=_is_whole)

    def _with_crossings(self, property: Property, outcome: Outcome) -> Outcome:
        """Tests that have rejected stay as they were then: a threshold crossed once is crossed."""
        tests = []
        for index, test in enumerate(outcome.tests):
            crossed = self._crossings.get((property.id, index))
            if crossed is None and self.budget.rejects(test.p_value):
                crossed = self._crossings[property.id, index] = test
            tests.append(crossed or test)
        return replace(outcome, tests=tuple(tests))


def _is_whole(state: State) -> bool:
    """Whether a shard is worth keeping; one that failed is tried again."""
    return state["failure"] is None


def _bound_record(bound: Any) -> BoundRecord:
    return BoundRecord(
        name=bound.name, value=bound.value, alpha=bound.alpha, n=bound.n, limit=bound.limit
    )


def _counters(evidence: DecoderEvidence) -> dict[str, Any]:
    """Draft tokens accepted in the first round, where the subject reports them."""
    accepted = evidence.first_rounds.accepted
    if not accepted:
        return {}
    return {"first_round_accepted": {str(count): accepted[count] for count in sorted(accepted)}}
