"""The row of a transform written down: its numbers, both distributions, and the argument."""

from specverify.certification.certificate import CounterexampleRecord, OutcomeRecord
from specverify.certification.counterexamples.result import Result
from specverify.certification.counterexamples.search import Limits
from specverify.certification.counterexamples.transform_input import (
    TransformInput,
    transform_inputs,
)
from specverify.certification.counterexamples.words import number, row, tokens


def row_record(
    property: str, value: TransformInput, result: Result, limits: Limits
) -> CounterexampleRecord:
    """Write a counterexample down."""
    distance = result.comparison.total_variation
    return CounterexampleRecord(
        kind="transform",
        property=property,
        inputs=transform_inputs(value),
        outcomes=_outcomes(value, result),
        # Where only the support differs the distance says nothing: it is within the tolerance.
        total_variation=distance if distance > result.tolerance else None,
        tolerance=result.tolerance,
        text=f"{given(value)} {_argument(_outcomes(value, result))}",
        tried=limits.tried,
        complete=limits.complete,
    )


def given(value: TransformInput) -> str:
    """All that the transform is built with and handed."""
    parts = [f"{name} = {_written(entry)}" for name, entry in value.case.parameters.items()]
    parts += [f"logits {row(value.logits)}", f"history {tokens(value.history)}"]
    return f"Let {', '.join(parts)}."


def _outcomes(value: TransformInput, result: Result) -> tuple[OutcomeRecord, ...]:
    """Both probabilities of every token."""
    return tuple(
        OutcomeRecord(
            what=str(token),
            tokens=(token,),
            observed=result.observed.get((token,), 0.0),
            expected=result.expected.get((token,), 0.0),
        )
        for token in range(len(value.logits))
    )


def _argument(outcomes: tuple[OutcomeRecord, ...]) -> str:
    """The token furthest from where it should be; one that is impossible, if that is all."""

    def deviation(entry: OutcomeRecord) -> tuple[float, bool]:
        apart = round(abs(entry.observed - entry.expected), 12)
        return -apart, not (entry.observed > 0 and entry.expected == 0)

    worst = min(outcomes, key=deviation)
    return (
        f"Then the reference gives token {worst.what} probability {number(worst.expected)}. "
        f"However, the subject gives it {number(worst.observed)}."
    )


def _written(value: object) -> str:
    return number(value) if isinstance(value, float) else str(value)
