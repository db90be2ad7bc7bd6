from functools import cache

import pytest
import torch

from specverify.exact.steering import grid
from tests.exact.steering.following import check

HALF = (torch.bfloat16, torch.float16)


@cache
def every_uniform(dtype):
    """What torch makes of every integer: a float32 that is rounded, with 0 in place of 1."""
    wide = torch.arange(1 << 24, dtype=torch.int32).float() * 2.0**-24
    half = wide.to(dtype)
    return torch.where(half == 1, torch.zeros((), dtype=dtype), half)


def heads_of(truth):
    return int(truth.sum()) / truth.numel()


def counts(values):
    """How often each of the 2^16 floats of half width is there."""
    return torch.bincount(values.view(torch.int16).long() + (1 << 15), minlength=1 << 16)


@pytest.mark.parametrize("dtype", HALF)
def test_half_width_values_are_those_of_torch_in_rising_order(dtype):
    ours = grid.values(torch.arange(1 << 24), dtype)
    assert bool((ours[1:] >= ours[:-1]).all())
    assert torch.equal(counts(ours), counts(every_uniform(dtype)))


@pytest.mark.parametrize("dtype", HALF)
def test_torch_draws_nothing_else(dtype):
    drawn = torch.rand(1 << 20, dtype=dtype, generator=torch.Generator().manual_seed(0))
    assert not bool(((counts(drawn) > 0) & (counts(every_uniform(dtype)) == 0)).any())
    zeros = heads_of(drawn == 0)
    expected = heads_of(every_uniform(dtype) == 0)
    assert abs(zeros - expected) < 5 * (expected / (1 << 20)) ** 0.5


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float32, 24), (torch.float64, 53)])
def test_full_width_values(dtype, bits):
    last = (1 << bits) - 1
    values = grid.values(torch.tensor([0, 1, last]), dtype)
    assert values.tolist() == [0.0, 2.0**-bits, 1 - 2.0**-bits]
    drawn = torch.rand(1000, dtype=dtype, generator=torch.Generator().manual_seed(0)).double()
    assert bool((drawn * 2.0**bits == (drawn * 2.0**bits).floor()).all())


@pytest.mark.parametrize("level", [0.0, 0.001, 0.3, 0.998, 1.0])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("compare", [torch.lt, torch.le, torch.gt, torch.ge])
def test_half_width_coins(dtype, level, compare):
    level = torch.tensor(level, dtype=dtype)
    heads = heads_of(compare(every_uniform(dtype), level))
    expected = {(0,): 1 - heads, (1,): heads}

    def emit(g):
        return compare(torch.rand(1, dtype=dtype, generator=g), level)

    check(emit, {key: mass for key, mass in expected.items() if mass}, 1e-14)


@pytest.mark.parametrize("dtype", HALF)
def test_half_width_arithmetic_is_rounded_as_torch_rounds_it(dtype):
    q, p = torch.tensor(0.7, dtype=dtype), torch.tensor(0.3, dtype=dtype)
    heads = heads_of(every_uniform(dtype) * q < p)
    check(
        lambda g: torch.rand(1, dtype=dtype, generator=g) * q < p,
        {(0,): 1 - heads, (1,): heads},
        1e-14,
    )
