"""The summary in Markdown: what a pull request shows, and nothing that it could mistake."""

import re

import pytest

from specverify.certification.certificate import Certificate, ExpectationRecord
from specverify.reporting.markdown import markdown_summary
from specverify.reporting.overview import NO_PROOF
from tests.certified import OUTCOMES, certified

HOSTILE = "<script>alert('x')</script> | **bold** [a](http://x) `code` #1 @you ![i](y)"


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_it_says_the_verdict_what_it_rests_on_and_what_is_not_claimed(outcome: str) -> None:
    certificate = certified(outcome)
    text = markdown_summary(certificate)
    assert text.startswith(f"## specverify: mine is **{certificate.verdict}**\n") or (
        outcome == "lossy"
    )
    assert NO_PROOF in text
    assert certificate.digest() in text
    assert text == markdown_summary(certificate)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


def test_a_violation_comes_with_its_numbers() -> None:
    text = markdown_summary(certified("violated"), file="mine.json")
    assert "### joint.round fails in exact/random-V4-K3-float64" in text
    assert "Let p = (1/2, 1/2), q = (3/4, 1/4), K = 1" in text
    assert "| 0 0 | 0.25 | 0.375 |" in text
    assert "Looks like: always-accept" in text
    command = "specverify replay mine.json exact/random-V4-K3-float64 --counterexample"
    assert f"Run it again: `{command}`" in text
    assert "| joint.round | **violated** | exact/random-V4-K3-float64 and 19 more" in text
    assert "<details><summary>4 properties pass</summary>\n\n|" in text


def test_tables_have_as_many_cells_in_every_row() -> None:
    for block in markdown_summary(certified("violated")).split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) <= 1, block


def test_an_error_is_quoted() -> None:
    text = markdown_summary(certified("error"))
    assert "### Error in plain\n\n```\nsubject 'mine' raised RuntimeError: out of cheese" in text


def hostile() -> Certificate:
    certificate = certified("violated")
    case = certificate.cases[0]
    test = case.tests[0].model_copy(update={"detail": HOSTILE, "decision": "undecided"})
    return certificate.model_copy(
        update={
            "subject": certificate.subject.model_copy(update={"name": f"mine\n{HOSTILE}"}),
            "reason": HOSTILE,
            "cases": (case.model_copy(update={"tests": (test,)}),),
            "findings": (HOSTILE,),
        }
    )


def test_names_and_details_are_text() -> None:
    text = markdown_summary(hostile())
    assert "<script" not in text
    assert r"\*\*bold\*\* \[a\](http://x) \`code\` \#1 \@you \!\[i\](y)" in text
    first, *_ = text.splitlines()
    assert first.startswith("## specverify: mine &lt;script&gt;")
    test_rows = [line for line in text.splitlines() if line.startswith("| joint.each")]
    assert len(test_rows) == 1
    assert len(re.findall(r"(?<!\\)\|", test_rows[0])) == 5


def test_code_keeps_its_backticks() -> None:
    text = markdown_summary(certified("violated"), file="a`b``c.json")
    assert "``` specverify check-certificate a`b``c.json ```" in text


def test_expected_failures_are_named() -> None:
    entry = ExpectationRecord(property="joint.round", reason="issue 7", state="passes")
    text = markdown_summary(certified("preserved").model_copy(update={"expectations": (entry,)}))
    assert "- `joint.round`: passes; remove the entry (issue 7)" in text
