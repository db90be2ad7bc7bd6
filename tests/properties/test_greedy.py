"""Chapter greedy: loops and rules that are greedy in another sense, and ones that only look so."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specverify.certification.certificate import CaseRecord
from specverify.fixtures.lookalikes import LOOKALIKES
from specverify.fixtures.mutants import greedy as mutants
from specverify.fixtures.mutants.catalogue import Mutant
from specverify.fixtures.mutants.greedy import GoodEnough
from specverify.fixtures.mutants.rule_calls.catalogue import RuleCall
from specverify.fixtures.parts.rules import TokenRule
from specverify.properties import greedy
from specverify.properties.greedy import NUMERICAL, SETTINGS
from specverify.properties.greedy_rules import declares_greedy
from specverify.subjects.protocols import Capabilities, Subject
from specverify.subjects.reference import BLOCK, GREEDY, MATCH, TOKEN
from specverify.subjects.registry import load_subject
from specverify.verification import BLOCK as BLOCK_RULE
from specverify.verification import GREEDY as GREEDY_RULE
from specverify.verification import MATCH as MATCH_RULE
from specverify.verification import TOKEN as TOKEN_RULE

OF_DECODER = (
    *(("greedy.equals_argmax", f"K{number}") for number in range(1, 6)),
    *(("greedy.settings", name) for name in SETTINGS),
    ("greedy.ties", "drafts"),
)
OF_RULE = tuple(("greedy.rule", f"K{number}") for number in range(1, 6))
ON_SPREAD = tuple(("greedy.rule_on_spread_rows", f"K{number}") for number in (1, 3, 5))
MUTANTS = {mutant.id: mutant for mutant in mutants.MUTANTS}


def cases(subject: Subject) -> tuple[tuple[str, str], ...]:
    if subject.kind == "decoder":
        return OF_DECODER
    return (*OF_RULE, *ON_SPREAD) if declares_greedy(subject) is None else OF_RULE


def rule(verification, algorithm: str, **declared) -> Subject:
    capabilities = Capabilities(algorithm=algorithm, coin_dtype="float64", **declared)
    return Subject(algorithm, "rule", RuleCall(verification), capabilities)


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_mutants_are_caught(mutant: Mutant, probe) -> None:
    records = [(id, probe(mutant.subject, id, input)) for id, input in cases(mutant.subject)]
    violated = {id for id, record in records if record.verdict == "violated"}
    assert violated >= mutant.caught_by


def test_each_catches_what_the_others_pass(probe) -> None:
    """Penalties that are ignored, and ties left to the draft, show in one place only."""
    for id, place in (
        ("greedy-raw-argmax", "greedy.settings"),
        ("greedy-tie-by-draft", "greedy.ties"),
    ):
        subject = MUTANTS[id].subject
        found = {case for case in OF_DECODER if probe(subject, *case).verdict == "violated"}
        assert {property for property, _ in found} == {place}
    passed = probe(MUTANTS["greedy-raw-argmax"].subject, "greedy.settings", "truncation")
    assert passed.verdict == "preserved"


class DrawsOneHot(TokenRule):
    """Draws coins and tokens where only one outcome is possible."""


RIGHT = {
    "reference": TOKEN,
    "reference-block": BLOCK,
    "reference-match": MATCH,
    "reference-greedy": GREEDY,
    "transformers": load_subject("transformers"),
    "one row a call": replace(TOKEN, capabilities=replace(TOKEN.capabilities, batch=False)),
    **{id: LOOKALIKES[id].subject for id in ("no-bonus-token", "common-cut", "prompt-lookup")},
    "token": rule(TOKEN_RULE, "token"),
    "token in steps": rule(DrawsOneHot(), "token"),
    "block": rule(BLOCK_RULE, "block"),
    "match": rule(MATCH_RULE, "match"),
    "greedy": rule(GREEDY_RULE, "greedy"),
    "greedy in steps": rule(GoodEnough(1.0), "greedy"),
    "greedy, one row a call": rule(GREEDY_RULE, "greedy", batch=False),
}


@pytest.mark.parametrize("subject", RIGHT.values(), ids=RIGHT)
def test_right_ones_pass(subject: Subject, probe) -> None:
    for id, input in cases(subject):
        record = probe(subject, id, input)
        if isinstance(record, CaseRecord):
            assert (record.verdict, record.findings) == ("preserved", ()), (id, input, record)


def test_what_is_not_honoured_is_not_asked(probe) -> None:
    said = probe(load_subject("transformers"), "greedy.settings", "counts")
    assert said == "the subject does not honour frequency_penalty, presence_penalty"
    assert declares_greedy(RIGHT["token"]) is not None


def test_another_convention_for_ties_is_a_finding(probe) -> None:
    record = probe(mutants.TIE_BY_LAST_INDEX, "greedy.ties", "drafts")
    assert record.verdict == "preserved"
    (finding,) = record.findings
    assert "where the dialect's argmax is the first" in finding
    for id, input in OF_DECODER[:-1]:
        assert probe(mutants.TIE_BY_LAST_INDEX, id, input).findings == ()


def test_runs_reject_often_and_prompts_lead_elsewhere(monkeypatch, probe) -> None:
    outputs = []
    generate = greedy.DecoderTrial.generate

    def kept(self, *arguments, **options):
        outputs.append(generate(self, *arguments, **options))
        return outputs[-1]

    monkeypatch.setattr(greedy.DecoderTrial, "generate", kept)
    probe(TOKEN, "greedy.equals_argmax", "K3")
    (output,) = outputs
    assert output.tokens.shape == (5, 64)
    assert len({tuple(row) for row in output.tokens[:, :8].tolist()}) == 5
    ran = output.accepted >= 0
    rejected = (output.accepted < output.drafted)[ran].double().mean()
    assert 0.3 < float(rejected) < 0.95


@pytest.mark.parametrize(("ahead", "margin", "wrong"), [(1e-5, NUMERICAL, 0), (1e-3, NUMERICAL, 1)])
def test_near_ties_are_excused(ahead: float, margin: float, wrong: int) -> None:
    scores = torch.tensor([[0.0, -2.0], [-ahead, 0.0]], dtype=torch.float64)
    judged = greedy._Judged(torch.tensor([0, 0]), scores)
    said = judged.wrong(margin)
    assert (said is not None) == bool(wrong)
    if said is not None:
        assert "after [0] it emits 0" in said
        assert "token 1 is ahead by 0.001 nats; 1 of 2 tokens" in said
    assert judged.near() == ("1 tokens are second best in a near tie",)


def test_a_rejected_token_and_a_token_too_many_are_told(probe) -> None:
    def always(tokens: Tensor, q: Tensor, p: Tensor, generator) -> Tensor:
        return torch.cat([tokens, p[:, -1].argmax(1, keepdim=True)], 1)

    record = probe(Subject("always", "rule", always), "greedy.rule", "K2")
    assert "rounds are wrong: with the draft tokens" in record.tests[0].detail
