"""Steered calls: limited in all, and nothing but torch's randomness in them."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from specverify.certification.exact_calls import (
    OutsideRandomness,
    SteeredCalls,
    check_again,
    check_tokens,
)
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


@pytest.mark.parametrize(("draw", "name"), [(np.random.random, "numpy"), (random.random, "Python")])
@pytest.mark.parametrize("generator", [True, False])
def test_other_global_generators_are_refused(draw: Callable, name: str, generator: bool) -> None:
    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        with pytest.raises(OutsideRandomness, match=f"{name}'s global generator"):
            calls(lambda: draw(), generator=generator)()
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)


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


def test_another_distribution_the_second_time_is_refused() -> None:
    first, other = (JointDistribution({(x,): 1.0}, "branching", 4, {}) for x in range(2))
    seeds: list[int] = []

    def same(seed: int) -> JointDistribution:
        seeds.append(seed)
        return first

    check_again(first, same, 5)
    assert len(set(seeds)) == 16
    assert 5 not in seeds
    with pytest.raises(OutsideRandomness, match="1 in TV"):
        check_again(first, lambda _: other, 5)
