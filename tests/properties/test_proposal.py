"""Chapter proposal: wrong reports are caught, odd ones pass."""

from dataclasses import replace

import pytest
import torch

from specverify.certification.certificate import CaseRecord
from specverify.fixtures.lookalikes.reported_drafts import LOOKALIKES
from specverify.fixtures.mutants.reported_drafts import MUTANTS
from specverify.fixtures.parts.decoder import decoder_subject
from specverify.properties.proposal import SETTINGS, UNREPORTED_DRAFTS
from specverify.subjects.reference import BLOCK, MATCH, TOKEN
from specverify.subjects.registry import load_subject

Q = "proposal.reported_q"
RECORDING = decoder_subject("recording", record_probs=True)
INPUTS = tuple(SETTINGS)
NOWHERE_ELSE = {
    "settings-reported-raw": ("filtered",),
    "top-k-of-its-own-reported-raw": ("plain",),
    "reported-truncated": ("plain",),
}
"""Mutants that one of the inputs does not show: a top-k of 3 after a top-k of 3 is none."""


CAUGHT = [mutant for mutant in MUTANTS if Q in mutant.caught_by]


@pytest.mark.parametrize("mutant", CAUGHT, ids=lambda mutant: mutant.id)
def test_mutants_are_caught(mutant, probe):
    for input in NOWHERE_ELSE.get(mutant.id, INPUTS):
        record = probe(mutant.subject, Q, input)
        assert record.verdict == "violated", (input, record)


@pytest.mark.parametrize("input", INPUTS)
@pytest.mark.parametrize("lookalike", LOOKALIKES, ids=lambda lookalike: lookalike.id)
def test_lookalikes_pass(lookalike, input, probe):
    record = probe(lookalike.subject, Q, input)
    assert record.verdict == "preserved", record
    (decided,) = [test for test in record.tests if test.alpha is not None]
    assert decided.n > 1_000
    assert decided.p_value > 1e-2


@pytest.mark.parametrize("input", INPUTS)
def test_the_reference_passes(input, probe):
    record = probe(RECORDING, Q, input)
    assert record.verdict == "preserved"
    (decided,) = [test for test in record.tests if test.alpha is not None]
    assert decided.n > 50_000
    assert all(test.p_value > 1e-4 for test in record.tests)


@pytest.mark.parametrize("subject", [TOKEN, BLOCK, MATCH], ids=lambda subject: subject.name)
def test_a_subject_that_reports_nothing_is_not_asked(subject, probe):
    assert probe(subject, Q, "plain") == UNREPORTED_DRAFTS
    assert probe(load_subject("transformers"), Q, "plain") == UNREPORTED_DRAFTS


def test_nor_is_one_that_only_decodes_greedily(probe):
    assert "greedily" in probe(load_subject("reference-greedy"), Q, "plain")


def test_tokens_without_distributions_are_not_judged(probe):
    def call(*arguments):
        return replace(RECORDING.call(*arguments), draft_probs=None)

    assert probe(replace(RECORDING, call=call), Q, "plain") == UNREPORTED_DRAFTS


def altered(change, batch: bool = True):
    """The reference, one report in it changed."""

    def call(*arguments):
        output = RECORDING.call(*arguments)
        change(output.draft_tokens, output.draft_probs)
        return output

    declared = replace(RECORDING.capabilities, batch=batch)
    return replace(RECORDING, call=call, capabilities=declared)


@pytest.mark.parametrize(
    ("dtype", "hits", "verdict"),
    [("float64", 1, "violated"), ("float32", 1, "preserved"), ("float32", 20, "violated")],
)
def test_impossible_draft_tokens_are_proof_where_no_coin_explains_them(dtype, hits, verdict, probe):
    """A coin of exactly 0 draws the first token of an inverse CDF, whatever its probability."""
    left = [hits]

    def change(tokens, q):
        for row in range(len(tokens) if len(tokens) > 4_000 else 0):
            if left[0]:
                left[0] -= 1
                own = int(tokens[row, 0, 0])
                q[row, 0, 0, own] = 0
                q[row, 0, 0] /= q[row, 0, 0].sum()

    subject = altered(change)
    declared = replace(subject.capabilities, coin_dtype=dtype)
    record = probe(replace(subject, capabilities=declared), Q, "plain")
    assert record.verdict == verdict
    (said,) = record.findings
    assert "draft tokens have probability 0 under the q reported for them, such as token" in said


@pytest.mark.parametrize("wrong", [float("nan"), -0.1, 1.5])
def test_one_row_that_is_no_distribution_is_proof(wrong, probe):
    def change(tokens, q):
        q[0, 0, 0, 0] = wrong

    record = probe(altered(change), Q, "plain")
    assert record.verdict == "violated"
    assert "reported q are no distributions, such as [" in record.tests[0].detail


def test_jitter_in_the_last_bits_is_no_distribution_of_its_own(probe):
    def change(tokens, q):
        noise = torch.rand(q.shape, generator=torch.Generator().manual_seed(1), dtype=q.dtype)
        q *= 1 + 1e-7 * noise

    record = probe(altered(change), Q, "plain")
    assert record.verdict == "preserved"
    (decided,) = [test for test in record.tests if test.alpha is not None]
    assert decided.strata < 200


def test_one_row_a_call_is_asked_for_less(probe):
    record = probe(altered(lambda tokens, q: None, batch=False), Q, "plain")
    assert record.verdict == "preserved"
    (decided,) = [test for test in record.tests if test.alpha is not None]
    assert 500 < decided.n < 5_000


def test_the_same_seed_gives_the_same_record(probe):
    first, again, other = (probe(RECORDING, Q, "plain", seed) for seed in (3, 3, 4))
    assert isinstance(first, CaseRecord)
    assert replace_seconds(first) == replace_seconds(again) != replace_seconds(other)


def replace_seconds(record: CaseRecord) -> CaseRecord:
    return record.model_copy(update={"seconds": 0.0})
