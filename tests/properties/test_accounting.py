"""Chapter accounting: wrong reports beside right tokens, and right reports of another form."""

from dataclasses import replace

import pytest
import torch

from specverify.certification.certificate import CaseRecord
from specverify.certification.registry import UNREPORTED
from specverify.decoding.output import Counters, DecoderOutput
from specverify.fixtures.lookalikes import LOOKALIKES
from specverify.fixtures.lookalikes import accounting as lookalikes
from specverify.fixtures.mutants import accounting as mutants
from specverify.fixtures.mutants.catalogue import Mutant
from specverify.fixtures.parts.decoder import decoder_subject
from specverify.fixtures.parts.reworded import reworded
from specverify.properties.accounting import NO_COUNTERS
from specverify.subjects.protocols import Subject
from specverify.subjects.reference import BLOCK, GREEDY, MATCH, TOKEN
from specverify.subjects.registry import load_subject

CASES = (
    *(("accounting.counters", name) for name in ("plain", "stopping", "again")),
    *(("accounting.rounds", name) for name in ("plain", "stopping")),
    *(("accounting.known_rounds", name) for name in ("accepting", "rejecting")),
    *(("accounting.logprobs", name) for name in ("plain", "tempered", "filtered", "penalty")),
)
MUTANTS = {mutant.id: mutant for mutant in mutants.MUTANTS}


def reporting(reword) -> Subject:
    return decoder_subject("reporting", loop=reworded(reword))


def counting(**changed) -> Subject:
    """The reference with other counters."""

    def reword(output: DecoderOutput) -> DecoderOutput:
        counters = output.counters
        assert counters is not None
        return replace(output, counters=replace(counters, **changed))

    return reporting(reword)


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_mutants_are_caught(mutant: Mutant, probe) -> None:
    found = [(id, probe(mutant.subject, id, input)) for id, input in CASES]
    records = [(id, record) for id, record in found if isinstance(record, CaseRecord)]
    assert {id for id, record in records if record.verdict == "violated"} >= mutant.caught_by


@pytest.mark.parametrize(
    ("mutant", "case", "said"),
    [
        ("bonus-counted-as-accepted", CASES[0], "a round emits its accepted tokens and one more"),
        ("cut-tokens-counted", CASES[1], "emitted tokens and has emitted"),
        ("accepted-lengths-as-positions", CASES[0], "increases, but a token is accepted only"),
        ("ended-rows-in-counters", CASES[4], "counters.rounds is"),
        ("rounds-filled-up", CASES[6], "none of them right, it reports [3, 3,"),
        ("logprobs-of-draft", CASES[7], "they are those of the draft model"),
        ("logprobs-before-transforms", CASES[8], "they are those before all transforms"),
        ("logprobs-zero", CASES[7], "they are all 0"),
    ],
)
def test_mistakes_are_named(mutant: str, case: tuple[str, str], said: str, probe) -> None:
    assert said in probe(MUTANTS[mutant].subject, *case).tests[0].detail


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"accepted": -1}, "a count is negative: accepted"),
        ({"drafted": 0}, "is more than drafted = 0"),
        ({"accepted_by_position": [1000]}, "does not add up to accepted"),
        ({"accepted_by_position": [1000]}, "begins above rounds"),
        ({"target_passes": 1}, "passes of the target over 3 rows are too few"),
    ],
)
def test_identities_are_checked_one_by_one(changed: dict, said: str, probe) -> None:
    record = probe(counting(**changed), "accounting.counters", "plain")
    assert said in record.tests[0].detail


RIGHT = {
    "reference": TOKEN,
    "reference-block": BLOCK,
    "reference-match": MATCH,
    "reference-greedy": GREEDY,
    "transformers": load_subject("transformers"),
    "one row a call": replace(TOKEN, capabilities=replace(TOKEN.capabilities, batch=False)),
    "tokens alone": reporting(lambda output: DecoderOutput(output.tokens)),
    **{
        id: LOOKALIKES[id].subject
        for id in ("no-bonus-token", "common-cut", "prompt-lookup", "random-block-lengths")
    },
    **{lookalike.id: lookalike.subject for lookalike in lookalikes.LOOKALIKES},
}


@pytest.mark.parametrize("subject", RIGHT.values(), ids=RIGHT)
def test_right_ones_pass(subject: Subject, probe) -> None:
    for id, input in CASES:
        record = probe(subject, id, input)
        if isinstance(record, CaseRecord):
            assert (record.verdict, record.findings) == ("preserved", ()), (id, input, record)


def test_what_is_not_reported_is_not_judged(probe) -> None:
    for subject in (RIGHT["tokens alone"], load_subject("transformers")):
        assert probe(subject, "accounting.counters", "plain") == NO_COUNTERS
        assert probe(subject, "accounting.rounds", "plain") == UNREPORTED
        assert "reports no log" in probe(subject, "accounting.logprobs", "plain")
    assert probe(RIGHT["counters-alone"], "accounting.counters", "plain").verdict == "preserved"
    assert "greedily only" in probe(GREEDY, "accounting.counters", "plain")
    said = probe(RIGHT["prompt-lookup"], "accounting.known_rounds", "accepting")
    assert said == "the subject does not declare that it drafts from the draft"
    nothing = reporting(lambda output: replace(output, counters=Counters()))
    assert probe(nothing, "accounting.counters", "plain") == NO_COUNTERS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_values_may_be_as_rough_as_their_dtype(dtype: torch.dtype, probe) -> None:
    def narrow(output: DecoderOutput, error: float = 0.0) -> DecoderOutput:
        assert output.logprobs is not None
        return replace(output, logprobs=(output.logprobs - error).to(dtype), raw_logprobs=None)

    assert probe(reporting(narrow), "accounting.logprobs", "penalty").verdict == "preserved"
    off = reporting(lambda output: narrow(output, 0.2))
    assert probe(off, "accounting.logprobs", "penalty").verdict == "violated"


def test_float64_values_have_no_slack(probe) -> None:
    def off(output: DecoderOutput) -> DecoderOutput:
        assert output.raw_logprobs is not None
        return replace(output, raw_logprobs=output.raw_logprobs + 1e-7)

    record = probe(reporting(off), "accounting.logprobs", "plain")
    assert record.tests[0].detail.startswith("raw_logprobs of token")
