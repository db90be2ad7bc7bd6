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

BOUNDARIES = (
    "the tokens that end rounds are not distributed as declared, if rounds end where the subject "
    "says; nothing is wrong with the tokens by themselves, so its report may be: check accepted "
    "and drafted (they do not count the correction or bonus token), or leave them out"
)


def test_records(
    property: Property, outcome: Outcome, budget: Budget, evidence: Evidence
) -> list[TestRecord]:
    """One record for each test of the outcome, or a single one where no statistics decide.

    Tests of the outcome decide, each at its share of the budget; those that it only reports stand
    beside them.
    """
    computed, detectable = outcome.details.get("exact"), outcome.detectable
    common: dict[str, Any] = {
        "property": property.id,
        "claim": property.claim,
        "evidence": evidence,
        "worst_cells": tuple(CellRecord(**cell) for cell in outcome.details.get("worst", ())),
        "exact": None if computed is None else ExactRecord.model_validate(computed),
    }
    reported = [
        TestRecord(**common, decision="reported", **_numbers(test)) for test in outcome.reported
    ]
    if outcome.violations:
        detail = "; ".join(outcome.violations)
        return [TestRecord(**common, decision="violated", detail=detail), *reported]
    if not outcome.tests:
        return [TestRecord(**common, decision="pass"), *reported]
    decided = []
    for test in outcome.tests:
        decision: Decision = "undecided" if outcome.missing else "pass"
        if budget.rejects(test.p_value):
            decision = "suspect" if outcome.boundaries else "violated"
        decided.append(
            TestRecord(
                **common,
                decision=decision,
                alpha=budget.share,
                boundaries=outcome.boundaries,
                detail=_detail(decision, outcome),
                detectable=None if detectable is None else detectable.value,
                detectable_what="" if detectable is None else detectable.what,
                components=outcome.details.get("components", {}),
                **_numbers(test),
            )
        )
    return decided + reported


def corroborated(records: Sequence[TestRecord]) -> list[TestRecord]:
    """Suspicions become violations where something else is violated: the tokens are wrong too."""
    if not any(record.decision == "violated" for record in records):
        return list(records)
    return [
        record.model_copy(update={"decision": "violated", "detail": ""})
        if record.decision == "suspect"
        else record
        for record in records
    ]


def case_verdict(records: Sequence[TestRecord]) -> tuple[Verdict, str]:
    """Verdict of a case with its reason, from the records of all its properties."""
    violated = sorted({record.property for record in records if record.decision == "violated"})
    if violated:
        return "violated", ", ".join(violated)
    for decision in ("suspect", "undecided"):
        found = [record for record in records if record.decision == decision]
        if found:
            return "inconclusive", found[0].detail
    if not records:
        return "inconclusive", "nothing was checked"
    return "preserved", ""


def _detail(decision: Decision, outcome: Outcome) -> str:
    if decision == "suspect":
        return BOUNDARIES
    return (outcome.missing or "") if decision == "undecided" else ""


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
