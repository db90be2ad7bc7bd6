"""Conformance in a test file: what raises, what passes, one item for each property."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import specverify
from specverify import check_plan
from specverify.certification import exact_run
from specverify.certification.asked import asked_of
from specverify.certification.case_records import CaseRecord, TestRecord
from specverify.certification.certificate import Certificate
from specverify.certification.exact_rounds import exact_rounds
from specverify.check_plan import request
from specverify.errors import UsageError
from specverify.fixtures.mutants.rule_calls import RULE_MUTANTS
from specverify.fixtures.mutants.rule_calls.catalogue import RuleCall
from specverify.fixtures.parts.rules import TokenRule
from specverify.property_checks import property_checks
from specverify.session import Session, close_session, open_session
from specverify.subjects.protocols import Capabilities, Subject
from specverify.transforms import REFERENCE

JOINT: dict[str, Any] = {"only": ["joint.*"], "tokens": 1_000}
SAMPLE, _ = Certificate.read(Path(__file__).parent / "certification" / "sample_certificate.json")
WRONG = {mutant.id: mutant.subject for mutant in RULE_MUTANTS}["residual-reversed"]
RIGHT = Subject(
    "right", "rule", RuleCall(TokenRule()), Capabilities(algorithm="token", coin_dtype="float64")
)
TOP_K = Subject("top-k", "transform", REFERENCE["top_k"], reference="top_k")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [case for case in exact_rounds("token") if "random-V3-K2" in case.id]
    monkeypatch.setattr(exact_run, "exact_rounds", lambda algorithm: chosen)


def test_a_wrong_rule_raises_with_its_report() -> None:
    with pytest.raises(specverify.ConformanceError, match=r"VIOLATED joint\.round") as caught:
        specverify.check(WRONG, **JOINT, shrink=False)
    assert isinstance(caught.value, AssertionError)
    assert caught.value.certificate.verdict == "violated"


def test_a_right_one_is_returned_with_what_was_seen() -> None:
    certificate = specverify.check(RIGHT, **JOINT)
    assert certificate.verdict == "inconclusive"
    with pytest.raises(specverify.ConformanceError, match="INCONCLUSIVE"):
        specverify.check(RIGHT, **JOINT, inconclusive="fail")
    made = specverify.check(TOP_K, only=["transforms.batch"], inconclusive="fail")
    assert made.verdict == "preserved"


def test_each_property_is_checked_by_itself() -> None:
    checks = {check.id: check for check in property_checks(WRONG, tokens=1_000, shrink=False)}
    with pytest.raises(specverify.ConformanceError, match=r"VIOLATED joint\.round"):
        checks["joint.round"]()
    plan = checks["joint.round"].plan
    assert set(plan.done) == {"exact"}
    assert checks["acceptance.closed_form"]().verdict == "preserved"
    assert set(plan.done) == {"exact"}
    with pytest.raises(pytest.skip.Exception, match="records no target_probs"):
        checks["joint.own_distributions"]()


def test_all_items_share_one_budget() -> None:
    checks = {check.id: check for check in property_checks(RIGHT, tokens=1_000)}
    alone = [
        checks[id]() for id in ("joint.every_token", "joint.round", "invariance.draft_of_rule")
    ]
    sampled = sum(not case.small for case in alone[0].cases)
    together = asked_of(RIGHT, ("*",), sample=True, exact=True).budget(1e-6 / 2, sampled)
    assert together.tests > sampled > 1
    assert {certificate.tests for certificate in alone} == {together.tests}
    shares = {test.alpha for made in alone for case in made.cases for test in case.tests}
    assert shares == {None, together.share}


def test_options_of_the_session_are_behind_those_of_the_test() -> None:
    session = Session({"settings_texts": ("plain",), "seed": 3, "pair": "toy"})
    open_session(session)
    try:
        loaded, pair, options = request(RIGHT, None, {"seed": 4})
        assert set(options["settings"]) == {"plain"}
        assert (loaded, options["seed"]) == (RIGHT, 4)
        assert not isinstance(pair, str)
        assert request(RIGHT, None, {"settings": None})[2] == {"settings": None, "seed": 3}
        assert request(TOP_K, None, {})[1:] == ("toy", {"seed": 3})
    finally:
        close_session(session)
    assert request(RIGHT, None, {"seed": 4})[1:] == ("toy", {"seed": 4})


def test_a_search_of_the_session_is_refused() -> None:
    """A session that searched would not be the same twice; a test may still ask for one itself."""
    session = Session({"profile": "fuzz"})
    open_session(session)
    try:
        with pytest.raises(UsageError, match="--specverify-profile quick"):
            request(TOP_K, None, {})
        assert request(TOP_K, None, {"profile": "quick"})[2] == {"profile": "quick"}
    finally:
        close_session(session)


@pytest.mark.parametrize(("log_e", "fails"), [(14.8, False), (15.6, True)])
def test_all_cases_together_are_judged_at_half_the_budget(
    monkeypatch: pytest.MonkeyPatch, log_e: float, fails: bool
) -> None:
    """Single tests have ln(2 / alpha) = 14.5 at least; the product has half the weight, ln 2."""
    check = {c.id: c for c in property_checks(RIGHT)}["joint.every_token"]
    test = TestRecord(
        property=check.id,
        claim="c",
        evidence="sampled",
        decision="pass",
        statistic=log_e,
        alpha=1e-12,
    )
    case = CaseRecord(id="plain", verdict="preserved", tests=(test,))
    made = SAMPLE.model_copy(update={"cases": (case,), "tests": 10**9, "alpha": 1e-6})
    monkeypatch.setattr(check_plan, "certify", lambda *_, **__: made)
    if not fails:
        assert check().verdict == "preserved"
        return
    with pytest.raises(specverify.ConformanceError, match="all together do"):
        check()


def test_a_subject_that_fails_raises_in_every_item() -> None:
    def crash(*_: object) -> None:
        raise ValueError("no")

    failing = replace(RIGHT, call=crash)
    checks = {check.id: check for check in property_checks(failing, tokens=1_000)}
    for id in ("joint.round", "stopping.run_length", "greedy.rule"):
        with pytest.raises(specverify.ConformanceError, match="raised ValueError: no"):
            checks[id]()


USER = """
import specverify
from specverify.fixtures.mutants.transforms import MUTANTS

@specverify.parametrize(
    MUTANTS[0].subject, only=["transforms.equals_reference", "transforms.batch"]
)
def test_conformance(check_property):
    check_property()
"""


def test_parametrize_makes_an_item_for_each_property(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(USER)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "test_conformance[transforms.equals_reference]" in done.stdout
    assert "violated in top_p[0.25]" in done.stdout
    assert "Traceback" not in done.stdout
    assert "check_property()" not in done.stdout
    assert "test_conformance[transforms.batch]" not in done.stdout  # passes
