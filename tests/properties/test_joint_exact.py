"""Chapter joint, computed, on evidence made by hand."""

from specverify.certification.exact_evidence import Comparison
from specverify.properties.joint_exact import one_round, whole_run
from tests.properties.by_hand import evidence, moved, without


class TestRound:
    def test_the_right_distribution_passes(self) -> None:
        outcome = one_round(evidence(), 0.0)
        assert outcome.violations == ()
        assert outcome.details["exact"]["total_variation"] < 1e-12

    def test_any_deviation_above_the_tolerance_violates(self) -> None:
        (said,) = one_round(evidence(moved(1e-9)), 0.0).violations
        assert "over V=3, K=2 is 1e-09 in TV from the target" in said
        assert one_round(evidence(moved(1e-9), tolerance=1e-6), 0.0).violations == ()

    def test_what_crashed_may_have_been_right(self) -> None:
        crashed = evidence(without(1e-3), crashes={"E": 1e-3})
        assert one_round(crashed, 0.0).violations == ()
        short = moved(1e-2)
        last = max(short)
        short[last] -= 1e-3
        assert one_round(evidence(short, crashes={"E": 1e-3}), 0.0).violations


class TestRun:
    def test_runs_are_judged_by_their_distance(self) -> None:
        wrong = Comparison.of_runs({(0,): 0.75, (1,): 0.25}, {(0,): 0.5, (1,): 0.5}, 0.0)
        (said,) = whole_run(evidence(comparison=wrong), 0.0).violations
        assert "a whole run over V=3, K=2 is 0.25 in TV" in said
        right = Comparison.of_runs({(0,): 0.5, (1,): 0.5}, {(0,): 0.5, (1,): 0.5}, 0.0)
        assert whole_run(evidence(comparison=right), 0.0).violations == ()
