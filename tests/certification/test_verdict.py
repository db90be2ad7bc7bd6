"""Verdicts: which is worse, and what the shell sees."""

import pytest

from specverify.certification.verdict import VERDICTS, Verdict, exit_code, worst


def test_worst_wins_in_the_order_of_the_contract() -> None:
    assert VERDICTS == ("violated", "error", "inconclusive", "lossy-as-declared", "preserved")
    for index, verdict in enumerate(VERDICTS):
        assert worst(reversed(VERDICTS[index:])) == verdict


def test_nothing_checked_is_inconclusive() -> None:
    assert worst([]) == "inconclusive"


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        ("preserved", 0),
        ("lossy-as-declared", 0),
        ("violated", 1),
        ("inconclusive", 2),
        ("error", 3),
    ],
)
def test_exit_codes(verdict: Verdict, code: int) -> None:
    assert exit_code(verdict) == code
    assert exit_code(verdict, interrupted=True) == 130
