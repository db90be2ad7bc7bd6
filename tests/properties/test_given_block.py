"""Acceptance, correction and bonus token of a rule for each draft block."""

import pytest

from specverify.certification.certificate import Certificate
from specverify.certification.run import certify
from specverify.fixtures.mutants.rule_calls import RULE_MUTANTS
from specverify.fixtures.mutants.rule_calls.catalogue import RuleCall
from specverify.fixtures.mutants.rules_given_block import MUTANTS
from specverify.fixtures.parts.opaque import OpaqueTokenRule
from specverify.subjects.protocols import Capabilities, Subject
from specverify.verification import get_verification

ALL = ("acceptance.given_block", "correction.given_block", "bonus.given_block")
UNKNOWN = MUTANTS[0].subject.call.verification
RULES = {mutant.id: mutant.subject for mutant in RULE_MUTANTS}


def rule(verification, algorithm) -> Subject:
    declared = Capabilities(algorithm=algorithm, coin_dtype="float64")
    return Subject("rule", "rule", RuleCall(verification), declared)


def run(subject: Subject, **options) -> Certificate:
    return certify(subject, sample=False, only=list(ALL), shrink=False, **options)


def records(certificate: Certificate):
    return [test for case in certificate.cases for test in case.tests]


def violated(certificate: Certificate) -> set[str]:
    return {test.property for test in records(certificate) if test.decision == "violated"}


@pytest.mark.parametrize("algorithm", ["greedy", "token", "block", "match"])
def test_the_reference_rules_pass_and_are_computed(algorithm):
    found = records(run(rule(get_verification(algorithm), algorithm)))
    assert {test.property for test in found} == set(ALL)
    assert all(test.decision == "pass" and test.evidence == "exact" for test in found)
    assert all(test.exact.total_variation < 1e-12 for test in found)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_rule_that_cannot_be_steered_passes_on_samples(seed):
    found = records(run(rule(OpaqueTokenRule(), "token"), seed=seed))
    decided = [test for test in found if test.decision != "reported"]
    assert {test.property for test in decided} == set(ALL)
    assert all(test.decision == "pass" and test.evidence == "sampled" for test in decided)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_what_is_right_on_average_is_caught_by_one_property(mutant):
    certificate = run(mutant.subject)
    assert violated(certificate) == mutant.caught_by
    whole = certify(mutant.subject, sample=False, shrink=False, only=["joint.*", "acceptance.*"])
    assert violated(whole) == mutant.caught_by & {"acceptance.given_block"}


def test_the_block_and_the_numbers_are_named():
    certificate = run(MUTANTS[0].subject)
    (test, *_) = [test for test in records(certificate) if test.decision == "violated"]
    assert "as the correction after [" in test.detail
    assert "of the draft block [" in test.detail
    assert "under 'token' (TV 0." in test.detail
    worst = test.exact.worst[0]
    assert abs(worst.observed - worst.expected) > 1e-3


def test_another_algorithm_than_declared_is_caught():
    found = violated(run(rule(get_verification("match"), "token")))
    assert {"acceptance.given_block"} <= found


def test_the_bonus_token_is_judged_by_itself():
    assert "bonus.given_block" in violated(run(RULES["bonus-from-draft"]))


@pytest.mark.parametrize(("algorithm", "said"), [("token", "block and token"), ("match", "match")])
def test_the_correction_of_an_undeclared_rule_is_printed_and_not_judged(algorithm, said):
    certificate = run(rule(get_verification(algorithm), None))
    assert not violated(certificate)
    reasons = {entry.reason for entry in certificate.not_applicable}
    wanted = f": the subject declares no algorithm; its corrections are those of {said}"
    assert any(reason.startswith("K1") and reason.endswith(wanted) for reason in reasons), reasons


def test_a_rule_of_no_known_kind_is_printed_as_such():
    reasons = [e.reason for e in run(rule(UNKNOWN, None)).not_applicable]
    assert any("none that has a closed form" in reason for reason in reasons)
