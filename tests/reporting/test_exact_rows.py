"""Exact evidence on a terminal: dozens of cases, a few rows."""

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from specverify.certification.certificate import (
    CaseRecord,
    Certificate,
    ExactRecord,
    SequenceRecord,
    TestRecord,
)
from specverify.certification.verdict import listed
from specverify.reporting.terminal import print_certificate

SAMPLE = Certificate.load(Path(__file__).parents[1] / "certification" / "sample_certificate.json")


def exact(name: str, decision: Any = "pass", distance: float = 1e-16, **fields: Any) -> CaseRecord:
    numbers = ExactRecord(
        total_variation=distance,
        tolerance=1e-12,
        largest_ratio=2.0,
        outside_support=0.0,
        crashing=0.0,
        method="forcing",
        runs=9,
        worst=(SequenceRecord(tokens=(2, 0, 1), observed=0.25, expected=0.125),),
    )
    test = TestRecord(
        property="joint.round",
        claim="One round is right.",
        evidence="exact",
        decision=decision,
        detail="one round is off" if decision == "violated" else "",
        exact=numbers,
    )
    verdict = "violated" if decision == "violated" else "preserved"
    return CaseRecord(**{"id": f"exact/{name}", "verdict": verdict, "tests": (test,)} | fields)


def printed(*cases: CaseRecord, **changes: Any) -> str:
    console = Console(file=io.StringIO(), width=140)
    print_certificate(SAMPLE.model_copy(update={"cases": cases, **changes}), console)
    file = console.file
    assert isinstance(file, io.StringIO)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def row(text: str, start: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.startswith(start))


def test_cases_that_hold_share_a_row_with_the_largest_distance() -> None:
    text = printed(exact("a", distance=1e-16), exact("b", distance=3e-14), exact("c"))
    assert row(text, "3 exact cases")[3:] == ["joint.round", "exact", "forcing", "3.0e-14", "pass"]
    assert "exact/a" not in text
    assert row(printed(exact("a")), "exact/a")[-2:] == ["1.0e-16", "pass"]


def test_a_violation_is_explained_by_its_first_case() -> None:
    wrong = exact("b", "violated", 0.25), exact("c", "violated", 0.5)
    text = printed(exact("a"), *wrong, verdict="violated")
    assert row(text, "2 exact cases")[-2:] == ["5.0e-01", "violated"]
    assert text.count("VIOLATED joint.round in") == 1
    assert "VIOLATED joint.round in exact/b\n  One round is right.\n  However, one round" in text
    assert "[2, 0, 1]" in text
    assert row(text, "  [2, 0, 1]") == ["[2,", "0,", "1]", "0.25", "0.125"]
    assert "and in 1 more exact case\n" in text


def test_errors_and_findings_name_the_first_case() -> None:
    failed = {"verdict": "error", "reason": "with probability 0.1 it raised"}
    text = printed(exact("a", **failed), exact("b", **failed), exact("c", findings=("odd",)))
    assert "ERROR in exact/a and 1 more exact case\n  with probability 0.1" in text
    assert row(text, "2 exact cases")[-1] == "error"
    assert "finding in exact/c: odd" in text


def test_findings_without_a_case_are_told() -> None:
    assert "\nfinding: couples its randomness\n" in printed(findings=("couples its randomness",))


def test_the_header_counts_the_draft_tokens_of_samples() -> None:
    sampled = SAMPLE.cases[0].model_copy(update={"num_draft_tokens": 4})
    assert "\nK 4 ·" in printed(sampled, exact("a", num_draft_tokens=2))


def test_cases_in_a_sentence() -> None:
    assert listed(["plain", "greedy"]) == "plain, greedy"
    assert listed(["plain", "exact/a", "exact/b", "exact/c"]) == (
        "plain, exact/a and 2 more exact cases"
    )
