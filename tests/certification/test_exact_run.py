"""Exact cases in a certificate: verdicts, numbers, and what is said where they cannot be had."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from specverify.certification import exact_run
from specverify.certification.certificate import CaseRecord, Certificate
from specverify.certification.exact_rounds import exact_rounds
from specverify.certification.exact_run import coupled, exact_cases, refused, run_exact_case
from specverify.certification.exact_runs import LONGER
from specverify.certification.registry import properties_of
from specverify.certification.run import certify
from specverify.errors import CannotSteer, CoupledRandomness
from specverify.settings import SamplingSettings
from specverify.statistics.budget import Budget
from specverify.subjects.protocols import Capabilities, Subject
from specverify.verification.lossy import LossyContract
from tests.certification.written_rules import last, token_rule

PLAIN = {"plain": SamplingSettings()}
CASES = {case.id.removeprefix("exact/"): case for case in exact_rounds()}
ALL = [p for p in properties_of("rule") if p.evidence == "exact"]


def subject(call: Callable[..., Any], **capabilities: Any) -> Subject:
    declared = {"coin_dtype": "float64", "algorithm": "token"} | capabilities
    return Subject("mine", "rule", call, Capabilities(**declared))


def record(call: Callable[..., Any], case: str = "random-V3-K2-float64", **declared: Any) -> Any:
    return run_exact_case(subject(call, **declared), CASES[case], ALL, Budget(1e-6), 0, 60.0)


def biased(weights: Tensor, generator: Generator) -> Tensor:
    return last(weights + 0.01, generator)


def fragile(weights: Tensor, generator: Generator) -> Tensor:
    if bool((weights.sum(-1) < 0.3).any()):
        raise ArithmeticError("too small")
    return last(weights, generator)


def numpy_coins(ratio: Tensor, _: Generator) -> Tensor:
    return torch.from_numpy(np.random.default_rng().random(ratio.shape))


def test_a_right_rule() -> None:
    case = record(token_rule())
    assert isinstance(case, CaseRecord)
    assert case.verdict == "preserved"
    assert case.reason == f"exact: TV {case.tv_bound:.1e} over V=3, K=2"
    assert (case.tv_bound_alpha, case.num_draft_tokens, case.findings) == (0.0, 2, ())
    asked = {p.id: "pass" for p in ALL if p.id != "support.edge_coins"}
    assert {test.property: test.decision for test in case.tests} == asked
    assert case.not_applicable == ()
    assert {test.evidence for test in case.tests} == {"exact"}
    (numbers,) = [test.exact for test in case.tests if test.exact is not None]
    assert numbers.total_variation == case.tv_bound < 1e-12
    assert numbers.largest_ratio == pytest.approx(1)
    assert (numbers.method, numbers.crashing, numbers.outside_support) == ("forcing", 0, 0)


def test_edge_coins_are_judged_on_the_rounds_that_ask_for_them() -> None:
    case = record(token_rule(), "random-V3-K1-float64")
    assert {test.property: test.decision for test in case.tests} == {p.id: "pass" for p in ALL}
    assert case.findings == ()


def test_a_wrong_rule_shows_where() -> None:
    case = record(token_rule(last=biased))
    assert (case.verdict, case.reason) == ("violated", "joint.round")
    (test,) = [test for test in case.tests if test.decision == "violated"]
    assert f"{test.exact.total_variation:.6g} in TV from the target" in test.detail
    worst = test.exact.worst[0]
    assert len(worst.tokens) == 3
    assert worst.observed != worst.expected


def test_a_crash_is_an_error_with_its_mass() -> None:
    case = record(token_rule(last=fragile))
    assert case.verdict == "error"
    assert case.reason.startswith("with probability 0.")
    assert "subject 'mine' raised ArithmeticError: too small" in case.reason
    assert [entry.property for entry in case.not_applicable] == [
        "acceptance.block_at_least_token",
        "acceptance.closed_form",
    ]
    worse = record(token_rule(last=lambda w, g: biased(w, g) if w.sum() > 0.4 else fragile(w, g)))
    assert worse.verdict == "violated"
    assert "joint.round, randomness.own_draws; with probability" in worse.reason


def test_a_malformed_answer_is_an_error() -> None:
    case = record(lambda tokens, q, p, generator: tokens)
    assert case.verdict == "error"
    assert "padded right with -1" in case.reason


def test_what_cannot_be_steered_is_no_case() -> None:
    refusal = record(token_rule(numpy_coins))
    assert isinstance(refusal, CannotSteer)
    entries = list(refused({"exact/a": refusal, "exact/b": refusal, "exact/c": CannotSteer("no")}))
    assert entries == [
        ("exact/*", f"in exact/a and 1 more exact case: {refusal}"),
        ("exact/*", "in exact/c: no"),
    ]
    mistake = CoupledRandomness("twice")
    assert coupled({"exact/a": refusal, "exact/b": mistake, "exact/c": mistake}) == (
        "couples its randomness: twice",
    )


class TestCertificates:
    """Beside sampled evidence, on few rounds."""

    @pytest.fixture(autouse=True)
    def few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        some = [CASES[name] for name in ("random-V3-K2-float64", "ties-float32")]
        monkeypatch.setattr(exact_run, "exact_rounds", lambda algorithm: some)
        # What properties make for themselves has tests of its own.
        monkeypatch.setattr("specverify.certification.asked.probes_of", lambda properties: [])

    @staticmethod
    def certified(call: Callable[..., Any], pair: Any, **options: Any) -> Certificate:
        declared = options.pop("declared", {})
        made = subject(call, **declared)
        return certify(made, pair, settings=PLAIN, tokens=options.pop("tokens", 4_000), **options)

    def test_both_kinds_of_evidence_stand_side_by_side(self, pair, loose_bounds) -> None:
        certificate = self.certified(token_rule(), pair, tokens=640_000)
        assert [case.id for case in certificate.cases] == [
            "plain",
            "exact/random-V3-K2-float64",
            "exact/ties-float32",
        ]
        assert [case.small for case in certificate.cases] == [False, True, True]
        assert certificate.verdict == "preserved"
        assert certificate.reason.endswith(" in 2 exact cases")
        again = self.certified(token_rule(), pair, tokens=640_000)
        assert again.digest() == certificate.digest()

    def test_what_is_computed_takes_no_share_of_the_budget(self, pair) -> None:
        certificate = self.certified(token_rule(), pair)
        sampled = self.certified(token_rule(), pair, exact=False)
        assert certificate.tests == sampled.tests
        assert len(sampled.cases) == 1

    def test_a_deviation_that_no_sample_shows_is_violated(self, pair) -> None:
        def slightly(weights: Tensor, generator: Generator) -> Tensor:
            return last(weights + 1e-7, generator)

        certificate = self.certified(token_rule(last=slightly), pair)
        assert certificate.cases[0].verdict == "inconclusive"
        assert certificate.verdict == "violated"
        assert certificate.reason == "exact/random-V3-K2-float64: joint.round"

    def test_the_reason_counts_cases_that_agree(self, pair) -> None:
        certificate = self.certified(token_rule(last=biased), pair)
        wrong = "exact/random-V3-K2-float64 and 1 more exact case: joint.round"
        assert wrong in certificate.reason

    def test_sampled_evidence_decides_where_nothing_can_be_steered(
        self, pair, loose_bounds
    ) -> None:
        certificate = self.certified(token_rule(numpy_coins), pair, tokens=640_000)
        assert certificate.verdict == "preserved"
        assert [case.id for case in certificate.cases] == ["plain"]
        ((property, reason),) = [
            (entry.property, entry.reason)
            for entry in certificate.not_applicable
            if entry.property.startswith("exact")
        ]
        assert property == "exact/*"
        assert reason.startswith("in exact/random-V3-K2-float64 and 1 more exact case: ")

    def test_an_undeclared_algorithm_is_not_held_against_acceptance(self, pair) -> None:
        certificate = self.certified(token_rule(), pair, declared={"algorithm": None})
        assert "acceptance.closed_form" in {entry.property for entry in certificate.not_applicable}
        assert all(
            test.property != "acceptance.closed_form"
            for case in certificate.cases
            for test in case.tests
        )

    def test_progress_counts_cases(self, pair) -> None:
        events = []
        self.certified(token_rule(), pair, progress=events.append)
        assert [(e.done, e.total) for e in events if e.case == "exact"] == [(1, 2), (2, 2)]


def test_decoders_are_computed_under_the_presets_that_were_asked_for(decoder) -> None:
    found = [case.id for case in exact_cases(decoder(), ("plain", "own"))]
    assert found == ["exact/plain", LONGER]


def test_a_preset_of_the_users_own_making_has_no_exact_case(decoder, pair) -> None:
    own = {"plain": SamplingSettings(temperature=0.5), "other": SamplingSettings()}
    certificate = certify(decoder(), pair, settings=own, tokens=2_000, only=["joint.*"])
    assert [case.id for case in certificate.cases] == ["plain", "other"]


def test_a_distance_of_zero_is_a_distance() -> None:
    """Right, and not what it declares: the bound is its distance to the target, not the other."""
    contract = LossyContract("nothing accepted", lambda p, q: 0.0 * p, lambda p, q: p)
    declared = subject(token_rule(), lossy=contract, algorithm=None)
    asked = [p for p in ALL if p.lossy]
    case = run_exact_case(declared, CASES["equal-float64"], asked, Budget(1e-6), 0, 60.0)
    assert isinstance(case, CaseRecord)
    assert case.verdict == "violated"
    distances = {test.property: test.exact.total_variation for test in case.tests if test.exact}
    assert distances["joint.round"] > 0.1
    assert case.tv_bound == 0.0
