"""Counterexamples from the plain numbers of a certificate, to be computed once more."""

from typing import Any

from specverify.certification.certificate import CounterexampleRecord
from specverify.certification.counterexamples.decoders import compute_world
from specverify.certification.counterexamples.result import Result
from specverify.certification.counterexamples.rules import compute_round
from specverify.certification.counterexamples.transform_input import (
    TransformInput,
    compute_transform,
    load_transform_input,
)
from specverify.certification.generated.rounds import RoundTables
from specverify.certification.generated.worlds import WorldTables
from specverify.certification.probes.decoder_trial import DecoderTrial
from specverify.certification.probes.rule_trial import RuleTrial
from specverify.errors import SettingsError, UsageError
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import Subject


def stored_round(record: CounterexampleRecord) -> RoundTables:
    """The tables of a counterexample of kind round.

    Raises:
        UsageError: the numbers are missing or malformed.
    """
    try:
        given: Any = record.inputs
        return RoundTables(
            tuple(_rows(table) for table in given["target"]),
            tuple(_rows(table) for table in given["draft"]),
            str(given["dtype"]),
            bool(given["one_hot"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _malformed(error) from None


def stored_world(record: CounterexampleRecord) -> WorldTables:
    """The tables of a counterexample of kind world.

    Raises:
        UsageError: the numbers are missing or malformed.
    """
    try:
        given: Any = record.inputs
        return WorldTables(
            _rows(given["target"]),
            _rows(given["draft"]),
            int(given["order"]),
            tuple(tuple(map(int, prompt)) for prompt in given["prompts"]),
            int(given["num_draft_tokens"]),
            SamplingSettings(**given["settings"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _malformed(error) from None


def stored_transform(record: CounterexampleRecord) -> TransformInput:
    """The row of a counterexample of kind transform.

    Raises:
        UsageError: the numbers are missing or malformed.
    """
    try:
        return load_transform_input(record.inputs)
    except (KeyError, TypeError, ValueError, SettingsError) as error:
        raise _malformed(error) from None


def compute_stored(
    record: CounterexampleRecord, subject: Subject, seed: int, time_limit: float
) -> Result:
    """Compute a subject on a counterexample.

    Raises:
        CannotSteer: its randomness cannot be followed.
        SubjectError: it returned something malformed.
        UsageError: the counterexample is no input that was searched for, or it is malformed.
    """
    if record.kind == "round":
        trial = RuleTrial(subject, "counterexample", "", seed, time_limit)
        return compute_round(trial, stored_round(record))
    if record.kind == "world":
        return compute_world(
            DecoderTrial(subject, "counterexample", "", seed, time_limit), stored_world(record)
        )
    if record.kind == "transform":
        return compute_transform(subject, stored_transform(record), seed, time_limit)
    raise UsageError(
        f"a counterexample of kind {record.kind!r} is the case itself; replay that, without "
        "--counterexample"
    )


def _rows(table: Any) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(map(float, row)) for row in table)


def _malformed(error: Exception) -> UsageError:
    return UsageError(
        f"the counterexample cannot be read ({type(error).__name__}: {error}); write the "
        "certificate anew"
    )
