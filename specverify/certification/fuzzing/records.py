"""What a search leaves in a certificate: a case for its property, and one for a crash."""

import math
from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from specverify.certification.case_records import (
    CaseRecord,
    CellRecord,
    CounterexampleRecord,
    ExactRecord,
    OutcomeRecord,
    SearchRecord,
    TestRecord,
)
from specverify.certification.counterexamples.argument import contradiction, outcomes
from specverify.certification.fuzzing.limits import CONFIRMATION
from specverify.certification.fuzzing.problem import Computed, Problem, T
from specverify.certification.fuzzing.sampled import Confirmed
from specverify.certification.fuzzing.search import Found, Judged, Search
from specverify.certification.verdict import FUZZ
from specverify.quoting import message_of

CRASH = "/crash"
"""What the id of a case ends with that shows a crash."""
STREAM = "stream"
"""Counter of a case that says which stream of the search a crash came from."""
_DEVIATIONS = 3.0
_WORST = 3
_LONGEST = 400


def records_of(search: Search[T], seconds: float) -> list[CaseRecord]:
    """The cases of a search: the property, and the smallest input that crashes the subject."""
    problem = search.problem
    found = [_property_case(search, seconds)]
    if (crash := search.found.get("crash")) is not None:
        found.append(
            case_of(
                problem, crash.value, crash.judged, f"{FUZZ}{problem.property_id}{CRASH}", crash
            )
        )
    return found


def _property_case(search: Search[T], seconds: float) -> CaseRecord:
    problem, wrong = search.problem, search.found.get("violated")
    about = _summary(search)
    id = f"{FUZZ}{problem.property_id}"
    if wrong is not None:
        case = case_of(problem, wrong.value, wrong.judged, id, wrong)
        return case.model_copy(update={"search": about, "seconds": seconds})
    if not about.computed + about.sampled:
        reason = "no input could be tried"
        if search.interrupted:
            reason = "interrupted before an input was tried"
        return CaseRecord(
            id=id, verdict="inconclusive", reason=reason, search=about, seconds=seconds
        )
    test = TestRecord(
        property=problem.property_id,
        claim=problem.property.claim,
        evidence=_evidence(problem, sampled=not about.computed),
        decision="pass",
        n=about.computed + about.sampled,
    )
    return CaseRecord(id=id, verdict="preserved", tests=(test,), search=about, seconds=seconds)


def _summary(search: Search[T]) -> SearchRecord:
    tally, clock = search.tally, search.clock
    ended = "time"
    if search.interrupted:
        ended = "interrupt"
    elif "violated" in search.found:
        ended = "violation"
    elif clock.asked.inputs is not None and clock.tried >= clock.asked.inputs:
        ended = "inputs"
    elif not clock.out_of_time:
        ended = "exhausted"
    return SearchRecord(
        inputs=clock.tried,
        regions=dict(sorted(tally.regions.items())),
        stored=tally.stored,
        computed=tally.computed,
        sampled=tally.sampled,
        samples=tally.samples + search.confirmations.samples,
        passed_over=tally.passed_over,
        crashed=tally.crashed,
        confirmations=search.confirmations.done,
        unconfirmed=search.confirmations.unconfirmed,
        alpha=search.confirmations.alpha if tally.sampled else 0.0,
        ended=ended,
        refusal=search.refusal,
    )


def case_of(
    problem: Problem[T], value: T, judged: Judged, id: str, found: Found[T] | None = None
) -> CaseRecord:
    """The case of one input.

    Args:
        problem: that it is an input of.
        value: the input.
        judged: what came of it.
        id: of the case.
        found: how it was found; None for one that is replayed.
    """
    if judged.failure == "crash":
        text = f"{problem.given(value)} Then the subject raises: {_short(judged.crash)}"
        share = 1.0 if judged.computed is None else judged.computed.crashing
        observed = OutcomeRecord(what="the subject raises", observed=share, expected=0.0)
        record = _counterexample(problem, value, text, (observed,), found)
        streams: dict[str, JsonValue] = {STREAM: judged.stream} if judged.stream else {}
        return CaseRecord(
            id=id, verdict="error", reason=text, counters=streams, counterexample=record
        )
    if judged.failure is None:
        test = _test(problem, judged, "pass")
        return CaseRecord(id=id, verdict="preserved", tests=(test,))
    test = _test(problem, judged, "violated")
    if judged.confirmed is not None:
        record = _sampled_counterexample(problem, value, judged.confirmed, found)
        counters: dict[str, JsonValue] = {CONFIRMATION: judged.confirmed.number}
    else:
        record = _exact_counterexample(problem, value, judged.computed or Computed(), found)
        counters = {}
    return CaseRecord(
        id=id,
        verdict="violated",
        reason=problem.property_id,
        tests=(test,),
        counters=counters,
        counterexample=record,
    )


def _test(problem: Problem[T], judged: Judged, decision: Any) -> TestRecord:
    common = {
        "property": problem.property_id,
        "claim": problem.property.claim,
        "decision": decision,
    }
    confirmed = judged.confirmed
    if confirmed is not None:
        counted = confirmed.counted
        return TestRecord(
            **common,
            evidence="sampled",
            test="e-process",
            statistic=confirmed.log_e,
            df=0,
            p_value=math.exp(min(0.0, -confirmed.log_e)),
            n=counted.n,
            cells=sum(int((law > 0).sum()) for law in counted.laws),
            strata=len(counted.laws),
            impossible=counted.impossible,
            alpha=confirmed.share,
            worst_cells=_worst(confirmed),
        )
    computed = judged.computed
    numbers = None if computed is None else computed.numbers
    return TestRecord(
        **common,
        evidence=_evidence(problem, sampled=computed is None),
        detail="" if computed is None else computed.violation,
        exact=None if numbers is None else ExactRecord.model_validate(numbers),
    )


def _evidence(problem: Problem[T], *, sampled: bool) -> Any:
    if problem.kind == "row":
        return "structural"
    return "sampled" if sampled else "exact"


def _worst(confirmed: Confirmed) -> tuple[CellRecord, ...]:
    counted = confirmed.counted
    cells: list[CellRecord] = []
    for stratum, (names, counts, law) in enumerate(
        zip(counted.outcomes, counted.counts, counted.laws, strict=True)
    ):
        expected = law * counts.sum()
        order = sorted(range(len(law)), key=lambda cell: -abs(counts[cell] - expected[cell]))
        cells += [
            CellRecord(
                stratum=stratum,
                cell=cell,
                observed=int(counts[cell]),
                expected=float(expected[cell]),
                label=" ".join(map(str, names[cell])) or "what the target excludes",
            )
            for cell in order[:_WORST]
        ]
    return tuple(cells)


def _exact_counterexample(
    problem: Problem[T], value: T, computed: Computed, found: Found[T] | None
) -> CounterexampleRecord:
    given = problem.given(value)
    if not computed.expected:
        return _counterexample(problem, value, f"{given} Then {computed.violation}.", (), found)
    tolerance = problem.tolerance(value)
    said = contradiction(computed.observed, computed.expected, tolerance)
    distance = None if computed.numbers is None else computed.numbers["total_variation"]
    return _counterexample(
        problem,
        value,
        f"{given} {said}",
        outcomes(computed.observed, computed.expected),
        found,
        total_variation=distance,
        tolerance=tolerance,
    )


def _sampled_counterexample(
    problem: Problem[T], value: T, confirmed: Confirmed, found: Found[T] | None
) -> CounterexampleRecord:
    observed, expected = confirmed.counted.frequencies()
    n = confirmed.counted.n
    noise = _DEVIATIONS * math.sqrt(len(expected) / n) / 2
    said = contradiction(observed, expected, noise).removesuffix(".")
    return _counterexample(
        problem,
        value,
        f"{problem.given(value)} {said}, in {n:,} samples.",
        outcomes(observed, expected),
        found,
        tolerance=noise / len(expected),
    )


def _counterexample(
    problem: Problem[T],
    value: T,
    text: str,
    outcomes: tuple[OutcomeRecord, ...],
    found: Found[T] | None,
    **numbers: float | None,
) -> CounterexampleRecord:
    common: Mapping[str, Any] = numbers
    return CounterexampleRecord(
        kind=problem.kind,
        property=problem.property_id,
        inputs=problem.inputs(value),
        outcomes=outcomes,
        text=text,
        tried=0 if found is None else found.tried,
        complete=found is None or found.complete,
        **common,
    )


def _short(text: str) -> str:
    """The first line of a message."""
    return message_of(ValueError(text.partition("\n")[0]), longest=_LONGEST)
