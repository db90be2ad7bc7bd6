"""A search as a part of a certification: budget, verdict, digest, replay, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from specverify import cli
from specverify.certification.certificate import CaseRecord, Certificate, TestRecord
from specverify.certification.fuzzing.asked import Searching, fuzzing_of
from specverify.certification.fuzzing.limits import CONFIRMATION, Fuzzing, share_of
from specverify.certification.rechecked.recheck import recheck
from specverify.certification.registry import properties_of
from specverify.certification.replay import replay_case
from specverify.certification.run import certify
from specverify.certification.together import together
from specverify.errors import UsageError
from specverify.reporting.failure import replay_command
from specverify.reporting.search_lines import searched
from specverify.settings import SamplingSettings
from specverify.statistics.budget import Budget
from specverify.subjects.protocols import Subject
from specverify.subjects.reference import TOKEN
from specverify.verification.lossy import lenience
from tests.certification.fuzzing.searched import (
    of_certain,
    rule,
    sampled_seven,
    unsteerable,
    unsteerable_wrong,
)

PLAIN = {"plain": SamplingSettings()}


def certified(subject: Subject, **options: Any) -> Certificate:
    """By a search alone."""
    options = {"fuzz_inputs": 120, "sample": False, "exact": False} | options
    return certify(subject, settings=PLAIN, profile="fuzz", **options)


class TestCertificates:
    def test_a_violation_with_its_counterexample(self, tmp_path: Path) -> None:
        certificate = certified(rule(sampled_seven))
        assert certificate.verdict == "violated"
        (case,) = certificate.cases
        assert case.counterexample is not None
        assert case.search is not None
        assert case.search.ended == "violation"
        loaded = Certificate.load(certificate.save(tmp_path / "certificate.json"))
        assert loaded == certificate
        again = replay_case(loaded, case.id, rule(sampled_seven))
        assert again.differences == ()
        assert again.now.verdict == "violated"
        mended = replay_case(loaded, case.id, rule(unsteerable))
        assert mended.now.verdict == "preserved"
        assert replay_command(case, Path("c.json")) == "specverify replay c.json fuzz/joint.round"

    def test_the_same_inputs_give_the_same_digest(self) -> None:
        digests = {certified(rule(unsteerable), fuzz_inputs=30).digest() for _ in range(2)}
        assert len(digests) == 1

    def test_nothing_found(self) -> None:
        certificate = certified(rule(unsteerable), fuzz_inputs=20)
        assert certificate.verdict == "preserved"
        (case,) = certificate.cases
        assert case.search is not None
        assert searched(case.search).startswith("20 inputs tried (")
        assert searched(case.search).endswith("the number asked for")

    def test_a_crash_is_an_error(self) -> None:
        certificate = certified(rule(of_certain), fuzz_inputs=24)
        assert certificate.verdict == "error"
        assert [case.id for case in certificate.cases] == [
            "fuzz/joint.round",
            "fuzz/joint.round/crash",
        ]

    def test_an_interrupt_is_one_of_the_run(self) -> None:
        def interrupted(tokens: Tensor, *_: object) -> Tensor:
            raise KeyboardInterrupt

        certificate = certified(rule(interrupted))
        assert certificate.interrupted
        assert certificate.verdict == "inconclusive"

    def test_what_the_fixed_cases_show_is_not_searched_for(self) -> None:
        asked = Searching.of(rule(unsteerable_wrong), Fuzzing(inputs=9), properties_of("rule"))
        assert asked is not None
        shown = TestRecord(property="joint.round", claim="", evidence="exact", decision="violated")
        case = CaseRecord(id="exact/ties-float64", verdict="violated", tests=(shown,))
        assert asked.run([case], 0, 60.0, lambda event: None, explain=True) == ([], False)
        ((id, reason),) = asked.left_out
        assert id == "fuzz/joint.round"
        assert reason == "joint.round is violated in exact/ties-float64: mend that, then search"


class TestBudget:
    def test_half_for_the_search(self) -> None:
        certificate = certified(rule(unsteerable_wrong))
        (case,) = certificate.cases
        (test,) = case.tests
        number = case.counters[CONFIRMATION]
        assert case.search is not None
        assert isinstance(number, int)
        assert case.search.alpha == certificate.alpha / 4
        assert test.alpha == share_of(certificate.alpha / 4, number)
        # What was chosen among many is no e-value of all cases together.
        assert certificate.log_e is None
        assert together(certificate.cases, certificate.tests) is None

    def test_shares_add_up(self) -> None:
        asked = Searching.of(rule(unsteerable), Fuzzing(), properties_of("rule"))
        assert asked is not None
        budget = Budget(5e-7, 46)
        shared = asked.shared(budget)
        assert shared.share * budget.tests + asked.alpha == pytest.approx(budget.alpha)

    def test_the_numbers_are_consistent(self) -> None:
        for subject in (rule(unsteerable_wrong), rule(unsteerable), rule(of_certain)):
            found = recheck(certified(subject, fuzz_inputs=24))
            assert found.disagreements == ()


class TestAsked:
    def test_limits_without_a_search(self) -> None:
        with pytest.raises(UsageError, match="fuzz_time: only profile 'fuzz' searches"):
            certify(TOKEN, fuzz_time=3.0)
        with pytest.raises(UsageError, match="database: only profile"):
            fuzzing_of("quick", None, None, "found")

    def test_a_search_in_processes_of_its_own(self) -> None:
        with pytest.raises(UsageError, match="leave out isolate"):
            fuzzing_of("fuzz", None, None, None, isolate=True)

    def test_what_cannot_be_searched_is_listed(self) -> None:
        lossy = rule(unsteerable, lossy=lenience(0.5))
        asked = Searching.of(lossy, Fuzzing(), properties_of("rule"))
        assert asked is not None
        assert asked.left_out[0][0] == "fuzz/joint.round"
        assert asked.run((), 0, 60.0, lambda event: None, explain=True) == ([], False)

    def test_only_other_properties(self) -> None:
        others = [p for p in properties_of("rule") if p.id != "joint.round"]
        assert Searching.of(rule(unsteerable), Fuzzing(), others) is None

    def test_the_command_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["certify", "reference", "--fuzz-inputs", "3"]) == 4
        assert "only profile 'fuzz' searches" in capsys.readouterr().err
