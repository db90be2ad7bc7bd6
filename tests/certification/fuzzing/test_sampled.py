"""Confirmation on fresh randomness: alarms at their stated rate, and no shared draws."""

import math

import numpy as np
import pytest

from specverify.certification.fuzzing.limits import share_of
from specverify.certification.fuzzing.sampled import (
    CALLS,
    SCREEN,
    Confirmations,
    Counted,
    Stream,
)
from tests.certification.fuzzing.searched import rule, search, summary, unsteerable

LAW = np.array([0.5, 0.25, 0.25, 0.0])
ROWS = 200


def sampler(law: np.ndarray):  # type: ignore[no-untyped-def]
    """Counts of a subject that follows `law`, held against LAW."""

    def count(value: object, stream: Stream, call: int) -> Counted:
        counts = stream.numpy(call).multinomial(ROWS, law)
        return Counted((((0,), (1,), (2,), (3,)),), (counts,), (LAW,), ROWS)

    return count


class TestStreams:
    def test_no_confirmation_repeats_a_search(self) -> None:
        drawn = set()
        for number in range(1, 6):
            for call in range(3):
                for stream in (Stream.of_search(0, number), Stream.of_confirmation(0, number)):
                    drawn.add(stream.generator(call).initial_seed())
                    drawn.add(int(stream.numpy(call).integers(2**62)))
        assert len(drawn) == 5 * 3 * 2 * 2

    def test_the_same_stream_gives_the_same(self) -> None:
        first, second = (Stream.of_search(3, 1).numpy(0).random(4) for _ in range(2))
        assert (first == second).all()


class TestEvidence:
    def test_what_is_impossible_counts_beyond_the_rate_of_zero_coins(self) -> None:
        counts = np.array([100, 50, 46, 4])
        counted = Counted((((0,), (1,), (2,), (3,)),), (counts,), (LAW,), ROWS)
        assert counted.impossible == 4
        assert counted.log_e("float32") > SCREEN
        # One hit is what half-width coins may do.
        counts = np.array([100, 50, 49, 1])
        counted = Counted((((0,), (1,), (2,), (3,)),), (counts,), (LAW,), ROWS)
        assert counted.log_e("bfloat16") < SCREEN

    def test_the_furthest_stratum_is_shown(self) -> None:
        names = ((0,), (1,))
        fair = np.array([0.5, 0.5])
        counted = Counted(
            (names, names), (np.array([50, 50]), np.array([90, 10])), (fair, fair), 200
        )
        observed, expected = counted.frequencies()
        assert observed == {(0,): 0.9, (1,): 0.1}
        assert expected == {(0,): 0.5, (1,): 0.5}


class TestConfirmations:
    def test_shares_sum_to_alpha(self) -> None:
        total = sum(share_of(0.01, number) for number in range(1, 100_000))
        assert total < 0.01
        assert total == pytest.approx(0.01, rel=1e-4)

    def test_a_wrong_law_stands_and_a_right_one_does_not(self) -> None:
        wrong = Confirmations(1e-6, 0, sampler(np.array([0.4, 0.3, 0.3, 0.0])), "float64")
        found = wrong.confirm(None)
        assert found is not None
        assert found.log_e >= -math.log(found.share)
        assert found.share == share_of(1e-6, 1)
        fair = Confirmations(1e-6, 0, sampler(LAW), "float64")
        assert fair.confirm(None) is None
        assert (fair.done, fair.standing, fair.unconfirmed) == (1, 0, 1)
        assert fair.samples == CALLS * ROWS

    def test_right_laws_are_accused_no_more_often_than_stated(self) -> None:
        """At an enlarged alpha, over 100 runs of four confirmations each."""
        alpha, runs = 0.2, 100
        alarms = 0
        for seed in range(runs):
            fair = Confirmations(alpha, seed, sampler(LAW), "float64")
            alarms += any(fair.confirm(None) is not None for _ in range(4))
        # A binomial of this rate exceeds this once in 10^4.
        assert alarms <= alpha * runs + 4 * math.sqrt(alpha * (1 - alpha) * runs)

    def test_without_fresh_randomness_they_would_be(self) -> None:
        """What the search has seen is chosen to look wrong, and confirms itself."""
        count = sampler(LAW)
        highest = max(
            count(None, Stream.of_search(0, number), 0).log_e("float64") for number in range(2_000)
        )
        assert highest > -math.log(share_of(0.2, 1))


def test_a_right_rule_that_cannot_be_steered_is_never_accused() -> None:
    for seed in range(3):
        cases = search(rule(unsteerable), 60, seed=seed, alpha=0.05)
        assert [case.verdict for case in cases] == ["preserved"]
        found = summary(cases)
        assert found.sampled == 60
        assert found.confirmations == found.unconfirmed
