"""Chapter randomness, probed: seeds that are ignored, and right subjects that treat them oddly."""

import random
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from specverify import certify
from specverify.certification.certificate import CaseRecord
from specverify.certification.exact_rounds import exact_rounds
from specverify.certification.exact_run import run_exact_case, undetermined
from specverify.errors import OutsideRandomness
from specverify.fixtures.lookalikes import rules as right_rules
from specverify.fixtures.mutants import randomness, randomness_rules
from specverify.fixtures.mutants.catalogue import Mutant
from specverify.fixtures.mutants.randomness import drawing_from
from specverify.fixtures.mutants.rule_calls.catalogue import RuleCall
from specverify.fixtures.parts.decoder import decoder_subject
from specverify.fixtures.parts.rules import Round, TokenRule
from specverify.properties.randomness_seeds import WITHOUT, draws
from specverify.settings import SamplingSettings
from specverify.statistics.budget import Budget
from specverify.subjects.protocols import Capabilities, Subject
from specverify.subjects.reference import BLOCK, GREEDY, MATCH, TOKEN
from specverify.subjects.registry import load_subject
from specverify.verification import BLOCK as BLOCK_RULE
from specverify.verification import MATCH as MATCH_RULE
from specverify.verification.protocol import Verification

OF_DECODER = (
    ("randomness.repeatable", "all"),
    ("randomness.global_state", "all"),
    ("randomness.next_call", "correction"),
    ("randomness.other_seed", "draft"),
    ("randomness.other_seed", "acceptance"),
    ("randomness.other_seed", "correction"),
    ("randomness.other_seed", "bonus"),
)
OF_RULE = (
    *OF_DECODER[:3],
    ("randomness.other_seed_of_rule", "acceptance"),
    ("randomness.other_seed_of_rule", "correction"),
    ("randomness.other_seed_of_rule", "bonus"),
)
MUTANTS = {mutant.id: mutant for mutant in (*randomness.MUTANTS, *randomness_rules.MUTANTS)}


def cases(subject: Subject) -> tuple[tuple[str, str], ...]:
    return OF_RULE if subject.kind == "rule" else OF_DECODER


def rule(verification: Verification, **declared) -> Subject:
    capabilities = Capabilities(**{"algorithm": "token", "coin_dtype": "float64"} | declared)
    return Subject(type(verification).__name__, "rule", RuleCall(verification), capabilities)


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_mutants_are_caught(mutant: Mutant, probe) -> None:
    records = [(id, probe(mutant.subject, id, input)) for id, input in cases(mutant.subject)]
    violated = {id for id, record in records if record.verdict == "violated"}
    assert violated >= mutant.caught_by


@pytest.mark.parametrize(
    ("mutant", "said"),
    [
        ("seeded-by-the-clock", "the clock (time_ns) at mutants/randomness.py:"),
        ("seeded-by-the-second", "the clock decides"),
        ("seeded-by-an-address", "the address of an object (id) at mutants/randomness.py:"),
        ("seeded-by-the-system", "a seed that is drawn from outside (seed)"),
        ("global-generator", "it draws from a global generator that it was not handed"),
        ("first-generator-kept", "state kept between calls"),
        ("rule-coins-of-numpy", "the operating system (urandom) at mutants/randomness_rules.py:"),
    ],
)
def test_what_decides_is_named(mutant: str, said: str, probe) -> None:
    record = probe(MUTANTS[mutant].subject, "randomness.repeatable", "all")
    assert said in record.tests[0].detail


def test_the_draw_that_ignores_its_seed_is_named(probe) -> None:
    subject = MUTANTS["draft-seed-ignored"].subject
    found = {input: probe(subject, id, input).verdict for id, input in OF_DECODER[3:]}
    assert found.pop("draft") == "violated"
    assert set(found.values()) == {"preserved"}


class ClockRead(TokenRule):
    """Reads the clock for its log."""

    def coins(self, step: Round, generator: Generator | None) -> Tensor:
        assert time.time() > 0
        return super().coins(step, generator)


class GlobalStatesLent(TokenRule):
    """Draws from global generators that it seeds, and puts back as they were."""

    def coins(self, step: Round, generator: Generator | None) -> Tensor:
        seed = int(torch.randint(1 << 30, (), generator=generator))
        numpy_state, python_state = np.random.get_state(), random.getstate()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
            coins = super().coins(step, None)
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        return coins


class CoinsByCounter(TokenRule):
    """Coins of a counter-based generator whose key is drawn from the one that is handed over."""

    def coins(self, step: Round, generator: Generator | None) -> Tensor:
        key = int(torch.randint(1 << 60, (), generator=generator))
        coins = np.random.Generator(np.random.Philox(key=key)).random(step.tokens.shape)
        return torch.from_numpy(coins)


class RowsShareCoins(TokenRule):
    """One coin for all rows: wrong, but it comes from the generator."""

    def coins(self, step: Round, generator: Generator | None) -> Tensor:
        return super().coins(step, generator)[:1].expand(step.tokens.shape)


def own_key(_loop, generator: Generator) -> Generator:
    """A new generator for the call, seeded by a draw from the one that is handed over."""
    return Generator().manual_seed(int(torch.randint(1 << 60, (), generator=generator)))


RIGHT = {
    "reference": TOKEN,
    "reference-block": BLOCK,
    "reference-match": MATCH,
    "transformers": load_subject("transformers"),
    "own-key": decoder_subject("own-key", loop=drawing_from(own_key)),
    "declares the global generator": replace(
        MUTANTS["global-generator"].subject,
        capabilities=replace(TOKEN.capabilities, generator=False),
    ),
    "token": rule(TokenRule()),
    "block": rule(BLOCK_RULE, algorithm="block"),
    "match": rule(MATCH_RULE, algorithm="match"),
    "one row a call": rule(TokenRule(), batch=False),
    "no bonus token": rule(right_rules.NoBonusToken(), algorithm=None),
    "clock read": rule(ClockRead()),
    "global states lent": rule(GlobalStatesLent()),
    "coins by counter": rule(CoinsByCounter()),
    "rows share coins": rule(RowsShareCoins()),
}


@pytest.mark.parametrize("subject", RIGHT.values(), ids=RIGHT)
def test_right_ones_pass(subject: Subject, probe) -> None:
    for id, input in cases(subject):
        record = probe(subject, id, input)
        if isinstance(record, CaseRecord):
            assert (record.verdict, record.findings) == ("preserved", ()), (id, input, record)


def test_no_bonus_token_has_no_seed(probe) -> None:
    said = probe(RIGHT["no bonus token"], "randomness.other_seed_of_rule", "bonus")
    assert said == "the subject emits no bonus token"


def test_one_that_declares_no_generator_is_told_that_it_cannot_be_repeated(probe) -> None:
    declared = replace(TOKEN.capabilities, generator=False)
    subject = replace(MUTANTS["seeded-by-the-clock"].subject, capabilities=declared)
    record = probe(subject, "randomness.repeatable", "all")
    assert record.verdict == "preserved"
    assert any("the clock (time_ns)" in finding for finding in record.findings)
    assert "declares that it uses" in probe(subject, "randomness.global_state", "all")


def test_greedy_ones_have_no_seed() -> None:
    assert (draws(GREEDY), draws(TOKEN)) == (WITHOUT, None)


def test_what_exact_evidence_cannot_determine_is_a_finding() -> None:
    subject = MUTANTS["rule-coins-of-numpy"].subject
    case = exact_rounds("token")[0]
    refusal = run_exact_case(subject, case, (), Budget(1e-6, 1), 0, 60.0)
    assert isinstance(refusal, OutsideRandomness)
    refusals = {case.id: refusal, "exact/another": refusal}
    (finding,) = undetermined(refusals, subject)
    assert finding.startswith("is not determined by its seed: the same decisions")
    without = replace(subject, capabilities=replace(subject.capabilities, generator=False))
    assert undetermined(refusals, without) == ()


def test_one_that_cannot_be_repeated_is_not_preserved() -> None:
    certificate = certify(
        MUTANTS["rule-coins-of-numpy"].subject,
        settings={"plain": SamplingSettings()},
        tokens=2_000,
        only=["randomness.repeatable", "joint.round"],
        sample=False,
    )
    assert certificate.verdict == "violated"
    assert "randomness.repeatable" in certificate.reason
    assert any("is not determined by its seed" in found for found in certificate.findings)
