"""From outcomes to records, from records to verdicts."""

import itertools

import pytest

from specverify.certification import judge
from specverify.certification.certificate import Decision, TestRecord
from specverify.certification.registry import Outcome, Property
from specverify.certification.verdict import Verdict
from specverify.statistics.budget import Budget
from specverify.statistics.result import TestResult

PROPERTY = Property(
    "some.property", "It holds.", frozenset({"decoder"}), 2, lambda *_: Outcome(), lambda _: None
)
BUDGET = Budget(1e-6, 10)


def result(name: str, p_value: float, df: int = 3) -> TestResult:
    return TestResult(name, 12.5, df, p_value, 1000, 4, 1, 2)


def records(outcome: Outcome) -> list[TestRecord]:
    return judge.test_records(PROPERTY, outcome, BUDGET, "sampled")


def pair(chi: float, g: float, df: int = 3) -> tuple[TestResult, TestResult]:
    return result("chi-squared", chi, df), result("G", g, df)


@pytest.mark.parametrize(
    ("chi", "g", "decision"),
    [
        (0.5, 0.5, "pass"),
        (1e-7, 1e-7, "violated"),
        (1e-30, 1.01e-7, "pass"),
        (1.01e-7, 1e-30, "pass"),
    ],
)
def test_a_comparison_is_rejected_when_both_tests_reject(
    chi: float, g: float, decision: Decision
) -> None:
    made = records(Outcome(tests=pair(chi, g)))
    assert [record.decision for record in made] == [decision] * 2
    assert [record.test for record in made] == ["chi-squared", "G"]
    assert made[0].alpha == BUDGET.share == pytest.approx(1e-7)


def test_the_numbers_of_a_test_are_kept() -> None:
    outcome = Outcome(
        tests=pair(0.25, 0.5),
        details={"worst": [{"stratum": 1, "cell": 2, "observed": 3, "expected": 4.5}]},
    )
    first, _ = records(outcome)
    assert (first.statistic, first.df, first.p_value, first.n) == (12.5, 3, 0.25, 1000)
    assert (first.cells, first.strata, first.impossible) == (4, 1, 2)
    assert (first.property, first.claim, first.evidence) == (
        "some.property",
        "It holds.",
        "sampled",
    )
    assert first.worst_cells[0].expected == 4.5


def test_too_few_counts_to_compare() -> None:
    made = records(Outcome(tests=pair(1.0, 1.0, df=0)))
    assert {record.decision for record in made} == {"untested"}


def test_a_support_test_has_no_degrees_of_freedom_and_is_a_test_all_the_same() -> None:
    (passed,) = records(Outcome(tests=(result("support", 1.0, df=0),)))
    (failed,) = records(Outcome(tests=(result("support", 1e-9, df=0),)))
    assert (passed.decision, failed.decision) == ("pass", "violated")


def test_what_is_missing_is_said_unless_there_is_worse() -> None:
    made = records(Outcome(tests=pair(0.5, 0.5), missing="more runs"))
    assert {(record.decision, record.detail) for record in made} == {("undecided", "more runs")}
    made = records(Outcome(tests=pair(1e-9, 1e-9), missing="more runs"))
    assert {(record.decision, record.detail) for record in made} == {("violated", "")}


def test_a_contradiction_needs_no_statistics() -> None:
    (record,) = records(Outcome(violations=("a", "b"), tests=pair(0.5, 0.5)))
    assert (record.decision, record.detail, record.test) == ("violated", "a; b", None)
    (record,) = records(Outcome())
    assert (record.decision, record.alpha) == ("pass", None)


DECISIONS: dict[Decision, Verdict] = {
    "violated": "violated",
    "undecided": "inconclusive",
    "untested": "preserved",
    "pass": "preserved",
}


@pytest.mark.parametrize("decisions", [*itertools.permutations(DECISIONS, 2)])
def test_the_worst_decision_gives_the_verdict(decisions: tuple[Decision, Decision]) -> None:
    made = [
        TestRecord(
            property=f"p.{decision}",
            claim="",
            evidence="sampled",
            decision=decision,
            detail=f"why {decision}",
        )
        for decision in decisions
    ]
    verdict, reason = judge.case_verdict(made)
    assert verdict == DECISIONS[min(decisions, key=list(DECISIONS).index)]
    expected = {
        "violated": "p.violated",
        "inconclusive": "why undecided",
        "preserved": "",
    }
    assert reason == expected[verdict]


def test_nothing_checked_is_nothing_shown() -> None:
    assert judge.case_verdict([]) == ("inconclusive", "nothing was checked")
