"""Chapter exact, on evidence made by hand: what is a pass, a finding, a violation."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from specverify.certification.exact_edges import EdgeCoins
from specverify.certification.exact_evidence import Comparison, ExactEvidence, RowsCompared
from specverify.certification.exact_rounds import RoundCase
from specverify.exact.compare_round import compare_round
from specverify.exact.distribution import JointDistribution
from specverify.exact.edge_coins import EdgeOutcome, EdgeSummary
from specverify.exact.enumerate import round_distribution
from specverify.exact.round import Round
from specverify.properties import exact
from specverify.subjects.protocols import Capabilities, Subject

ROUND = Round.random(3, 2, seed=4)
CASE = RoundCase("exact/round", ROUND)
RIGHT = round_distribution("token", ROUND)
DECLARED = Capabilities(coin_dtype="float64", algorithm="token")


def evidence(
    emitted: Mapping[tuple[int, ...], float] = RIGHT,
    *,
    crashes: Mapping[str, float] | None = None,
    declared: Capabilities = DECLARED,
    **fields: Any,
) -> ExactEvidence:
    joint = {name: fields.pop(name) for name in ("findings", "reuses") if name in fields}
    lines = fields.pop("global_draws", ())
    made = JointDistribution(emitted, "forcing", 9, crashes or {}, global_draws=lines, **joint)
    values: dict[str, Any] = {
        "subject": Subject("mine", "rule", len, declared),
        "case": CASE,
        "joint": made,
        "comparison": Comparison.of_round(compare_round(ROUND, emitted)),
        "tolerance": 1e-12,
        "round": ROUND,
    }
    return ExactEvidence(**values | fields)


def moved(amount: float) -> dict[tuple[int, ...], float]:
    """The right distribution with some mass on another tuple."""
    first, second = sorted(RIGHT)[-2:]
    return RIGHT | {first: RIGHT[first] + amount, second: RIGHT[second] - amount}


def without(amount: float) -> dict[tuple[int, ...], float]:
    last = max(RIGHT)
    return RIGHT | {last: RIGHT[last] - amount}


OUTSIDE = {(0, 0, 0): 2e-16, (1,): 1e-16}


class TestRound:
    def test_the_right_distribution_passes(self) -> None:
        outcome = exact.one_round(evidence(), 0.0)
        assert outcome.violations == ()
        assert outcome.details["exact"]["total_variation"] < 1e-12

    def test_any_deviation_above_the_tolerance_violates(self) -> None:
        (said,) = exact.one_round(evidence(moved(1e-9)), 0.0).violations
        assert "is 1e-09 in TV from the target, over V=3, K=2" in said
        assert exact.one_round(evidence(moved(1e-9), tolerance=1e-6), 0.0).violations == ()

    def test_what_crashed_may_have_been_right(self) -> None:
        crashed = evidence(without(1e-3), crashes={"E": 1e-3})
        assert exact.one_round(crashed, 0.0).violations == ()
        short = moved(1e-2)
        last = max(RIGHT)
        short[last] -= 1e-3
        assert exact.one_round(evidence(short, crashes={"E": 1e-3}), 0.0).violations


class TestRun:
    def test_runs_are_judged_by_their_distance(self) -> None:
        wrong = Comparison.of_runs({(0,): 0.75, (1,): 0.25}, {(0,): 0.5, (1,): 0.5}, 0.0)
        (said,) = exact.whole_run(evidence(comparison=wrong), 0.0).violations
        assert "a whole run is 0.25 in TV" in said
        right = Comparison.of_runs({(0,): 0.5, (1,): 0.5}, {(0,): 0.5, (1,): 0.5}, 0.0)
        assert exact.whole_run(evidence(comparison=right), 0.0).violations == ()


class TestTransformedRound:
    def test_judged_by_distance(self) -> None:
        assert exact.transformed_round(evidence(), 0.0).violations == ()
        (said,) = exact.transformed_round(evidence(moved(1e-3)), 0.0).violations
        assert "is 0.001 in TV" in said

    def test_rows_that_had_to_be_followed_alone_are_told(self) -> None:
        made = evidence()
        joint = replace(made.joint, alone="rows differ", rows_depend=True)
        (finding,) = exact.transformed_round(replace(made, joint=joint), 0.0).findings
        assert finding == "is followed only with one row a call: rows differ"
        looped = replace(made.joint, alone="rows draw one after another")
        assert exact.transformed_round(replace(made, joint=looped), 0.0).findings == ()


class TestEdgeCoins:
    @staticmethod
    def entry(
        kind: Any, mass: float, coin: str = "u = 0", detail: str = "emits 1, wrongly"
    ) -> EdgeSummary:
        line = "" if coin in ("inside", "any") else "a.py:3: rand"
        element = None if coin in ("inside", "any") else 2
        example = EdgeOutcome(kind, (0, 1), coin, element, 0.0, mass, (1,), detail, line)
        return EdgeSummary(kind, coin, element, line, 1, mass, example)

    def judged(self, *entries: EdgeSummary) -> tuple[tuple[str, ...], tuple[str, ...]]:
        outcome = exact.edge_coins(evidence(edges=EdgeCoins(entries)), 0.0)
        assert outcome.asked
        return outcome.violations, outcome.findings

    def test_right_coins_pass(self) -> None:
        assert self.judged(self.entry("right", 0.5)) == ((), ())

    def test_a_finding_has_its_mass_and_line(self) -> None:
        violations, (said,) = self.judged(self.entry("finding", 3e-17))
        assert violations == ()
        assert said == (
            "with u = 0 as coin 2, with probability 3e-17: emits 1, wrongly, after the draft "
            "tokens [0, 1], drawn at a.py:3: rand"
        )

    def test_what_is_wrong_inside_violates_and_its_ends_are_no_news(self) -> None:
        inside = self.entry("violation", 0.25, "inside")
        (said,), findings = self.judged(inside, self.entry("finding", 3e-17))
        assert said.startswith("with its coins inside their intervals, with probability 0.25: ")
        assert findings == ()

    def test_a_crash_counts_by_its_mass(self) -> None:
        error = "SubjectError: subject 'mine' raised IndexError: 4\n  a.py:9 in rule"
        violations, (said,) = self.judged(self.entry("crash", 1e-16, detail=error))
        assert violations == ()
        assert ": subject 'mine' raised IndexError: 4, after" in said
        (said,), findings = self.judged(self.entry("crash", 1e-9, detail=error))
        assert "raised IndexError: 4" in said
        assert findings == ()

    def test_paths_that_raise_for_any_coin_are_told_elsewhere(self) -> None:
        assert self.judged(self.entry("crash", 0.25, "any")) == ((), ())

    def test_where_nothing_was_run_nothing_is_said(self) -> None:
        assert not exact.edge_coins(evidence(), 0.0).asked
        unknown = evidence(edges=EdgeCoins(unknown="why"))
        assert exact.edge_coins(unknown, 0.0).not_applicable == "why"


class TestSupport:
    @staticmethod
    def outside(masses: dict[tuple[int, ...], float], **fields: Any) -> Any:
        compared = replace(evidence().comparison, outside_support=masses)
        return exact.support(evidence(comparison=compared, **fields), 0.0)

    def test_nothing_outside_is_a_pass(self) -> None:
        outcome = exact.support(evidence(), 0.0)
        assert (outcome.violations, outcome.findings) == ((), ())

    def test_mass_within_the_tolerance_is_a_finding_with_its_cause(self) -> None:
        outcome = self.outside(OUTSIDE)
        assert outcome.violations == ()
        (finding,) = outcome.findings
        assert "with probability 3e-16, such as [0, 0, 0] with 2e-16" in finding
        assert "where a coin is exactly 0" in finding

    def test_more_than_coins_of_zero_explain_has_another_cause(self) -> None:
        (finding,) = self.outside({(0,): 1e-13}).findings
        assert "coin" not in finding

    def test_mass_above_the_tolerance_violates(self) -> None:
        outcome = self.outside({(0,): 1e-9})
        assert outcome.findings == ()
        (said,) = outcome.violations
        assert "1e-09" in said


class TestAcceptance:
    def test_other_lengths_violate_though_the_output_is_right(self) -> None:
        never = {(x,): float(m) for x, m in enumerate(ROUND.p(0)[0])}
        assert exact.one_round(evidence(never), 0.0).violations == ()
        violations = exact.acceptance(evidence(never), 0.0).violations
        assert len(violations) == 2
        assert "at least 1 draft tokens are accepted with probability 0," in violations[0]

    @pytest.mark.parametrize("algorithm", ["token", "block", "match"])
    def test_each_algorithm_is_held_against_its_own(self, algorithm: str) -> None:
        declared = Capabilities(coin_dtype="float64", algorithm=algorithm)
        emitted = round_distribution(algorithm, ROUND)
        assert exact.acceptance(evidence(emitted, declared=declared), 0.0).violations == ()
        if algorithm != "token":
            assert exact.acceptance(evidence(emitted), 0.0).violations

    def test_crashes_leave_lengths_unknown(self) -> None:
        outcome = exact.acceptance(evidence(without(1e-3), crashes={"E": 1e-3}), 0.0)
        assert outcome.not_applicable is not None

    def test_an_unknown_algorithm_is_not_asked(self) -> None:
        subject = Subject("mine", "rule", len, Capabilities(algorithm="typical"))
        assert exact._declares_acceptance(subject) is not None


class TestRandomness:
    def findings(self, **fields: Any) -> tuple[str, ...]:
        outcome = exact.randomness(evidence(**fields), 0.0)
        assert outcome.violations == ()
        return outcome.findings

    def test_nothing_odd(self) -> None:
        rows = RowsCompared(((0, 0), (0, 1)), 1e-17, 1e-17)
        assert self.findings(rows=rows) == ()

    def test_what_steering_found_is_passed_on(self) -> None:
        assert self.findings(findings=("draws twice",)) == ("draws twice",)

    def test_a_coin_used_twice_is_a_diagnosis_of_what_is_wrong(self) -> None:
        assert self.findings(reuses=("twice",)) == ()
        assert self.findings(reuses=("twice",), emitted=moved(1e-3)) == ("twice",)

    def test_an_ignored_generator(self) -> None:
        (finding,) = self.findings(global_draws=("a.py:3: rand",))
        assert finding.endswith("though it is handed one: a.py:3: rand")
        without = replace(DECLARED, generator=False)
        assert self.findings(global_draws=("a.py:3: rand",), declared=without) == ()

    def test_rows_that_share(self) -> None:
        (finding,) = self.findings(rows=RowsCompared(((0, 0), (0, 1)), 0.25, 0.0))
        assert "[0, 0] and [0, 1] emit in one call is 0.25 in TV from independent" in finding
        (finding,) = self.findings(rows_share="noise at a.py:1")
        assert finding == "rows of a batch share randomness: noise at a.py:1"

    def test_a_row_that_depends_on_its_batch_violates(self) -> None:
        rows = RowsCompared(((0, 0), (0, 1)), 0.0, 0.125)
        (said,) = exact.randomness(evidence(rows=rows), 0.0).violations
        assert "off by 0.125 in TV" in said
