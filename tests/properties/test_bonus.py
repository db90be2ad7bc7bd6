"""Chapter bonus: the token after full acceptance."""

from dataclasses import replace

import pytest

from specverify.certification.registry import UNREPORTED, properties_of
from specverify.properties.bonus import given_full_acceptance
from specverify.subjects.reference import TOKEN

ALPHA = 1e-6


@pytest.mark.parametrize("mutant", ["bonus-from-draft", "bonus-previous-row"])
def test_mutants_are_caught(mutant, evidence, rejects):
    outcome = given_full_acceptance(evidence(mutant, tokens=150_000), ALPHA)
    assert rejects(outcome)
    assert outcome.boundaries, "it trusts where the decoder says its rounds end"


@pytest.mark.parametrize("name", ["reference", "reference-block", "reference-match"])
@pytest.mark.parametrize("settings", ["plain", "stopping"])
def test_right_ones_pass(name, settings, evidence, calm):
    assert calm(given_full_acceptance(evidence(name, settings), ALPHA))


@pytest.mark.parametrize("wrong", ["residual-not-subtracted", "residual-reversed"])
def test_a_wrong_correction_is_not_blamed_on_the_bonus(wrong, evidence, calm):
    assert calm(given_full_acceptance(evidence(wrong), ALPHA))


def test_short_blocks_have_a_bonus_as_well(evidence):
    """The number offered is the subject's own, not K."""
    made = evidence("random-block-lengths")
    observed = given_full_acceptance(made, ALPHA).tests[0].n
    assert observed > made.first_rounds.accepted.get(4, 0)


def test_needs_an_algorithm_and_reported_acceptance(evidence):
    (needs,) = [p.needs for p in properties_of("rule") if p.id == "bonus.given_full_acceptance"]
    assert needs(TOKEN) is None
    unknown = replace(TOKEN, capabilities=replace(TOKEN.capabilities, algorithm=None))
    assert "declares no algorithm" in (needs(unknown) or "")
    bare = replace(TOKEN, name="bare", call=lambda *a: TOKEN.call(*a).tokens)
    outcome = given_full_acceptance(evidence(bare, tokens=6_000), ALPHA)
    assert outcome.not_applicable == UNREPORTED
