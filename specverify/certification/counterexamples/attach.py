"""Counterexamples for the violated properties of a run, after all its cases are judged."""

from collections.abc import Iterator, Mapping, Sequence

from specverify.certification.certificate import (
    CaseRecord,
    CounterexampleRecord,
    OutcomeRecord,
    TestRecord,
)
from specverify.certification.counterexamples.decoders import smallest_world
from specverify.certification.counterexamples.rules import smallest_round
from specverify.certification.counterexamples.transforms import smallest_row
from specverify.certification.counterexamples.words import number, tokens
from specverify.certification.transform_case import PARAMETERS
from specverify.certification.verdict import EXACT
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import Subject

SECONDS = {"rule": 20.0, "decoder": 60.0, "transform": 20.0}
"""For one search; most end after a few."""

_OF_CALLS = {"transforms.arguments", "transforms.results"}
"""What a call does to what it is handed, or to the result of another: no row of logits shows it."""

Root = tuple[int, TestRecord]
"""Index of the first case that shows a violated property, and the test that does."""


def with_counterexamples(
    cases: Sequence[CaseRecord], subject: Subject, seed: int, time_limit: float
) -> list[CaseRecord]:
    """Give the first case of each violated property its smallest counterexample.

    Properties that are violated by one mistake share one search, and what it finds stands on the
    first of their cases; cases that were not searched for show their own worst numbers.

    Args:
        cases: of a run, blocked violations marked.
        subject: what they are of.
        seed: of the run.
        time_limit: seconds for one call.
    """
    found: dict[int, CounterexampleRecord] = {}
    searched: dict[tuple[str, ...], CounterexampleRecord | None] = {}
    for index, test in roots(cases):
        goal = _goal(subject, cases, cases[index], test)
        if index in found or _covered(goal, cases[index], searched):
            continue
        if goal is not None and goal not in searched:
            searched[goal] = _search(
                subject, test.property, cases[index].id, goal, seed, time_limit
            )
            record = searched[goal]
        else:
            record = None
        record = record or of_case(cases[index], test)
        if record is not None:
            found[index] = record
    return [
        case.model_copy(update={"counterexample": found[index]}) if index in found else case
        for index, case in enumerate(cases)
    ]


def roots(cases: Sequence[CaseRecord]) -> Iterator[Root]:
    """Each violated property once, computed cases before probes and sampled ones."""
    seen: set[str] = set()
    for index in sorted(range(len(cases)), key=lambda index: _rank(cases[index])):
        for test in cases[index].tests:
            if test.decision == "violated" and test.property not in seen:
                seen.add(test.property)
                yield index, test


def of_case(case: CaseRecord, test: TestRecord) -> CounterexampleRecord | None:
    """The worst numbers of a case, where nothing smaller is known; None if it has none."""
    common = {"property": test.property, "complete": True}
    if test.exact is not None and test.exact.worst:
        worst = test.exact.worst[0]
        outcomes = tuple(
            OutcomeRecord(
                what=tokens(entry.tokens),
                tokens=entry.tokens,
                observed=entry.observed,
                expected=entry.expected,
            )
            for entry in test.exact.worst
        )
        text = (
            f"On {case.id} the probability of {tokens(worst.tokens)} must be "
            f"{number(worst.expected)}. However, it is {number(worst.observed)}."
        )
        return CounterexampleRecord(
            kind="case",
            outcomes=outcomes,
            text=text,
            total_variation=test.exact.total_variation,
            tolerance=test.exact.tolerance,
            **common,
        )
    if test.worst_cells:
        cells = tuple(
            OutcomeRecord(
                what=cell.label or f"cell {cell.cell} of stratum {cell.stratum}",
                observed=cell.observed,
                expected=cell.expected,
            )
            for cell in test.worst_cells
        )
        worst = cells[0]
        text = (
            f"Of {test.n:,} samples under {case.id}, {worst.expected:,.1f} are expected at "
            f"{worst.what}. However, there were {worst.observed:,.0f}."
        )
        return CounterexampleRecord(kind="cell", outcomes=cells, text=text, **common)
    return None


def _rank(case: CaseRecord) -> int:
    if case.id.startswith(EXACT):
        return 0
    return 1 if case.small else 2


def _goal(
    subject: Subject, cases: Sequence[CaseRecord], case: CaseRecord, test: TestRecord
) -> tuple[str, ...] | None:
    """What a search would be for, None if there is nothing to search for.

    It is the joint distribution: other contradictions, such as a changed argument, are as small as
    they get. Under which settings a decoder is tried is a part of it. For a transform it is a row,
    whichever property is violated, but for those of what one call does to another.
    """
    if subject.kind == "transform":
        searchable = subject.reference in PARAMETERS and test.property not in _OF_CALLS
        return ("row",) if searchable else None
    distribution = test.test is not None or (
        test.exact is not None and test.exact.total_variation > test.exact.tolerance
    )
    steered = any(case.id.startswith(EXACT) for case in cases)
    lossy = subject.capabilities.lossy is not None
    if not distribution or not steered or lossy:
        return None
    if subject.kind == "rule":
        return ("round",)
    if subject.kind == "decoder":
        return tuple(settings.model_dump_json() for settings in _settings(cases, case))
    return None


def _settings(cases: Sequence[CaseRecord], case: CaseRecord) -> list[SamplingSettings]:
    """Settings that may show the mistake: those of the computed case, or of all that are wrong."""
    wrong = [found for found in cases if found.id.startswith(EXACT) and found.verdict == "violated"]
    chosen = [case] if case in wrong else wrong
    return [SamplingSettings.model_validate(found.settings) for found in chosen] or [
        SamplingSettings()
    ]


def _covered(
    goal: tuple[str, ...] | None,
    case: CaseRecord,
    searched: Mapping[tuple[str, ...], CounterexampleRecord | None],
) -> bool:
    """Whether another counterexample stands for a violation.

    One of the same goal does; for what was not computed on a case of its own, any one.
    """
    if goal is None:
        return False
    if searched.get(goal) is not None:
        return True
    return not case.id.startswith(EXACT) and any(searched.values())


def _search(
    subject: Subject,
    property: str,
    case_id: str,
    goal: tuple[str, ...],
    seed: int,
    time_limit: float,
) -> CounterexampleRecord | None:
    seconds = SECONDS[subject.kind]
    if subject.kind == "rule":
        return smallest_round(subject, property, seed, time_limit, seconds)
    if subject.kind == "transform":
        return smallest_row(subject, property, seed, time_limit, seconds, case_id)
    settings = [SamplingSettings.model_validate_json(text) for text in goal]
    return smallest_world(subject, property, settings, seed, time_limit, seconds)
