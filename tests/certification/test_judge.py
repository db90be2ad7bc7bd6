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
    ("p_value", "decision"), [(0.5, "pass"), (1.01e-7, "pass"), (1e-7, "violated")]
)
def test_a_test_rejects_at_its_share(p_value: float, decision: Decision) -> None:
    (made,) = records(Outcome(tests=(result("e-process", p_value),)))
    assert made.decision == decision
    assert made.alpha == BUDGET.share == pytest.approx(1e-7)


def test_what_is_only_reported_decides_nothing() -> None:
    made = records(Outcome(tests=(result("e-process", 0.5),), reported=pair(1e-30, 1e-30)))
    assert [record.decision for record in made] == ["pass", "reported", "reported"]
    assert [record.alpha for record in made] == [BUDGET.share, None, None]
    assert [record.test for record in made] == ["e-process", "chi-squared", "G"]


def test_an_alarm_that_rests_on_reported_boundaries_is_a_suspicion() -> None:
    (made,) = records(Outcome(tests=(result("e-process", 1e-9),), boundaries=True))
    assert made.decision == "suspect"
    assert judge.case_verdict([made]) == ("inconclusive", judge.BOUNDARIES)
    (calm,) = records(Outcome(tests=(result("e-process", 0.5),), boundaries=True))
    assert judge.corroborated([made, calm]) == [made, calm]


def test_it_is_a_violation_where_the_tokens_are_wrong_as_well() -> None:
    (suspect,) = records(Outcome(tests=(result("e-process", 1e-9),), boundaries=True))
    (wrong,) = records(Outcome(tests=(result("e-process", 1e-9),)))
    made = judge.corroborated([suspect, wrong])
    assert [record.decision for record in made] == ["violated", "violated"]
    assert made[0].detail == ""


def test_the_numbers_of_a_test_are_kept() -> None:
    outcome = Outcome(
        tests=pair(0.25, 0.5),
        details={"worst": [{"stratum": 1, "cell": 2, "observed": 3, "expected": 4.5}]},
    )
    first, _ = records(outcome)[:2]
    assert (first.statistic, first.df, first.p_value, first.n) == (12.5, 3, 0.25, 1000)
    assert (first.cells, first.strata, first.impossible) == (4, 1, 2)
    assert (first.property, first.claim, first.evidence) == (
        "some.property",
        "It holds.",
        "sampled",
    )
    assert first.worst_cells[0].expected == 4.5


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
    "suspect": "inconclusive",
    "undecided": "inconclusive",
    "reported": "preserved",
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
        "inconclusive": "why suspect" if "suspect" in decisions else "why undecided",
        "preserved": "",
    }
    assert reason == expected[verdict]


def test_nothing_checked_is_nothing_shown() -> None:
    assert judge.case_verdict([]) == ("inconclusive", "nothing was checked")
