"""Chapter acceptance, computed: lengths of rounds, and what no lossless rule can reach."""

import math

import numpy as np
import pytest
import torch

from specverify.certification.certificate import CaseRecord
from specverify.certification.exact_rounds import RoundCase
from specverify.certification.exact_run import run_exact_case
from specverify.certification.registry import properties_of, unmet_need
from specverify.exact.enumerate import expected_joint, round_distribution
from specverify.exact.round import Round
from specverify.fixtures.mutants.acceptance import RULES
from specverify.fixtures.mutants.rule_calls import RULE_MUTANTS, RuleCall
from specverify.properties.acceptance import (
    acceptance,
    block_at_least_token,
    declares_acceptance,
    optimal_bound,
)
from specverify.properties.joint_exact import one_round
from specverify.statistics.budget import Budget
from specverify.subjects.protocols import Capabilities, Subject
from specverify.verification import get_verification
from tests.properties.by_hand import ROUND, evidence, without

CASES = (
    RoundCase("exact/small", Round.random(3, 2, seed=5)),
    RoundCase("exact/narrow", Round.random(3, 1, seed=4, dtype=torch.float32)),
)
"""Rounds of the kinds that rules are certified on, without comparing rows of a call."""
IDS = ("acceptance.closed_form", "acceptance.block_at_least_token", "acceptance.optimal_bound")
BOUND = "acceptance.optimal_bound"
UNDECLARED = Capabilities(coin_dtype="float64")


def certified(subject: Subject) -> list[CaseRecord]:
    properties = [p for p in properties_of("rule") if p.evidence == "exact"]
    properties = [p for p in properties if unmet_need(p, subject) is None]
    records = []
    for case in CASES:
        record = run_exact_case(subject, case, properties, Budget(1e-6), 0, 60.0)
        assert isinstance(record, CaseRecord), record
        records.append(record)
    return records


def violated(records: list[CaseRecord]) -> set[str]:
    tests = (test for record in records for test in record.tests)
    return {test.property for test in tests if test.decision == "violated"}


@pytest.mark.parametrize("mutant", RULES, ids=lambda mutant: mutant.id)
def test_mutants_are_caught(mutant):
    found = violated(certified(mutant.subject))
    assert mutant.caught_by <= found
    only = {id for id in mutant.caught_by if id.startswith("acceptance.")}
    if only == mutant.caught_by:
        assert found == only, "what is emitted is right"


@pytest.mark.parametrize("algorithm", ["token", "block", "match"])
@pytest.mark.parametrize("declared", [True, False])
def test_the_reference_rules_pass(algorithm, declared):
    capabilities = Capabilities(algorithm=algorithm if declared else None, coin_dtype="float64")
    rule = Subject(algorithm, "rule", RuleCall(get_verification(algorithm)), capabilities)
    records = certified(rule)
    assert not violated(records)
    asked = {test.property for record in records for test in record.tests} & set(IDS)
    assert asked == {
        BOUND,
        *(["acceptance.closed_form"] if declared else []),
        *(["acceptance.block_at_least_token"] if declared and algorithm == "block" else []),
    }


LOSSY = ("always-accept", "lenient", "ensemble", "ratio-inverted", "no-stop-after-rejection")


@pytest.mark.parametrize("id", LOSSY)
def test_lossy_rules_are_above_the_bound(id):
    (mutant,) = [mutant for mutant in RULE_MUTANTS if mutant.id == id]
    assert BOUND in violated(certified(mutant.subject))


@pytest.mark.parametrize("id", ["residual-not-subtracted", "bonus-from-draft", "residual-reversed"])
def test_mistakes_in_the_last_token_are_not(id):
    (mutant,) = [mutant for mutant in RULE_MUTANTS if mutant.id == id]
    assert BOUND not in violated(certified(mutant.subject))


@pytest.mark.parametrize("id", ["block-stops-at-first-failure", "block-coins-from-weights"])
def test_which_wrong_block_rules_are_worse_than_token_verification(id):
    (mutant,) = [mutant for mutant in RULE_MUTANTS if mutant.id == id]
    found = violated(certified(mutant.subject))
    assert "acceptance.closed_form" in found
    worse = {"block-stops-at-first-failure": True, "block-coins-from-weights": False}
    assert ("acceptance.block_at_least_token" in found) is worse[id]


class TestOptimalBound:
    def test_token_verification_attains_it_for_the_first_token(self):
        emitted = round_distribution("token", ROUND)
        accepted = math.fsum(mass for tokens, mass in emitted.items() if len(tokens) > 1)
        assert accepted == pytest.approx(float(np.minimum(ROUND.p(0), ROUND.q(0)).sum()))
        assert optimal_bound(evidence(declared=UNDECLARED), 0.0).violations == ()

    def test_any_more_is_too_much(self):
        emitted = round_distribution("token", ROUND)
        short = next(tokens for tokens in emitted if len(tokens) == 1)
        longer = (short[0], 0, 0)
        moved = emitted | {short: emitted[short] - 1e-9, longer: emitted[longer] + 1e-9}
        said = optimal_bound(evidence(moved), 0.0).violations
        # More of a longer block may stay below the bound of both tokens together.
        assert len(said) >= 1
        assert "is drafted and accepted with probability" in said[0]
        assert optimal_bound(evidence(moved, tolerance=1e-6), 0.0).violations == ()

    def test_the_full_information_ideal_is_not_above_it(self):
        """All of min(P, Q) of every whole block, then the bonus: what no rule can do, barely."""
        tables, masses = [], (np.ones(1), np.ones(1))
        for depth in range(2):
            masses = tuple(
                (mass[:, None] * rows).reshape(-1)
                for mass, rows in zip(masses, (ROUND.p(depth), ROUND.q(depth)), strict=True)
            )
            tables.append(np.minimum(*masses))
        ideal = {
            (*prefix, y): float(tables[1][code] * ROUND.p(2)[code, y])
            for code, prefix in enumerate(map(tuple, ROUND.prefixes(2).tolist()))
            for y in range(3)
        }
        assert optimal_bound(evidence(ideal), 0.0).violations == ()

    def test_tokens_that_were_not_drafted_do_not_count_as_accepted(self):
        """All blocks of the target's own: the right distribution, and nothing was drafted so."""
        free = evidence(expected_joint(ROUND))
        assert one_round(free, 0.0).violations == ()
        assert len(optimal_bound(free, 0.0).violations) == 2

    def test_what_crashes_was_not_accepted(self):
        crashed = evidence(without(1e-3), crashes={"E": 1e-3})
        assert optimal_bound(crashed, 0.0).violations == ()


class TestBlockAtLeastToken:
    BLOCK = Capabilities(algorithm="block", coin_dtype="float64")

    @pytest.mark.parametrize("seed", range(5))
    def test_block_verification_does_better(self, seed):
        round = Round.random(3, 2, seed=seed)
        right = evidence(round_distribution("block", round), declared=self.BLOCK, round=round)
        assert block_at_least_token(right, 0.0).violations == ()

    def test_token_verification_does_as_well_as_itself(self):
        assert block_at_least_token(evidence(declared=self.BLOCK), 0.0).violations == ()

    def test_sampling_and_comparing_does_not(self):
        match = evidence(round_distribution("match", ROUND), declared=self.BLOCK)
        (said,) = block_at_least_token(match, 0.0).violations
        assert "draft tokens are accepted on average, and" in said
        assert "by token verification of the same round" in said

    def test_crashes_leave_lengths_unknown(self):
        outcome = block_at_least_token(evidence(without(1e-3), crashes={"E": 1e-3}), 0.0)
        assert outcome.not_applicable is not None

    def test_is_asked_of_block_verification_alone(self):
        (needs,) = [p.needs for p in properties_of("rule") if p.id == IDS[1]]
        assert needs(Subject("mine", "rule", len, self.BLOCK)) is None
        assert needs(Subject("mine", "rule", len, UNDECLARED)) is not None


class TestClosedForm:
    def test_other_lengths_violate_though_the_output_is_right(self) -> None:
        never = {(x,): float(m) for x, m in enumerate(ROUND.p(0)[0])}
        assert one_round(evidence(never), 0.0).violations == ()
        violations = acceptance(evidence(never), 0.0).violations
        assert len(violations) == 2
        assert "at least 1 draft tokens are accepted with probability 0," in violations[0]

    @pytest.mark.parametrize("algorithm", ["token", "block", "match"])
    def test_each_algorithm_is_held_against_its_own(self, algorithm: str) -> None:
        declared = Capabilities(coin_dtype="float64", algorithm=algorithm)
        emitted = round_distribution(algorithm, ROUND)
        assert acceptance(evidence(emitted, declared=declared), 0.0).violations == ()
        if algorithm != "token":
            assert acceptance(evidence(emitted), 0.0).violations

    def test_crashes_leave_lengths_unknown(self) -> None:
        outcome = acceptance(evidence(without(1e-3), crashes={"E": 1e-3}), 0.0)
        assert outcome.not_applicable is not None

    def test_an_unknown_algorithm_is_not_asked(self) -> None:
        subject = Subject("mine", "rule", len, Capabilities(algorithm="typical"))
        assert declares_acceptance(subject) is not None
