import math

import pytest
import torch

from tests.exact.steering.following import WEIGHTS, check, coins, refused, uniform

P = torch.tensor([0.3, 0.6], dtype=torch.float64)
Q = torch.tensor([0.8, 0.75], dtype=torch.float64)
HALF = torch.tensor([0.15, 0.3], dtype=torch.float64)

FORMS = {
    "product with q": (lambda u: u * Q < P, (0.375, 0.8)),
    "product in place": (lambda u: u.mul_(Q) < P, (0.375, 0.8)),
    "product the other way": (lambda u: Q * u < P, (0.375, 0.8)),
    "quotient": (lambda u: u / P < 1, (0.3, 0.6)),
    "divided by the uniform": (lambda u: P / u > 1, (0.3, 0.6)),
    "logarithms": (lambda u: u.log() < P.log(), (0.3, 0.6)),
    "base 2": (lambda u: u.log2() < P.log2(), (0.3, 0.6)),
    "log of the product": (lambda u: u.log() + Q.log() <= P.log(), (0.375, 0.8)),
    "exponential": (lambda u: u.exp() < P.exp(), (0.3, 0.6)),
    "complement": (lambda u: 1 - u > 1 - P, (0.3, 0.6)),
    "log of the complement": (lambda u: torch.log1p(-u) > torch.log1p(-P), (0.3, 0.6)),
    "square": (lambda u: u.square() < P.square(), (0.3, 0.6)),
    "root": (lambda u: u.sqrt() < P.sqrt(), (0.3, 0.6)),
    "sigmoid": (lambda u: u.sigmoid() < P.sigmoid(), (0.3, 0.6)),
    "clamp": (lambda u: u.clamp(0.4, 0.9) <= P, (0.0, 0.6)),
    "minimum": (lambda u: torch.minimum(u, P) < P, (0.3, 0.6)),
    "float32": (lambda u: u.float() < P, (0.3, 0.6)),
    "shifted": (lambda u: (u - 0.5) * 2 < 2 * P - 1, (0.3, 0.6)),
    "negative factor": (lambda u: -2 * u > -2 * P, (0.3, 0.6)),
    "NaN": (lambda u: u < torch.tensor([math.nan, 0.5]), (0.0, 0.5)),
    "infinite": (lambda u: u * torch.tensor([math.inf, 1.0]) < 0.5, (0.0, 0.5)),
    "divided by zero": (lambda u: u / torch.tensor([0.0, 1.0]) < 0.5, (0.0, 0.5)),
}


@pytest.mark.parametrize(("test", "heads"), FORMS.values(), ids=FORMS)
def test_acceptance_tests(test, heads):
    check(lambda g: test(uniform(g, 2)), coins(*heads), 1e-7)


@pytest.mark.parametrize("name", ["product with q", "logarithms", "quotient", "complement"])
def test_to_the_last_bit(name):
    test, heads = FORMS[name]
    check(lambda g: test(uniform(g, 2)), coins(*heads), 1e-14)


def test_operands_are_those_of_the_time():
    """A buffer that is overwritten later has no part in it."""

    def emit(g):
        scale = Q.clone()
        scaled = uniform(g, 2) * scale
        scale.zero_()
        return scaled < P

    check(emit, coins(0.375, 0.8))


def test_draws_that_were_treated_alike_may_be_put_together():
    check(lambda g: torch.stack([uniform(g).log() * 2 for _ in P]) < 2 * P.log(), coins(0.3, 0.6))


TURNING = {
    "square": lambda u: (u - 0.5).square() < 0.04,
    "even power": lambda u: (u - 0.5) ** 4 < 0.04,
    "reciprocal": lambda u: 1 / (u - 0.5) < 3,
    "reciprocal at zero": lambda u: 1 / (0.0 - u) < -5,
    "divided by": lambda u: P / (u - 0.5) < 3,
    "root of negatives": lambda u: (u - 0.5).sqrt() < 0.5,
    "log of negatives": lambda u: (u - 0.5).log() < -1,
    "log1p of negatives": lambda u: (u - 1.5).log1p() < -1,
    "power of a negative": lambda u: torch.tensor(-2.0) ** u < 1,
    "abs": lambda u: (u - 0.5).abs() < 0.1,
    "cos": lambda u: (u * 7).cos() < 0.1,
    "remainder": lambda u: (u * 3) % 1 < 0.1,
    "product of two": lambda u: u[0] * u[1] < 0.5,
    "with itself": lambda u: u * u < 0.5,
    "sum": lambda u: u.sum() < 0.5,
    "compared with each other": lambda u: u[0] < u[1],
    "largest": lambda u: u.max() < 0.5,
    "token by multiplication": lambda u: (u * 3).long(),
    "floor": lambda u: (u * 3).floor(),
    "into half width": lambda u: torch.ones(2, dtype=torch.bfloat16).mul_(u) < 0.5,
}


@pytest.mark.parametrize("test", TURNING.values(), ids=TURNING)
def test_what_changes_direction_is_refused(test):
    refused(lambda g: test(uniform(g, 2)), r"random .*test_arithmetic\.py:\d+")


def test_turning_elsewhere_is_followed():
    check(lambda g: (uniform(g, 1) + 0.5).square() < 1.0, coins(0.5))
    check(lambda g: (uniform(g, 1) - 2).reciprocal() < -0.8, coins(1 - 0.75), 1e-12)
    check(lambda g: WEIGHTS[:1] / uniform(g, 1) < 1.0, coins(0.5))
