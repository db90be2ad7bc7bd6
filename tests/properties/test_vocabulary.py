"""Chapter vocabulary: drafts that lack tokens or number them otherwise, logits that are wider."""

from dataclasses import replace

import pytest
import torch

from specverify.fixtures.mutants.vocabularies import MUTANTS
from specverify.subjects.reference import GREEDY, MATCH, TOKEN
from specverify.subjects.registry import load_subject

INPUTS = [
    ("vocabulary.lacking_draft", "first"),
    ("vocabulary.padded_logits", "target"),
    ("vocabulary.padded_logits", "draft"),
    ("vocabulary.permuted_draft", "rotated"),
]


@pytest.mark.parametrize(
    ("name", "property", "input"),
    [
        ("tokens-mapped-alone", "vocabulary.permuted_draft", "rotated"),
        ("missing-tokens-smoothed", "vocabulary.lacking_draft", "first"),
    ],
)
def test_mutants_are_caught(name, property, input, probe):
    (mutant,) = [mutant for mutant in MUTANTS if mutant.id == name]
    assert mutant.caught_by == {property}
    assert probe(mutant.subject, property, input).verdict == "violated"


def test_a_draft_with_the_same_ids_hides_the_mapping(probe):
    (mutant,) = [mutant for mutant in MUTANTS if mutant.id == "tokens-mapped-alone"]
    assert probe(mutant.subject, "vocabulary.lacking_draft", "first").verdict == "preserved"


@pytest.mark.parametrize(("property", "input"), INPUTS)
@pytest.mark.parametrize("subject", [TOKEN, MATCH, GREEDY], ids=lambda s: s.name)
def test_references_pass(subject, property, input, probe):
    assert probe(subject, property, input).verdict == "preserved"


def test_transformers_is_not_asked_what_it_cannot_be_told(probe):
    subject = load_subject("transformers")
    said = probe(subject, "vocabulary.permuted_draft", "rotated")
    assert "handed over without a tokenizer" in said
    assert probe(subject, "vocabulary.padded_logits", "target").startswith("the subject refuses")


def failing(how):
    """The reference, which answers to a pair of two widths in its own way."""

    def call(target, draft, *rest):
        return how() if draft.vocab_size != target.vocab_size else TOKEN.call(target, draft, *rest)

    return replace(TOKEN, name="failing", call=call)


def says_no():
    raise ValueError("target and draft must have one vocabulary")


def runs_out():
    return torch.zeros(3)[7]


def one_row_too_many():
    return torch.zeros((2, 2), dtype=torch.long)


@pytest.mark.parametrize("input", ["target", "draft"])
def test_a_pair_may_be_refused_and_nothing_else(input, probe):
    asked = "vocabulary.padded_logits", input
    for how in (says_no, runs_out):
        said = probe(failing(how), *asked)
        assert said.startswith("the subject refuses such a pair")
    assert probe(failing(one_row_too_many), *asked).verdict == "error"
    assert probe(failing(says_no), "vocabulary.permuted_draft", "rotated").verdict == "preserved"


def failing_at_times(how):
    """Fails on the paths that emit the wider target's own token only."""

    def call(target, draft, *rest):
        output = TOKEN.call(target, draft, *rest)
        wide = target.vocab_size > draft.vocab_size
        return how() if wide and (output.tokens == draft.vocab_size).any() else output

    return replace(TOKEN, name="failing-at-times", call=call)


def test_an_exception_on_some_paths_is_a_refusal_and_a_malformed_output_none(probe):
    asked = "vocabulary.padded_logits", "target"
    for how in (says_no, runs_out):
        assert probe(failing_at_times(how), *asked).startswith("the subject refuses such a pair")
    assert probe(failing_at_times(one_row_too_many), *asked).verdict in {"error", "violated"}
