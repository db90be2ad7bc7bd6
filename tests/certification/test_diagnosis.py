"""What a violation looks like: the right kind for known mistakes, unknown for strange ones."""

import pytest
import torch
from torch import Generator, Tensor

from specverify.certification.certificate import CaseRecord, TestRecord
from specverify.certification.diagnosis import compared, diagnose, divergence, with_diagnosis
from specverify.certification.diagnosis_bets import UNKNOWN
from specverify.certification.signatures import Input, emitted, inputs, library, signature
from specverify.exact.joint import total_variation
from specverify.fixtures.mutants import MUTANTS
from specverify.fixtures.mutants.families import OTHER, family_of
from specverify.fixtures.mutants.rule_calls import RULE_MUTANTS
from specverify.subjects.protocols import Capabilities, Subject
from specverify.subjects.reference import TOKEN as REFERENCE

RULES = {mutant.id: mutant for mutant in RULE_MUTANTS}
BY_BETS = {"residual = p": 40.0, "leak to q, 0.3": 36.0, "tilt q > p, 1": 20.0}


def shifted(
    draft_tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor, generator: Generator
) -> Tensor:
    """Emits the token after the one the target draws: no mistake of the catalogue."""
    drawn = torch.multinomial(target_probs[:, 0], 1, generator=generator)
    moved = (drawn + 1) % target_probs.shape[2]
    return torch.nn.functional.pad(moved, (0, draft_tokens.shape[1]), value=-1)


def of_mutant(id: str) -> dict[Input, object]:
    return {input: signature(RULES[id], input) for input in inputs("rule")}


def test_divergence_is_0_for_the_same_and_finite_for_what_cannot_be() -> None:
    joint = {(0,): 0.25, (1,): 0.75}
    assert divergence(joint, joint) == pytest.approx(0.0, abs=1e-8)
    assert 10 < divergence({(0,): 1.0}, {(1,): 1.0}) < 30


@pytest.mark.parametrize(
    "id", ["residual-not-subtracted", "bonus-from-draft", "one-coin-per-block"]
)
def test_a_known_mistake_is_named(id: str) -> None:
    found = diagnose(RULES[id].subject)
    assert found is not None
    assert (found.mutant, found.kind, found.basis) == (id, RULES[id].family, "exact")
    assert found.confidence > 0.9
    assert found.suspects[0].mutant == id


def test_what_a_known_mistake_does_is_said_too() -> None:
    mutant = MUTANTS["residual-not-subtracted"]
    observed = {input: signature(mutant, input) for input in inputs("decoder")}
    found = compared("decoder", observed)
    assert found is not None
    assert found.mutant == mutant.id
    assert found.description == f"{mutant.description}; {mutant.effect}"


def test_a_mistake_nobody_made_before_is_unknown() -> None:
    found = diagnose(Subject("shifted", "rule", shifted, Capabilities()))
    assert found is not None
    assert found.kind == UNKNOWN
    assert found.mutant == ""


def test_a_mistake_left_out_is_unknown_or_a_neighbour() -> None:
    found = compared("rule", of_mutant("lenient"), without=frozenset({"lenient"}))
    assert found is not None
    assert found.kind in (UNKNOWN, RULES["lenient"].family)


@pytest.mark.parametrize("kind", ["rule", "decoder"])
def test_known_mistakes_are_told_apart_and_unknown_ones_mislead_nobody(kind: str) -> None:
    judged, right, misled = 0, 0, []
    for mutant in library(kind):
        observed = {input: signature(mutant, input) for input in inputs(kind)}
        known = compared(kind, observed)
        if known is None:
            continue
        left_out = compared(kind, observed, without=frozenset({mutant.id}))
        assert left_out is not None
        judged, right = judged + 1, right + (known.kind == mutant.family)
        if left_out.kind not in (UNKNOWN, mutant.family) and left_out.confidence > 0.9:
            misled.append(mutant.id)
    assert judged >= 30
    assert right >= 0.9 * judged
    assert misled == []


def test_what_ends_a_round_early_is_told_from_what_does_not() -> None:
    """Over two tokens a reversed residual emits what was rejected, as if it had been accepted."""
    reversed, accepting = MUTANTS["residual-reversed"], MUTANTS["always-accept"]
    apart = {}
    for input in inputs("decoder"):
        first, second = signature(reversed, input), signature(accepting, input)
        if first is not None and second is not None:
            apart[input.name] = total_variation(first, second)
    assert apart["plain"] < 1e-12
    assert apart["short"] > 1e-3


def test_a_right_rule_has_no_diagnosis() -> None:
    assert compared("rule", {input: input.expected for input in inputs("rule")}) is None


@pytest.mark.parametrize("kind", ["rule", "decoder"])
def test_the_library_that_ships_is_what_the_mutants_emit(kind: str) -> None:
    """All rules on one input, and every sixth decoder; `benchmarks/diagnosis.py` makes all."""
    (input, *_) = inputs(kind)
    known = [*RULES.values()] if kind == "rule" else [*MUTANTS.values()][::6]
    compared = 0
    for mutant in known:
        if (stored := signature(mutant, input)) is None:
            continue
        now = emitted(mutant.subject, input)
        assert now is not None
        assert total_variation(stored, now) < 1e-12, mutant.id
        compared += 1
    assert compared > len(known) / 2


def test_every_mutant_has_a_kind() -> None:
    assert family_of("bonus-cooler", "") == "bonus"
    assert family_of("new", "", {"joint.run", "stopping.at_end"}) == "stopping"
    assert family_of("new", "", {"joint.run"}) == OTHER
    assert {mutant.family for mutant in RULE_MUTANTS} >= {"residual", "ratio", "bonus", "coins"}
    assert MUTANTS["cache-not-cropped"].family == "cache"
    assert len(library("decoder")) > 40


class TestCases:
    def test_by_the_bets_where_nothing_is_computed(self) -> None:
        test = TestRecord(
            property="joint.every_token",
            claim="",
            evidence="sampled",
            decision="violated",
            components=BY_BETS,
        )
        case = CaseRecord(id="plain", verdict="violated", tests=(test,))
        subject = Subject("mine", "decoder", REFERENCE.call, Capabilities())
        (found,) = with_diagnosis([case], subject)
        assert found.diagnosis is not None
        assert (found.diagnosis.kind, found.diagnosis.basis) == ("residual", "bets")
        assert found.diagnosis.confidence > 0.9
        assert "residual = p" in found.diagnosis.description

    def test_nothing_violated_nothing_said(self) -> None:
        case = CaseRecord(id="plain", verdict="preserved")
        assert with_diagnosis([case], REFERENCE) == [case]
