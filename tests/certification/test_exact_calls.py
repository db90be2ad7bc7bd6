"""Steered calls: limited in all."""

from collections.abc import Callable

import pytest
import torch

from specverify.certification.exact_calls import SteeredCalls, check_tokens
from specverify.errors import CannotSteer, SubjectError
from specverify.exact.distribution import JointDistribution
from specverify.subjects.protocols import Capabilities, Subject


def calls(function: Callable, seconds: float = 60.0, **declared: bool) -> SteeredCalls:
    subject = Subject("mine", "rule", function, Capabilities(**declared))
    return SteeredCalls(subject, 60.0, seconds)


def test_arguments_and_answer_come_through() -> None:
    assert calls(lambda a, b, *, coin: (a, b, coin))(1, 2, coin=3) == (1, 2, 3)


def test_all_calls_together_have_a_time_limit() -> None:
    with pytest.raises(CannotSteer, match="not followed to the end in 0 s"):
        calls(lambda: None, seconds=0.0)()


def test_what_cannot_be_steered_is_no_failure_of_the_subject() -> None:
    def refused() -> None:
        raise CannotSteer("no")

    with pytest.raises(CannotSteer, match=r"^no$"):
        calls(refused)()
    with pytest.raises(SubjectError, match="raised ValueError: no"):
        calls(lambda: exec("raise ValueError('no')"))()


def test_a_moved_global_generator_is_told_once() -> None:
    with torch.random.fork_rng(devices=()):
        made = calls(lambda: torch.rand(1))
        made()
    joint = JointDistribution({(0,): 1.0}, "branching", 1, {})
    assert len(made.remarks(joint)) == 1
    named = JointDistribution({(0,): 1.0}, "branching", 1, {}, global_draws=("line",))
    assert made.remarks(named) == ()


@pytest.mark.parametrize(
    ("tokens", "message"),
    [((0, 3), "emits the token 3 with probability 0.5"), ((), "emits a row that holds no token")],
)
def test_what_is_no_output_is_an_error(tokens: tuple[int, ...], message: str) -> None:
    subject = calls(len).subject
    check_tokens(subject, JointDistribution({(0, 2): 1.0}, "branching", 1, {}), 3)
    with pytest.raises(SubjectError, match=message):
        check_tokens(subject, JointDistribution({(0, 2): 0.5, tokens: 0.5}, "branching", 1, {}), 3)
