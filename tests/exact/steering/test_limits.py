"""Programs that read random numbers where no operation shows it: followed rightly or refused."""

import os
import random
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from specverify.errors import CannotSteer, CoupledRandomness
from specverify.exact import joint_distribution

W = torch.tensor([0.5, 0.3, 0.2])


def once_in_two_places(g: Generator) -> Tensor:
    t = torch.multinomial(W, 1, generator=g)
    return torch.cat([t, t])


def by_thresholds(g: Generator) -> Tensor:
    t = torch.searchsorted(W.cumsum(0), torch.rand((), generator=g))
    return torch.stack([t, t])


def by_a_race(g: Generator) -> Tensor:
    t = (W / torch.empty_like(W).exponential_(generator=g)).argmax()
    return torch.stack([t, t])


@pytest.mark.parametrize("program", [once_in_two_places, by_thresholds, by_a_race])
def test_a_draw_in_two_places_is_one_draw(program: Callable[[Generator], Tensor]) -> None:
    joint = joint_distribution(program)
    assert joint.probabilities == pytest.approx({(0, 0): 0.5, (1, 1): 0.3, (2, 2): 0.2}, abs=1e-6)


def test_inference_mode_does_not_hide_copies() -> None:
    def program(g: Generator) -> Tensor:
        with torch.inference_mode():
            return (torch.rand(2, generator=g, dtype=torch.float64) < 0.3).long()

    joint = joint_distribution(program)
    expected = {(0, 0): 0.49, (0, 1): 0.21, (1, 0): 0.21, (1, 1): 0.09}
    assert joint.probabilities == pytest.approx(expected, abs=1e-14)


def test_counts_remember_the_coins_they_were_made_of() -> None:
    def program(g: Generator) -> Tensor:
        coins = ~(torch.rand(3, generator=g, dtype=torch.float64) < 0.75)
        counts = coins.cumsum(0)
        before = coins.clone()
        coins[0] = True
        return torch.cat([counts, coins.long(), before.long()])

    joint = joint_distribution(program)
    assert len(joint.probabilities) == 8
    for tokens in joint.probabilities:
        counts, coins, before = tokens[:3], tokens[3:6], tokens[6:]
        assert counts == tuple(np.cumsum(before))
        assert coins == (1, *before[1:])


def test_a_buffer_drawn_into_twice() -> None:
    def program(g: Generator) -> Tensor:
        buffer, coins = torch.empty(1, dtype=torch.float64), []
        for _ in range(2):
            torch.rand(1, out=buffer, generator=g)
            coins.append((buffer < 0.25).long())
        return torch.cat(coins)

    joint = joint_distribution(program)
    assert joint.probabilities[1, 1] == 0.0625


@torch.library.custom_op("specverify_tests::draws_inside", mutates_args=())
def draws_inside(x: Tensor) -> Tensor:
    return torch.rand(x.shape)


def custom_operator(g: Generator) -> Tensor:
    return (draws_inside(W) < 0.3).long()


def another_thread(g: Generator) -> Tensor:
    drawn: list[Tensor] = []
    thread = threading.Thread(target=lambda: drawn.append(torch.rand(1)))
    thread.start()
    thread.join()
    return (drawn[0] < 0.5).long()


def python_random(g: Generator) -> Tensor:
    return torch.tensor([int(random.random() < 0.5)])


def numpy_random(g: Generator) -> Tensor:
    return torch.tensor([int(np.random.rand() < 0.5)])


def operating_system(g: Generator) -> Tensor:
    token = torch.multinomial(W, 1, generator=g)
    return torch.cat([token, torch.tensor([os.urandom(1)[0] % 128])])


def the_clock(g: Generator) -> Tensor:
    return torch.tensor([time.perf_counter_ns() % 1_000_003])


def memory_shared_before(g: Generator) -> Tensor:
    buffer = torch.empty(1)
    view = buffer.numpy()
    buffer.uniform_(generator=g)
    return torch.tensor([int(view[0] < 0.3)])


def dlpack(g: Generator) -> Tensor:
    shared = torch.utils.dlpack.from_dlpack(
        torch.utils.dlpack.to_dlpack(torch.rand(1, generator=g))
    )
    return (shared * 1000).long()


def same_width_view(g: Generator) -> Tensor:
    noise = torch.rand(1, dtype=torch.float64, generator=g)
    return (noise.view(torch.int64) < 4602678819172646912).long()


def swallowed(g: Generator) -> Tensor:
    noise = torch.rand(1, generator=g)
    try:
        noise.view(torch.int8).tolist()
    except Exception:
        return torch.tensor([0])
    return torch.tensor([1])


def uniform_against_normal(g: Generator) -> Tensor:
    return (torch.rand(1, generator=g) < torch.randn(1, generator=g)).long()


@pytest.mark.parametrize(
    "program",
    [
        custom_operator,
        another_thread,
        python_random,
        numpy_random,
        operating_system,
        the_clock,
        memory_shared_before,
        dlpack,
        same_width_view,
        swallowed,
        uniform_against_normal,
    ],
)
def test_what_is_not_followed_is_refused(program: Callable[[Generator], Tensor]) -> None:
    with pytest.raises(CannotSteer):
        joint_distribution(program)


def test_a_state_set_back_and_read_in_other_pieces_is_coupled() -> None:
    def program(g: Generator) -> Tensor:
        state = g.get_state()
        whole = torch.rand(4, generator=g)
        g.set_state(state)
        return (
            torch.cat([whole, torch.rand(2, generator=g), torch.rand(2, generator=g)]) < 0.3
        ).long()

    with pytest.raises(CoupledRandomness):
        joint_distribution(program)


def test_a_weight_that_divides_the_noise_may_not_be_negative() -> None:
    weights = torch.tensor([0.5, -0.3, 0.2])

    def smallest(g: Generator) -> Tensor:
        return (torch.empty(3).exponential_(generator=g) / weights).argmin(0, keepdim=True)

    with pytest.raises(CannotSteer):
        joint_distribution(smallest)
    weights *= torch.tensor([1.0, 0.0, 1.0])  # leaves -0.0
    with pytest.raises(CannotSteer):
        joint_distribution(smallest)


def test_a_negative_weight_over_the_noise_never_wins() -> None:
    weights = torch.tensor([0.5, -0.3, 0.5])

    def largest(g: Generator) -> Tensor:
        return (weights / torch.empty(3).exponential_(generator=g)).argmax(0, keepdim=True)

    assert joint_distribution(largest).probabilities == {(0,): 0.5, (2,): 0.5}


def test_a_generator_that_is_copied_and_left_standing_is_a_finding() -> None:
    def program(g: Generator) -> Tensor:
        copy = Generator()
        copy.set_state(g.get_state())
        return torch.multinomial(W, 1, generator=copy)

    (finding,) = joint_distribution(program).findings
    assert "copy of the generator" in finding
    assert not joint_distribution(lambda g: torch.multinomial(W, 1, generator=g)).findings


def test_a_check_of_types_is_no_crash_of_the_subject() -> None:
    def program(g: Generator) -> Tensor:
        (number,) = torch.rand(1, generator=g).tolist()
        if not isinstance(number, float):
            raise TypeError("u must be a float")
        return torch.tensor([int(number < 0.5)])

    with pytest.raises(CannotSteer, match="stands for a float"):
        joint_distribution(program)


def test_drawing_until_something_is_accepted_has_an_end() -> None:
    def program(g: Generator) -> Tensor:
        while True:
            token = torch.randint(0, 3, (1,), generator=g)
            if torch.rand((), generator=g).item() < [0.0, 0.5, 0.5][int(token)]:
                return token

    with pytest.raises(CannotSteer, match="decisions"):
        joint_distribution(program)
