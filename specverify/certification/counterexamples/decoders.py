"""The smallest world in which a decoder is wrong."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from hypothesis import strategies as st
from pydantic import JsonValue

from specverify.certification.certificate import CounterexampleRecord
from specverify.certification.counterexamples.argument import contradiction, outcomes
from specverify.certification.counterexamples.result import Result
from specverify.certification.counterexamples.search import Limits, Stage, smallest
from specverify.certification.counterexamples.words import rows, tokens
from specverify.certification.exact_evidence import Comparison
from specverify.certification.generated.worlds import WorldTables, world_tables
from specverify.certification.probes.decoder_trial import DecoderTrial
from specverify.certification.records import settings_record
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import Subject

EXAMPLES = 8
EVALUATIONS = 90
"""Each may be dozens of runs of a whole loop."""


class _Size(NamedTuple):
    vocab_size: int
    num_draft_tokens: int
    length: int
    rows: int = 1


_SIZES = (_Size(2, 1, 2), _Size(2, 1, 3), _Size(2, 2, 3), _Size(2, 1, 2, rows=2), _Size(3, 2, 3))


def compute_world(trial: DecoderTrial, tables: WorldTables) -> Result:
    """Compute what a decoder emits in a world.

    Raises:
        CannotSteer: its randomness cannot be followed.
        SubjectError: it returned something malformed.
    """
    joint, expected = trial.joint(tables.world), tables.world.expected()
    compared = Comparison.of_runs(joint.probabilities, expected, sum(joint.crashes.values()))
    return Result(joint.probabilities, expected, compared, trial.tolerance)


def smallest_world(
    subject: Subject,
    property: str,
    settings: Sequence[SamplingSettings],
    seed: int,
    time_limit: float,
    seconds: float,
) -> CounterexampleRecord | None:
    """Search for the smallest world in which a decoder is wrong; None if none of those tried is.

    Args:
        subject: a decoder.
        property: that it is searched for.
        settings: that may show the mistake, the simplest first.
        seed: of what is not steered.
        time_limit: seconds for one call.
        seconds: for the search, after which the smallest world known is taken.
    """
    trial = DecoderTrial(subject, "counterexample", "", seed, time_limit)
    limits = Limits(EVALUATIONS, seconds)

    @lru_cache(maxsize=4)
    def compute(tables: WorldTables) -> Result:
        return compute_world(trial, tables)

    def wrong(tables: WorldTables) -> bool:
        return tables.world.refused_by(subject) is None and compute(tables).wrong

    sizes = [size for size in _SIZES if size.rows == 1 or subject.capabilities.batch]
    found = smallest([_stage(size, settings) for size in sizes], wrong, limits)
    if found is None:
        return None
    return world_record(property, found, compute(found), limits)


def world_record(
    property: str, tables: WorldTables, result: Result, limits: Limits
) -> CounterexampleRecord:
    """Write a counterexample down."""
    argument = contradiction(result.observed, result.expected, result.tolerance)
    return CounterexampleRecord(
        kind="world",
        property=property,
        inputs=world_inputs(tables),
        outcomes=outcomes(result.observed, result.expected),
        total_variation=result.comparison.total_variation,
        tolerance=result.tolerance,
        text=f"{given(tables)} {argument}",
        tried=limits.tried,
        complete=limits.complete,
    )


def world_inputs(tables: WorldTables) -> dict[str, JsonValue]:
    """The numbers of a world as `stored_world` reads them."""
    return {
        "num_draft_tokens": tables.num_draft_tokens,
        "order": tables.order,
        "target": [list(row) for row in tables.target],
        "draft": [list(row) for row in tables.draft],
        "prompts": [list(prompt) for prompt in tables.prompts],
        "settings": settings_record(tables.settings),
    }


def fitted(settings: SamplingSettings, vocab_size: int) -> SamplingSettings:
    """The same settings for fewer tokens: ids wrap around, and no more are kept than there are."""
    changed = {
        "stop_token_ids": tuple(sorted({token % vocab_size for token in settings.stop_token_ids})),
        "stop_sequences": tuple(
            tuple(token % vocab_size for token in sequence) for sequence in settings.stop_sequences
        ),
        "top_k": None if settings.top_k is None else min(settings.top_k, vocab_size - 1),
        "bad_words": (),
        "logit_bias": {},
        "forced_tokens": {},
        "allowed_tokens": None,
    }
    return settings.model_copy(update=changed)


def _stage(size: _Size, settings: Sequence[SamplingSettings]) -> Stage[WorldTables]:
    asked = list(
        dict.fromkeys(fitted(each, size.vocab_size).model_dump_json() for each in settings)
    )
    inputs = world_tables(
        st.sampled_from(asked).map(SamplingSettings.model_validate_json),
        vocab_sizes=st.just(size.vocab_size),
        num_draft_tokens=st.just(size.num_draft_tokens),
        lengths=st.just(size.length),
        rows=st.just(size.rows),
        longest=1 if size.rows == 1 else 2,
    )
    return Stage(inputs, EXAMPLES)


def given(tables: WorldTables) -> str:
    """All that the decoder is handed; contexts that no run meets are left out."""
    size = len(tables.target[0])
    base = size + 1
    contexts = [c for c in range(base**tables.order) if size not in _digits(c, base, tables.order)]
    prefixes = [_digits(context, base, tables.order) for context in contexts]
    p = rows([tables.target[context] for context in contexts], prefixes)
    q = rows([tables.draft[context] for context in contexts], prefixes)
    settings = settings_record(tables.settings)
    length = settings.pop("max_new_tokens", tables.settings.max_new_tokens)
    asked = "".join(f", {name} = {value}" for name, value in settings.items())
    prompts = ", ".join(f"[{tokens(prompt)}]" for prompt in tables.prompts)
    return (
        f"Let p = {p}, q = {q}, K = {tables.num_draft_tokens}, {length} tokens after the "
        f"prompt{'s' * (len(tables.prompts) > 1)} {prompts}{asked}."
    )


def _digits(context: int, base: int, order: int) -> tuple[int, ...]:
    """The last tokens, the oldest first."""
    return tuple(context // base**place % base for place in reversed(range(order)))
