"""From what a property found on a case to records and a verdict."""

from collections.abc import Sequence
from typing import Any

from specverify.certification.certificate import (
    CellRecord,
    Decision,
    Evidence,
    ExactRecord,
    TestRecord,
)
from specverify.certification.registry import Outcome, Property
from specverify.certification.verdict import Verdict
from specverify.statistics.budget import Budget
from specverify.statistics.result import TestResult


def test_records(
    property: Property, outcome: Outcome, budget: Budget, evidence: Evidence
) -> list[TestRecord]:
    """One record for each test of the outcome, or a single one where no statistics decide.

    A comparison that reports both chi-squared and G is rejected when both reject: in the far tail
    chi-squared alone exceeds its nominal rate several times over, even with 25 expected counts a
    cell, while G stays near it (see `statistics.goodness`). Each still takes its share of the
    budget. A comparison with no two cells of 25 expected counts tests nothing, and says so.
    """
    computed = outcome.details.get("exact")
    common: dict[str, Any] = {
        "property": property.id,
        "claim": property.claim,
        "evidence": evidence,
        "worst_cells": tuple(CellRecord(**cell) for cell in outcome.details.get("worst", ())),
        "exact": None if computed is None else ExactRecord.model_validate(computed),
    }
    if outcome.violations:
        return [TestRecord(**common, decision="violated", detail="; ".join(outcome.violations))]
    if not outcome.tests:
        return [TestRecord(**common, decision="pass")]
    decision: Decision = "undecided" if outcome.missing else "pass"
    if all(budget.rejects(test.p_value) for test in outcome.tests):
        decision = "violated"
    elif decision == "pass" and not outcome.certain and _compared_nothing(outcome.tests[0]):
        decision = "untested"
    return [
        TestRecord(
            **common,
            decision=decision,
            alpha=budget.share,
            detail=(outcome.missing or "") if decision == "undecided" else "",
            **_numbers(test),
        )
        for test in outcome.tests
    ]


def case_verdict(records: Sequence[TestRecord]) -> tuple[Verdict, str]:
    """Verdict of a case with its reason, from the records of all its properties."""
    violated = sorted({record.property for record in records if record.decision == "violated"})
    if violated:
        return "violated", ", ".join(violated)
    undecided = [record for record in records if record.decision == "undecided"]
    if undecided:
        return "inconclusive", undecided[0].detail
    if not records:
        return "inconclusive", "nothing was checked"
    return "preserved", ""


def _compared_nothing(test: TestResult) -> bool:
    return test.name != "support" and not test.df


def _numbers(test: TestResult) -> dict[str, Any]:
    return {
        "test": test.name,
        "statistic": test.statistic,
        "df": test.df,
        "p_value": test.p_value,
        "n": test.n,
        "cells": test.cells,
        "strata": test.strata,
        "impossible": test.impossible,
    }
