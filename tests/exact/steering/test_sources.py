import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Exponential, OneHotCategorical, Uniform

from tests.exact.steering.following import (
    LAW,
    WEIGHTS,
    check,
    coins,
    product_law,
    refused,
    steered,
    token,
    uniform,
)

THIRDS = {(x,): 1 / 3 for x in range(3)}


def into(draw):
    """Draw into a buffer."""
    buffer = torch.empty(2, dtype=torch.float64)
    draw(buffer)
    return buffer


COINS = {
    "rand": lambda g: uniform(g, 2) < 0.3,
    "rand_like": lambda g: torch.rand_like(torch.empty(2, dtype=torch.float64)) < 0.3,
    "rand out": lambda g: into(lambda b: torch.rand(2, generator=g, out=b)) < 0.3,
    "uniform_": lambda g: into(lambda b: b.uniform_(generator=g)) < 0.3,
    "uniform_ of a range": lambda g: into(lambda b: b.uniform_(-2, 8, generator=g)) < 1.0,
    "Uniform": lambda g: Uniform(0.0, torch.tensor(2.0, dtype=torch.float64)).sample((2,)) < 0.6,
    "bernoulli": lambda g: torch.bernoulli(torch.full((2,), 0.3, dtype=torch.float64), generator=g),
    "bernoulli out": lambda g: into(
        lambda b: torch.bernoulli(torch.full_like(b, 0.3), generator=g, out=b)
    ),
    "bernoulli_": lambda g: into(lambda b: b.bernoulli_(0.3, generator=g)),
    "bernoulli_ of a tensor": lambda g: into(
        lambda b: b.bernoulli_(torch.full_like(b, 0.3), generator=g)
    ),
    "bernoulli_ of itself": lambda g: (b := torch.full((2,), 0.3, dtype=torch.float64)).bernoulli_(
        b, generator=g
    ),
    "Bernoulli": lambda g: Bernoulli(torch.full((2,), 0.3, dtype=torch.float64)).sample(),
    "dropout": lambda g: torch.nn.functional.dropout(torch.ones(2), 0.7) > 0,
}


@pytest.mark.parametrize("emit", COINS.values(), ids=COINS)
def test_coins(emit):
    check(emit, coins(0.3, 0.3), 1e-7 if emit is COINS["dropout"] else 1e-12)


TOKENS = {
    "multinomial": (lambda g: torch.multinomial(WEIGHTS, 1, generator=g), LAW),
    "multinomial not normalised": (lambda g: torch.multinomial(WEIGHTS * 7, 1, generator=g), LAW),
    "multinomial of rows": (
        lambda g: torch.multinomial(WEIGHTS.expand(2, 3), 1, generator=g),
        product_law(LAW, LAW),
    ),
    "multinomial out": (
        lambda g: torch.multinomial(WEIGHTS, 1, generator=g, out=torch.empty(1, dtype=torch.long)),
        LAW,
    ),
    "multinomial with replacement": (lambda g: token(g, 2), product_law(LAW, LAW)),
    "Categorical": (lambda g: Categorical(probs=WEIGHTS).sample(), LAW),
    "Categorical of logits": (lambda g: Categorical(logits=WEIGHTS.log()).sample(), LAW),
    "OneHotCategorical": (lambda g: OneHotCategorical(probs=WEIGHTS).sample().argmax(), LAW),
    "Exponential": (lambda g: Exponential(WEIGHTS).sample().argmin(), LAW),
    "exponential_ of a rate": (
        lambda g: (WEIGHTS / torch.empty_like(WEIGHTS).exponential_(4.0, generator=g)).argmax(),
        LAW,
    ),
    "randint": (lambda g: torch.randint(3, (1,), generator=g), THIRDS),
    "randint from": (lambda g: torch.randint(5, 8, (1,), generator=g) - 5, THIRDS),
    "randint_like": (lambda g: torch.randint_like(torch.zeros(1, dtype=torch.long), 3), THIRDS),
    "random_": (lambda g: torch.zeros(1, dtype=torch.long).random_(3, generator=g), THIRDS),
    "random_ from": (
        lambda g: torch.zeros(1, dtype=torch.long).random_(5, 8, generator=g) - 5,
        THIRDS,
    ),
}


@pytest.mark.parametrize(("emit", "law"), TOKENS.values(), ids=TOKENS)
def test_tokens(emit, law):
    check(emit, law)


def test_multinomial_without_replacement():
    expected = {
        (x, y): LAW[x,] * LAW[y,] / (1 - LAW[x,]) for x in range(3) for y in range(3) if x != y
    }
    check(lambda g: torch.multinomial(WEIGHTS, 2, generator=g), expected)


def test_multinomial_without_replacement_of_more_than_there_is():
    refused(
        lambda g: torch.multinomial(torch.tensor([0.5, 0.5, 0.0]), 3, generator=g), "multinomial"
    )


def test_bernoulli_with_a_random_probability():
    refused(lambda g: torch.empty(1).bernoulli_(uniform(g, 1).float(), generator=g), "bernoulli")


@pytest.mark.parametrize(
    "draw",
    [
        lambda g: torch.randn(2, generator=g) > 0,
        lambda g: torch.empty(2).normal_(generator=g) > 0,
        lambda g: torch.empty(2).cauchy_(generator=g) > 0,
        lambda g: torch.poisson(torch.ones(2), generator=g),
        lambda g: torch.empty(2).geometric_(0.5, generator=g),
        lambda g: torch.randperm(3, generator=g),
        lambda g: torch.arange(3)[torch.randperm(3, generator=g)],
        lambda g: torch.randint(1 << 24, (1,), generator=g) < 1 << 23,
        lambda g: torch.empty(3, dtype=torch.bfloat16).exponential_(generator=g).float().argmin(),
        lambda g: torch.empty(1, dtype=torch.bfloat16).uniform_(0, 2, generator=g) < 1,
    ],
)
def test_draws_that_are_not_followed(draw):
    refused(draw)


def test_a_draw_that_is_not_followed_may_be_left_unused():
    def emit(g):
        torch.randn(5, generator=g)
        torch.randperm(3, generator=g)
        return token(g)

    check(emit, LAW)


def test_attention_without_dropout_draws_nothing():
    x = torch.randn(1, 1, 4, 8, generator=torch.Generator().manual_seed(0))

    def emit(g):
        attention = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        return torch.cat([token(g), (attention.sum() < 1e9).long().reshape(1)])

    check(emit, product_law(LAW, {(1,): 1.0}))


def test_no_numbers():
    check(lambda g: torch.cat([(uniform(g, 0) < 0.5).long(), token(g)]), LAW)


def test_global_generator_stays_where_it_was():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    steered(lambda g: torch.rand(2) < 0.5)
    assert torch.equal(torch.get_rng_state(), before)


def test_noise_of_a_buffer_that_is_filled_again():
    def emit(g):
        buffer = torch.empty(1, dtype=torch.float64)
        first = buffer.uniform_(generator=g) < 0.3
        return torch.cat([first, buffer.uniform_(generator=g) < 0.6])

    check(emit, coins(0.3, 0.6))
