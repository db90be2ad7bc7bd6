"""Randomness that is coupled: found, not followed wrongly."""

import pytest
import torch

from specverify.errors import CoupledRandomness
from tests.exact.steering.following import (
    LAW,
    WEIGHTS,
    check,
    clocks,
    coins,
    product_law,
    refused,
    steered,
    token,
    uniform,
)


def reseeded(g):
    g.manual_seed(7)
    first = uniform(g, 1) < 0.3
    g.manual_seed(7)
    return torch.cat([first, uniform(g, 1) < 0.6])


def state_set_back(g):
    state = g.get_state()
    first = uniform(g, 1) < 0.3
    g.set_state(state)
    return torch.cat([first, uniform(g, 1) < 0.6])


def cloned_generator(g):
    other = torch.Generator()
    other.set_state(g.get_state())
    return torch.cat([uniform(g, 1) < 0.3, uniform(other, 1) < 0.6])


def forked_generator(g):
    with torch.random.fork_rng(devices=()):
        first = torch.rand(1, dtype=torch.float64) < 0.3
    return torch.cat([first, torch.rand(1, dtype=torch.float64) < 0.6])


@pytest.mark.parametrize("emit", [reseeded, state_set_back, cloned_generator, forked_generator])
def test_uniforms_that_are_drawn_twice_are_the_same_and_reported(emit):
    found = steered(emit)
    assert found.findings
    assert ".py:" in found.findings[0]
    check(emit, {(0, 0): 0.4, (0, 1): 0.3, (1, 1): 0.3})


@pytest.mark.parametrize(
    "second",
    [
        lambda g: torch.multinomial(WEIGHTS, 1, generator=g),
        lambda g: clocks(g, 3).argmin(),
        lambda g: torch.bernoulli(WEIGHTS, generator=g),
        lambda g: torch.randint(3, (1,), generator=g),
        lambda g: uniform(g, 1, dtype=torch.float32) < 0.5,
    ],
)
def test_another_kind_of_draw_from_the_same_state(second):
    def emit(g):
        state = g.get_state()
        first = int(uniform(g) < 0.3)
        g.set_state(state)
        return [first, int(second(g).reshape(-1)[0])]

    assert isinstance(refused(emit, "generator state"), CoupledRandomness)


def test_looking_at_the_state_is_no_second_draw():
    def emit(g):
        g.get_state()
        torch.get_rng_state()
        return torch.cat([uniform(g, 1) < 0.3, uniform(g, 1) < 0.6])

    assert not steered(emit).findings
    check(emit, coins(0.3, 0.6))


def test_a_generator_that_is_left_alone_is_no_finding():
    found = steered(lambda g: torch.rand(1) < 0.5)
    assert not found.findings


def test_both_generators():
    check(
        lambda g: torch.cat([uniform(g, 1) < 0.3, torch.rand(1, dtype=torch.float64) < 0.6]),
        coins(0.3, 0.6),
    )


def drawn_until_accepted(g):
    for turn in range(3):
        if uniform(g) < 0.5:
            return turn
    return 3


def as_many_as_a_token_says(g):
    count = int(token(g))
    return [count, int((uniform(g, count) < 0.5).sum())]


def nested(g):
    if uniform(g) < 0.25:
        return token(g)
    return 5 if uniform(g) < 0.5 else 6


def stays_within(g):
    """A token that is drawn again until it is not 1, three times at most."""
    for _ in range(3):
        drawn = int(token(g))
        if drawn != 1:
            return drawn
    return 1


NUMBERS = {
    drawn_until_accepted: {(0,): 0.5, (1,): 0.25, (2,): 0.125, (3,): 0.125},
    as_many_as_a_token_says: {
        (0, 0): 0.5, (1, 0): 0.15, (1, 1): 0.15, (2, 0): 0.05, (2, 1): 0.1, (2, 2): 0.05
    },
    nested: {(5,): 0.375, (6,): 0.375, **{key: 0.25 * mass for key, mass in LAW.items()}},
    stays_within: {(0,): 0.5 * 1.39, (1,): 0.027, (2,): 0.2 * 1.39},
}  # fmt: skip


@pytest.mark.parametrize(("emit", "law"), NUMBERS.items(), ids=lambda x: getattr(x, "__name__", ""))
def test_numbers_of_draws_that_depend_on_draws(emit, law):
    check(emit, law)


def test_many_independent_draws():
    check(lambda g: token(g, 3), product_law(LAW, LAW, LAW))


class Doubled(torch.autograd.Function):
    """Twice a tensor."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class Tossed(torch.autograd.Function):
    """Coins."""

    @staticmethod
    def forward(ctx, p):
        return torch.rand(p.shape, dtype=p.dtype) < p

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@torch.library.custom_op("specverify_tests::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    """Half of a tensor, through numpy."""
    return torch.from_numpy(x.numpy() / 2)


P = torch.tensor([0.3, 0.6], dtype=torch.float64)


def test_autograd_functions():
    check(lambda g: Doubled.apply(uniform(g, 2)) < 2 * P, coins(0.3, 0.6))
    check(lambda g: Tossed.apply(P), coins(0.3, 0.6))


def test_custom_operators_are_refused():
    refused(lambda g: halved(uniform(g, 2)) < 0.5, "halved")


def test_vmap():
    toss = torch.vmap(lambda p: torch.rand((), dtype=p.dtype) < p, randomness="different")
    check(lambda g: toss(P), coins(0.3, 0.6))
    compare = torch.vmap(torch.lt)
    check(lambda g: compare(uniform(g, 2), P), coins(0.3, 0.6))
    same = torch.vmap(lambda p: torch.rand((), dtype=p.dtype) < p, randomness="same")
    check(lambda g: same(P), {(0, 0): 0.4, (0, 1): 0.3, (1, 1): 0.3})
