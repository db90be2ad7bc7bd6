"""Replaying one case: the same result for the same subject, a difference for a mended one."""

from dataclasses import replace
from functools import cache

import pytest

from specverify.certification.certificate import CaseRecord, Certificate
from specverify.certification.counterexamples.rules import smallest_round
from specverify.certification.exact_run import exact_cases, run_exact_case
from specverify.certification.probes.run import probes_of, run_probe
from specverify.certification.registry import properties_of, unmet_need
from specverify.certification.replay import replay_case, replay_counterexample
from specverify.certification.run import certify
from specverify.errors import UsageError
from specverify.fixtures.mutants.rule_calls import RULE_MUTANTS
from specverify.models.pairs import load_pair
from specverify.settings import SamplingSettings
from specverify.statistics.budget import Budget
from specverify.subjects.protocols import Subject

RULES = {mutant.id: mutant.subject for mutant in RULE_MUTANTS}
WRONG = RULES["always-accept"]
EXACT = "exact/random-V3-K1-float64"
PROBE = "probe/invariance.draft_of_rule/uniform"
MENDED = replace(RULES["residual-clamped-below-rounding"], name=WRONG.name)
"""Right but for what no tolerance minds, under the wrong one's name."""


@cache
def certificate() -> Certificate:
    """Of a wrong rule: one sampled, one computed and one probed case."""
    sampled = certify(
        WRONG, settings={"plain": SamplingSettings()}, tokens=6_000, exact=False, shrink=False
    )
    budget = Budget(sampled.alpha / 2, sampled.tests)
    properties = properties_of("rule")
    (case,) = (case for case in exact_cases(WRONG, ()) if case.id == EXACT)
    asked = [p for p in properties if p.evidence == "exact" and unmet_need(p, WRONG) is None]
    computed = run_exact_case(WRONG, case, asked, budget, 0, 60.0)
    (probe,) = (probe for probe in probes_of(properties) if probe.id == PROBE)
    probed = run_probe(WRONG, probe, budget, 0, 60.0)
    assert isinstance(computed, CaseRecord)
    assert isinstance(probed, CaseRecord)
    found = smallest_round(WRONG, "joint.round", 0, 60.0, 60.0)
    computed = computed.model_copy(update={"counterexample": found})
    return sampled.model_copy(update={"cases": (*sampled.cases, computed, probed)})


@pytest.mark.parametrize("case", ["plain", EXACT, PROBE])
def test_the_same_subject_gives_the_same(case: str) -> None:
    result = replay_case(certificate(), case, WRONG)
    assert result.differences == ()
    assert result.now.verdict == result.recorded.verdict == "violated"


def test_a_mended_subject_is_seen_to_be_one() -> None:
    result = replay_case(certificate(), EXACT, MENDED)
    assert result.now.verdict == "preserved"
    assert any("the verdict was violated, and is preserved" in text for text in result.differences)


def test_the_counterexample_once_more() -> None:
    result, same = replay_counterexample(certificate(), EXACT, WRONG)
    assert result.wrong
    assert same
    result, same = replay_counterexample(certificate(), EXACT, MENDED)
    assert not result.wrong
    assert not same


def test_what_blocks_a_case_is_not_a_difference() -> None:
    whole = certificate()
    blocked = tuple(
        case.model_copy(
            update={
                "tests": tuple(
                    test.model_copy(update={"decision": "blocked"})
                    if test.decision == "violated"
                    else test
                    for test in case.tests
                )
            }
        )
        for case in whole.cases
    )
    result = replay_case(whole.model_copy(update={"cases": blocked}), EXACT, WRONG)
    assert result.differences == ()


class TestErrors:
    def test_a_case_that_is_not_there(self) -> None:
        with pytest.raises(UsageError, match=r"no case 'plian' \(did you mean 'plain'\?\)"):
            replay_case(certificate(), "plian", WRONG)
        with pytest.raises(UsageError, match="its cases begin with plain"):
            replay_case(certificate(), "zzzzzz", WRONG)

    def test_another_subject(self) -> None:
        with pytest.raises(UsageError, match="is of 'always-accept', a rule; 'lenient'"):
            replay_case(certificate(), "plain", RULES["lenient"])
        decoder = Subject("always-accept", "decoder", print)
        with pytest.raises(UsageError, match="another subject, a decoder"):
            replay_case(certificate(), "plain", decoder)

    def test_another_pair(self) -> None:
        other = replace(load_pair("toy"), name="theirs")
        with pytest.raises(UsageError, match="sampled on pair 'toy', not on 'theirs'"):
            replay_case(certificate(), "plain", WRONG, other)

    def test_a_case_without_a_counterexample(self) -> None:
        with pytest.raises(UsageError, match=f"no counterexample; {EXACT} has one"):
            replay_counterexample(certificate(), "plain", WRONG)

    def test_a_case_that_the_suite_no_longer_has(self) -> None:
        whole = certificate()
        gone = whole.cases[1].model_copy(update={"id": "exact/gone"})
        with pytest.raises(UsageError, match="has no case 'exact/gone'"):
            replay_case(whole.model_copy(update={"cases": (gone,)}), "exact/gone", WRONG)
