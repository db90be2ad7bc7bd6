"""The smallest round on which a rule is wrong."""

from functools import lru_cache
from typing import NamedTuple

from hypothesis import strategies as st
from pydantic import JsonValue

from specverify.certification.certificate import CounterexampleRecord
from specverify.certification.counterexamples.argument import contradiction, outcomes
from specverify.certification.counterexamples.result import Result
from specverify.certification.counterexamples.search import Limits, Stage, smallest
from specverify.certification.counterexamples.words import row, rows
from specverify.certification.exact_evidence import Comparison
from specverify.certification.generated.rounds import RoundTables, round_tables
from specverify.certification.generated.rows import simplest_row
from specverify.certification.probes.rule_trial import RuleTrial
from specverify.exact.compare_round import compare_round, completed
from specverify.exact.joint import Joint
from specverify.subjects.protocols import Subject

EVALUATIONS = 240


class _Size(NamedTuple):
    vocab_size: int
    num_draft_tokens: int
    examples: int
    anything: bool = False
    """Impossible tokens, deterministic drafts and rows in float32 as well."""


_SIZES = (
    _Size(2, 1, 10),
    _Size(2, 2, 10),
    _Size(3, 2, 24),
    _Size(4, 2, 24),
    _Size(2, 3, 16),
    _Size(3, 2, 48, anything=True),
)


def compute_round(trial: RuleTrial, tables: RoundTables) -> Result:
    """Compute what a rule emits in a round.

    Raises:
        CannotSteer: its randomness cannot be followed.
        SubjectError: it returned something malformed.
    """
    round = tables.round
    joint = trial.joint(round)
    compared = Comparison.of_round(compare_round(round, joint.probabilities))
    total = sum(joint.probabilities.values())
    observed = dict(joint.probabilities)
    if total > 1 - trial.tolerance(round):
        observed = completed(round, joint.probabilities)
    return Result(observed, expected_of(tables), compared, trial.tolerance(round))


def expected_of(tables: RoundTables) -> Joint:
    """The target's distribution of K+1 tokens."""
    return completed(tables.round, _first_tokens(tables))


def _first_tokens(tables: RoundTables) -> Joint:
    first = tables.round.p(0)[0].tolist()
    return {(token,): mass for token, mass in enumerate(first) if mass > 0}


def smallest_round(
    subject: Subject, property: str, seed: int, time_limit: float, seconds: float
) -> CounterexampleRecord | None:
    """Search for the smallest round on which a rule is wrong; None if none of those tried is.

    Args:
        subject: a rule.
        property: that it is searched for.
        seed: of what is not steered.
        time_limit: seconds for one call.
        seconds: for the search, after which the smallest round known is taken.
    """
    trial = RuleTrial(subject, "counterexample", "", seed, time_limit)
    limits = Limits(EVALUATIONS, seconds)

    @lru_cache(maxsize=4)
    def compute(tables: RoundTables) -> Result:
        return compute_round(trial, tables)

    stages = [_stage(size) for size in _SIZES]
    found = smallest(stages, lambda tables: compute(tables).wrong, limits)
    if found is None:
        return None
    return round_record(property, found, compute(found), limits)


def round_record(
    property: str, tables: RoundTables, result: Result, limits: Limits
) -> CounterexampleRecord:
    """Write a counterexample down."""
    argument = contradiction(result.observed, result.expected, result.tolerance)
    return CounterexampleRecord(
        kind="round",
        property=property,
        inputs=round_inputs(tables),
        outcomes=outcomes(result.observed, result.expected),
        total_variation=result.comparison.total_variation,
        tolerance=result.tolerance,
        text=f"{given(tables)} {argument}",
        tried=limits.tried,
        complete=limits.complete,
    )


def round_inputs(tables: RoundTables) -> dict[str, JsonValue]:
    """The numbers of a round as `stored_round` reads them."""
    return {
        "num_draft_tokens": tables.num_draft_tokens,
        "dtype": tables.dtype,
        "one_hot": tables.one_hot,
        "target": [[list(row) for row in table] for table in tables.target],
        "draft": [[list(row) for row in table] for table in tables.draft],
    }


def _stage(size: _Size) -> Stage[RoundTables]:
    inputs = round_tables(
        vocab_sizes=st.just(size.vocab_size),
        num_draft_tokens=st.just(size.num_draft_tokens),
        zeros=size.anything,
        dtypes=("float64", "float32") if size.anything else ("float64",),
        one_hot=st.booleans() if size.anything else None,
    )
    return Stage(inputs, size.examples)


def given(tables: RoundTables) -> str:
    """All that the rule is handed, by position; rows like the simplest there is come last."""
    round, width = tables.round, tables.num_draft_tokens
    simplest = simplest_row(tables.vocab_size)
    parts, plain = [], False
    for depth, target in enumerate(tables.target):
        prefixes = round.prefixes(depth).tolist()
        draft = tables.draft[depth] if depth < width else ()
        at = f"_{depth + 1}" if width > 1 or depth else ""
        for name, table in (("p", target), ("q", draft)):
            if depth and table and set(table) == {simplest}:
                plain = True
            elif table:
                parts.append(f"{name}{at} = {rows(table, prefixes)}")
    parts.append(f"K = {width}")
    if plain:
        parts.append(f"all other rows {row(simplest)}")
    if tables.one_hot:
        parts.append("the draft deterministic")
    if tables.dtype != "float64":
        parts.append(f"all in {tables.dtype}")
    return f"Let {', '.join(parts)}."
