"""What a person reads: header, table, explanations, verdict, progress."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specverify.certification.certificate import DISCLAIMER, Certificate, NotApplicable
from specverify.certification.progress import ProgressEvent
from specverify.reporting.terminal import print_certificate, progress_bar

SAMPLE = Certificate.load(Path(__file__).parents[1] / "certification" / "sample_certificate.json")
GOOD, BAD = SAMPLE.cases


def printed(**changes: Any) -> str:
    console = Console(file=io.StringIO(), width=140)
    print_certificate(SAMPLE.model_copy(update=changes), console)
    file = console.file
    assert isinstance(file, io.StringIO)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def test_a_violation_reads_like_this() -> None:
    assert printed() == (Path(__file__).parent / "violated.txt").read_text().rstrip("\n")


def test_the_header_says_what_was_run() -> None:
    case = GOOD.model_copy(update={"num_draft_tokens": 4, "tokens": 100})
    other = case.model_copy(update={"id": "greedy", "num_draft_tokens": 2})
    text = printed(cases=(case, other), prompts=((0, 1), (2,)))
    assert "\nK 2, 4 · 2 prompts · 200 tokens in 60 s\n" in text
    assert "half over 40 tests (ln E from 18.2), half together ·" in text
    text = printed(cases=(case,), prompts=((0, 1),), tests=1)
    assert "\nK 4 · 1 prompt · 100 tokens in" in text
    assert "half over 1 test (ln E from 14.5), half together ·" in text


def test_a_pass_states_its_bound_and_that_it_is_no_proof() -> None:
    text = printed(verdict="preserved", reason="nothing was rejected", cases=(GOOD,))
    assert "0.0123" in text
    assert " ".join(text.split()).endswith(f"PRESERVED nothing was rejected {DISCLAIMER}")
    assert "VIOLATED" not in text


def test_two_tests_of_one_property_are_explained_together() -> None:
    test = BAD.tests[0]
    both = BAD.model_copy(
        update={"tests": (test, test.model_copy(update={"test": "support", "p_value": 1e-9}))}
    )
    text = printed(cases=(both,))
    assert text.count("VIOLATED joint.stopped_run in history") == 1
    assert text.count("worst cells") == 1
    assert "probability 3.1e-14 at most" in text
    assert "support: the odds against the claim are e^31.1 to 1 after 48,000 observations" in text
    assert "1e-09 at most" in text


def test_what_gained_most_is_named() -> None:
    components = {"leak to q, 0.01": 31.0, "bins in p order": 12.0}
    test = BAD.tests[0].model_copy(update={"components": components})
    text = printed(cases=(BAD.model_copy(update={"tests": (test,)}),))
    assert "The bet that gained most (90% of it): leak to q, 0.01." in text


def test_bounds_stand_under_their_right_names() -> None:
    text = printed(cases=(GOOD,))
    words = " ".join(text.split())
    assert "plain total variation of the first token at most 0.012 0.02 48,000" in words
    assert "leak rate d, within (1 - d) p + d q at most 0.011 288,000" in words
    assert "total variation of the first token (joint.first_token) seen from 0.0071" in words
    assert "bounds reached after 48,000 runs; 48,000 more were planned" in text
    assert "all cases together: ln E 26.1, which rejects from 13.8" in text


def test_a_contradiction_without_statistics_is_quoted() -> None:
    test = BAD.tests[0]
    ends = test.model_copy(update={"test": None, "p_value": None, "detail": "3 runs end late"})
    text = printed(cases=(BAD.model_copy(update={"tests": (ends,)}),))
    assert "However, 3 runs end late" in text
    assert "the odds against" not in text


def test_what_it_would_take_is_said_once() -> None:
    thin = GOOD.model_copy(update={"verdict": "inconclusive", "missing": "about 90,000 tokens"})
    text = printed(verdict="inconclusive", reason="thin", cases=(thin, thin))
    assert text.count("What it would take: about 90,000 tokens") == 1


def test_an_error_shows_the_whole_message() -> None:
    crashed = GOOD.model_copy(
        update={"verdict": "error", "tests": (), "reason": "raised ValueError\n  a.py:3 in f"}
    )
    cases = (crashed, crashed.model_copy(update={"id": "greedy"}))
    text = printed(verdict="error", reason="plain: raised ValueError\n  a.py:3", cases=cases)
    assert "ERROR in plain, greedy\n  raised ValueError\n    a.py:3 in f\n" in text
    assert "\nERROR  in plain, greedy: see above\nFinding no" in text
    assert text.count("raised ValueError") == 1


def test_an_interrupted_run_says_so() -> None:
    text = printed(verdict="inconclusive", interrupted=True, cases=())
    assert "INCONCLUSIVE (interrupted" in text


def test_the_same_gap_in_every_case_is_listed_once() -> None:
    gap = NotApplicable(property="joint.bonus", reason="accepted is unknown")
    case = GOOD.model_copy(update={"not_applicable": (gap,)})
    assert printed(cases=(case, case)).count("not applicable: joint.bonus") == 1


def test_markup_in_names_is_text() -> None:
    subject = SAMPLE.subject.model_copy(update={"name": "[red]x[/red]"})
    case = GOOD.model_copy(update={"id": "top_p[0.5]", "findings": ("[bold]",)})
    text = printed(subject=subject, cases=(case,))
    for name in ("[red]x[/red]", "top_p[0.5]", "[bold]"):
        assert name in text


@pytest.mark.parametrize("terminal", [True, False])
def test_progress(terminal: bool) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=terminal)
    with progress_bar(console) as progress:
        for done in range(3):
            progress(ProgressEvent("top_p[0.5]", done, 2, "runs"))
        progress(ProgressEvent("greedy", 0, 0))
    file = console.file
    assert isinstance(file, io.StringIO)
    text = file.getvalue()
    if terminal:
        assert "top_p[0.5]" in text or "greedy" in text
    else:
        assert text == ""
