"""Chapter invariance: other drafts, block lengths and ids, by mutants and look-alikes."""

import pytest

from specverify.certification.certificate import CaseRecord
from specverify.certification.probes.relabelled import Relabelling
from specverify.certification.registry import properties_of
from specverify.errors import UsageError
from specverify.fixtures.lookalikes.invariance import LOOKALIKES, RULE_LOOKALIKES
from specverify.fixtures.mutants.invariance import MUTANTS
from specverify.fixtures.mutants.rule_calls.catalogue import RuleCall
from specverify.fixtures.mutants.rules import Lenient
from specverify.subjects.protocols import Capabilities, Subject
from specverify.subjects.reference import BLOCK, GREEDY, MATCH, TOKEN
from specverify.subjects.registry import load_subject
from specverify.verification import get_verification

SHOWN_BY = {
    "coins-of-four": "K5",
    "coins-of-four-in-a-loop": "K6-of-7",
    "smallest-block-remembered": "K3-after-K1",
    "greedy-without-drafts": "K0",
    "block-beyond-the-run-unverified": "K6",
    "correction-of-eight": "V64",
    "ids-in-a-byte": "V257",
    "ids-in-sixteen-bits": "wide",
    "token-zero-ends-the-block": "rotated",
    "last-token-never-drawn": "rotated",
    "last-token-never-drawn-in-a-loop": "rotated",
    "padding-at-the-end-assumed": "middle",
    "ties-to-the-first": "tied",
    "equal-rows-shortcut": "target",
    "gives-up-where-disjoint": "disjoint",
    "gives-up-where-disjoint-rule": "disjoint",
    "quotient-with-epsilon": "target",
    "target-cut-to-draft": "target",
}
"""The input that shows each mutant."""
UNSHOWN_BY = {
    "coins-of-four": ("invariance.block_length_of_rule", "K3"),
    "correction-of-eight": ("invariance.padded_vocabulary_of_rule", "middle"),
    "ties-to-the-first": ("invariance.permuted_vocabulary_of_rule", "rotated"),
    "gives-up-where-disjoint": ("invariance.draft", "colder"),
    "padding-at-the-end-assumed": ("invariance.padded_vocabulary_of_rule", "end"),
    "greedy-without-drafts": ("invariance.block_length", "K1"),
}
"""An input that cannot show it: the mistake is not there."""
RULE_INPUTS = [
    (id, input)
    for id, inputs in {
        "invariance.draft_of_rule": ("target", "disjoint", "hotter"),
        "invariance.block_length_of_rule": ("K0", "K2", "K6", "K3-after-K1"),
        "invariance.permuted_vocabulary_of_rule": ("rotated", "tied"),
        "invariance.padded_vocabulary_of_rule": ("middle", "end"),
        "invariance.vocabulary_size_of_rule": ("V257",),
    }.items()
    for input in inputs
]
DECODER_INPUTS = [
    ("invariance.draft", "hotter"),
    ("invariance.draft", "disjoint"),
    ("invariance.block_length", "K6"),
    ("invariance.permuted_vocabulary", "rotated"),
    ("invariance.padded_vocabulary", "middle"),
    ("support.degenerate_rows", "first-excluded"),
    ("support.degenerate_rows", "large-logits"),
]


def rule(name: str) -> Subject:
    verification = get_verification(name).unchecked()
    declared = Capabilities(algorithm=name, coin_dtype="float64")
    return Subject(name, "rule", RuleCall(verification), declared)


def inputs_of(id: str) -> list[tuple[str, str]]:
    (mutant,) = [mutant for mutant in MUTANTS if mutant.id == id]
    inputs = SHOWN_BY[id].split()
    known = [p for p in properties_of(mutant.subject.kind) if p.id in mutant.caught_by and p.inputs]
    return [(p.id, next(i for i in inputs if i in p.inputs)) for p in known]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_mutants_are_caught(mutant, probe):
    for id, input in inputs_of(mutant.id):
        record = probe(mutant.subject, id, input)
        assert isinstance(record, CaseRecord)
        assert record.verdict == "violated", (id, input)


@pytest.mark.parametrize("name", UNSHOWN_BY)
def test_mistakes_are_seen_where_they_are_made_only(name, probe):
    (mutant,) = [mutant for mutant in MUTANTS if mutant.id == name]
    assert probe(mutant.subject, *UNSHOWN_BY[name]).verdict == "preserved"


@pytest.mark.parametrize(("id", "input"), RULE_INPUTS)
@pytest.mark.parametrize("name", ["token", "block", "match", "greedy"])
def test_right_rules_pass(name, id, input, probe):
    assert probe(rule(name), id, input).verdict == "preserved"


@pytest.mark.parametrize("lookalike", RULE_LOOKALIKES, ids=lambda lookalike: lookalike.id)
def test_lookalike_rules_pass(lookalike, probe):
    for id, input in RULE_INPUTS:
        record = probe(lookalike.subject, id, input)
        if (lookalike.id, input) == ("refuses-empty-blocks", "K0"):
            assert "refuses a round without draft tokens" in record
        else:
            assert record.verdict == "preserved", (id, input)


@pytest.mark.parametrize(("id", "input"), DECODER_INPUTS)
@pytest.mark.parametrize("subject", [TOKEN, BLOCK, MATCH, GREEDY], ids=lambda s: s.name)
def test_references_pass(subject, id, input, probe):
    assert probe(subject, id, input).verdict == "preserved"


@pytest.mark.parametrize(("id", "input"), [DECODER_INPUTS[1], DECODER_INPUTS[2], DECODER_INPUTS[4]])
def test_transformers_passes(id, input, probe):
    assert probe(load_subject("transformers"), id, input).verdict == "preserved"


@pytest.mark.parametrize("lookalike", LOOKALIKES, ids=lambda lookalike: lookalike.id)
def test_lookalike_decoders_pass(lookalike, probe):
    for input in ("K1", "K6", "K6-of-7", "K2-after-K1"):
        record = probe(lookalike.subject, "invariance.block_length", input)
        assert record.verdict == "preserved", input


def test_a_decoder_may_refuse_to_decode_without_drafts(probe):
    (heuristic,) = [each for each in LOOKALIKES if each.id == "heuristic-lengths"]
    said = probe(heuristic.subject, "invariance.block_length", "K0")
    assert said.startswith("the subject refuses num_draft_tokens=0")


@pytest.mark.parametrize("input", ["rotated", "reversed", "tied"])
def test_a_lossy_rule_is_compared_with_itself(input, probe):
    declared = Capabilities(coin_dtype="float64")
    lenient = Subject("lenient", "rule", RuleCall(Lenient()), declared)
    record = probe(lenient, "invariance.permuted_vocabulary_of_rule", input)
    assert record.verdict == "preserved"


def test_a_crash_is_an_error_and_no_pass(probe):
    def call(tokens, q, p, generator):
        raise ZeroDivisionError

    subject = Subject("crashing", "rule", call, Capabilities(coin_dtype="float64"))
    assert probe(subject, "invariance.draft_of_rule", "hotter").verdict == "error"


@pytest.mark.parametrize("ids", [(0, 0), (0, 5)])
def test_ids_that_do_not_fit_are_refused(ids):
    with pytest.raises(UsageError, match="give each token an id of its own"):
        Relabelling(ids, 3)
