"""A search as a part of a run, and one of its inputs once more."""

import time
from collections.abc import Iterator

from specverify.certification.case_records import CaseRecord
from specverify.certification.fuzzing.database import Database
from specverify.certification.fuzzing.decoders import DecoderProblem
from specverify.certification.fuzzing.diagnosed import diagnosed
from specverify.certification.fuzzing.limits import CONFIRMATION, Clock, Fuzzing
from specverify.certification.fuzzing.problem import Problem
from specverify.certification.fuzzing.records import STREAM, case_of, records_of
from specverify.certification.fuzzing.rules import RuleProblem
from specverify.certification.fuzzing.sampled import (
    Confirmations,
    Stream,
    confirmation,
)
from specverify.certification.fuzzing.search import Judged, Search
from specverify.certification.fuzzing.transforms import TransformProblem
from specverify.certification.phases import Progress, Records
from specverify.certification.progress import ProgressEvent
from specverify.certification.registry import properties_of
from specverify.errors import CannotSteer, SubjectError, UsageError
from specverify.subjects.protocols import Subject

PROBLEMS: dict[str, type[Problem]] = {
    "rule": RuleProblem,
    "decoder": DecoderProblem,
    "transform": TransformProblem,
}
"""What is searched, by kind of subject."""


def fuzz_records(
    subject: Subject,
    asked: Fuzzing,
    alpha: float,
    seed: int,
    time_limit: float,
    report: Progress = lambda event: None,
    *,
    diagnose: bool = True,
) -> Records:
    """Search, and yield the cases it makes; see `records_of`.

    Args:
        subject: one that `Searching` does not leave out.
        asked: how long, and where failures are kept.
        alpha: false-alarm budget of all confirmations together.
        seed: of the search.
        time_limit: seconds for one call of the subject.
        report: told how far the search has got.
        diagnose: whether to say which known mistake a failure looks like.

    Raises:
        UsageError: the database cannot be used.
    """
    begin = time.perf_counter()
    problem = _problem(subject, seed, time_limit)
    confirmations = Confirmations(alpha, seed, problem.count, subject.capabilities.coin_dtype)
    search = Search(problem, Clock(asked), confirmations, Database(asked.database))
    for event in _progress(search):
        report(event)
    records = records_of(search, time.perf_counter() - begin)
    for record in records:
        wanted = diagnose and record.verdict == "violated" and not search.interrupted
        yield diagnosed(record, problem) if wanted else record, search.interrupted


def _progress(search: Search) -> Iterator[ProgressEvent]:
    clock = search.clock
    for tried in search.run():
        if clock.asked.inputs is not None and clock.asked.seconds is None:
            yield ProgressEvent("search", min(tried, clock.asked.inputs), clock.asked.inputs)
        else:
            passed, all_of_it = int(min(clock.passed, clock.seconds)), int(clock.seconds)
            yield ProgressEvent("search", passed, all_of_it, f"s, {tried:,} inputs")


def replay_fuzzed(
    recorded: CaseRecord, subject: Subject, seed: int, time_limit: float
) -> CaseRecord:
    """Try the input of a case once more: computed, or with the draws that it was sampled with.

    Args:
        recorded: a case of a search.
        subject: that it is of.
        seed: of the run.
        time_limit: seconds for one call.

    Raises:
        UsageError: the case holds no input, since nothing was found.
    """
    if recorded.counterexample is None:
        raise UsageError(
            f"case {recorded.id!r} is a search that found nothing, so there is no input to try "
            "again; certify with --profile fuzz once more, with --fuzz-inputs "
            f"{recorded.search.inputs if recorded.search else 'N'} for the same ones"
        )
    problem = _problem(subject, seed, time_limit)
    value = problem.load(recorded.counterexample.inputs)
    stream, number = recorded.counters.get(STREAM), recorded.counters.get(CONFIRMATION)
    try:
        if isinstance(number, int):
            share = next(test.alpha for test in recorded.tests if test.alpha is not None)
            coins = subject.capabilities.coin_dtype
            again = confirmation(value, number, share, seed, problem.count, coins)
            judged = Judged("violated" if again.stands else None, confirmed=again)
        elif isinstance(stream, int):
            problem.count(value, Stream.of_search(seed, stream), 0)
            judged = Judged()
        else:
            judged = Judged.of(problem.compute(value))
    except CannotSteer as refusal:
        return CaseRecord(id=recorded.id, verdict="inconclusive", reason=str(refusal))
    except SubjectError as error:
        judged = Judged("crash", crash=str(error))
    return case_of(problem, value, judged, recorded.id)


def _problem(subject: Subject, seed: int, time_limit: float) -> Problem:
    kind = PROBLEMS[subject.kind]
    (property,) = (found for found in properties_of(subject.kind) if found.id == kind.property_id)
    return kind(subject, property, seed, time_limit)
