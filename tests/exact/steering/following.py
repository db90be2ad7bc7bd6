"""Small programs and what they must emit."""

import itertools
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Generator, Tensor

from specverify.errors import CannotSteer
from specverify.exact.distribution import JointDistribution
from specverify.exact.joint import Tokens, total_variation
from specverify.exact.programs import program_distribution

Emit = Callable[[Generator], object]
"""A program that emits a token, a tensor of them or a list."""

WEIGHTS = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
LAW: dict[Tokens, float] = {(0,): 0.5, (1,): 0.3, (2,): 0.2}


def steered(emit: Emit) -> JointDistribution:
    """The distribution of what `emit` returns, as one row."""

    def program(generator: Generator) -> Tensor:
        value = emit(generator)
        tokens = value if isinstance(value, Tensor) else torch.tensor(value)
        return tokens.long().reshape(1, -1)

    return program_distribution(program)


def check(emit: Emit, expected: Mapping[Tokens, float], tolerance: float = 1e-12) -> None:
    """Assert that a program emits `expected`."""
    found = steered(emit)
    assert not found.crashes
    assert abs(found.total - 1) < 1e-12
    assert total_variation(found.probabilities, expected) <= tolerance


def refused(emit: Emit, match: str | None = None) -> CannotSteer:
    """Assert that a program is refused."""
    with pytest.raises(CannotSteer, match=match) as caught:
        steered(emit)
    return caught.value


def coins(*heads: float) -> dict[Tokens, float]:
    """Law of independent coins, 1 for heads."""
    return product_law(*({(0,): 1 - p, (1,): p} for p in heads))


def product_law(*laws: Mapping[Tokens, float]) -> dict[Tokens, float]:
    """Law of independent tokens."""
    joint: dict[Tokens, float] = {}
    for combination in itertools.product(*(law.items() for law in laws)):
        tokens = tuple(itertools.chain.from_iterable(key for key, _ in combination))
        mass = 1.0
        for _, p in combination:
            mass *= p
        if mass > 0:
            joint[tokens] = joint.get(tokens, 0.0) + mass
    return joint


def uniform(g: Generator, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Uniforms of a generator."""
    return torch.rand(shape, dtype=dtype, generator=g)


def clocks(g: Generator, *shape: int) -> Tensor:
    """Exponentials of a generator, float64."""
    return torch.empty(shape, dtype=torch.float64).exponential_(generator=g)


def token(g: Generator, count: int = 1) -> Tensor:
    """Tokens with law `LAW`."""
    return torch.multinomial(WEIGHTS, count, replacement=True, generator=g)
