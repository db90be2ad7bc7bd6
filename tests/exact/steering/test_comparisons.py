import pytest
import torch

from tests.exact.steering.following import LAW, WEIGHTS, check, coins, refused, steered, uniform

R = torch.tensor([0.3, 0.6], dtype=torch.float64)
CDF = WEIGHTS.cumsum(0)

COMPARED = {
    "u < r": lambda u: u < R,
    "u <= r": lambda u: u <= R,
    "r > u": lambda u: torch.gt(R, u),
    "r >= u": lambda u: torch.ge(R, u),
    "not u > r": lambda u: ~(u > R),
    "torch.lt": lambda u: torch.lt(u, R),
    "out": lambda u: torch.lt(u, R, out=torch.empty(2, dtype=torch.bool)),
    "where": lambda u: torch.where(u < R, 1, 0),
    "scalars": lambda u: torch.stack([u[0] < 0.3, u[1] < 0.6]),
    "Python booleans": lambda u: [bool(x < r) for x, r in zip(u, R.tolist(), strict=True)],
    "list of truth values": lambda u: [x < r for x, r in zip(u, R.tolist(), strict=True)],
    "control flow": lambda u: [1 if x < r else 0 for x, r in zip(u, R.tolist(), strict=True)],
    "float": lambda u: (u < R).float(),
    "mask": lambda u: (u < R) & torch.tensor([True, True]),
    "written by mask": lambda u: torch.zeros(2).masked_fill(u < R, 1.0),
    "in place": lambda u: torch.ones(2, dtype=torch.bool).logical_and_(u < R),
}


@pytest.mark.parametrize("compare", COMPARED.values(), ids=COMPARED)
def test_coins(compare):
    check(lambda g: compare(uniform(g, 2)), coins(0.3, 0.6), 2e-16)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("compare", [torch.lt, torch.le])
def test_edges_of_the_grid(dtype, compare):
    """A uniform is never 1 and sometimes 0: u <= 0 has the mass of one grid point."""
    bits = {torch.float64: 53, torch.float32: 24}[dtype]
    levels = torch.tensor([0.0, 2.0**-bits, 1 - 2.0**-bits, 1.0], dtype=dtype)
    extra = 2.0**-bits if compare is torch.le else 0.0
    for level in levels:
        heads = min(1.0, float(level.double()) + extra)
        expected = {key: mass for key, mass in coins(heads).items() if mass}
        found = steered(lambda g, level=level: compare(uniform(g, 1, dtype=dtype), level))
        assert dict(found.probabilities) == expected


TOKENS = {
    "searchsorted": lambda u: torch.searchsorted(CDF, u),
    "searchsorted right": lambda u: torch.searchsorted(CDF, u, right=True),
    "searchsorted of a scalar": lambda u: torch.searchsorted(CDF, u[0]),
    "bucketize": lambda u: torch.bucketize(u, CDF),
    "counted": lambda u: (u > CDF).sum(),
    "counted along a dimension": lambda u: (CDF[None] < u[:, None]).sum(1),
    "counted out of order": lambda u: (CDF.flip(0) < u).sum(),
    "first": lambda u: torch.gt(CDF, u).int().argmax(),
    "first of closed ones": lambda u: (u <= CDF).long().argmax(),
    "scaled": lambda u: torch.searchsorted(CDF * 5, u * 5),
    "loop": lambda u: next((i for i in range(2) if u < CDF[i]), 2),
    "loop of differences": lambda u: next((i for i in range(2) if u - CDF[i] < 0), 2),
}


@pytest.mark.parametrize("draw", TOKENS.values(), ids=TOKENS)
def test_inversion(draw):
    check(lambda g: draw(uniform(g, 1)), LAW)


def test_first_of_numbers_out_of_order():
    numbers = torch.tensor([0.7, 0.2, 0.5], dtype=torch.float64)
    check(lambda g: (numbers < uniform(g, 1)).int().argmax(), {(0,): 0.5, (1,): 0.5})
    check(lambda g: (numbers > uniform(g, 1)).int().argmax(), {(0,): 1.0})
    check(lambda g: (numbers[1:] > uniform(g, 1)).int().argmax(), {(0,): 0.7, (1,): 0.3})


SHARED = {
    "thresholds": (
        lambda u: torch.cat([u < 0.3, u < 0.6]),
        {(0, 0): 0.4, (0, 1): 0.3, (1, 1): 0.3},
    ),
    "one after the other": (
        lambda u: [bool(u < 0.3), bool(u < 0.6)],
        {(0, 0): 0.4, (0, 1): 0.3, (1, 1): 0.3},
    ),
    "interval": (lambda u: (u > 0.3) & (u < 0.6), coins(0.3)),
    "exclusive": (lambda u: (u < 0.3) ^ (u < 0.6), coins(0.3)),
    "expanded": (lambda u: u.expand(2) < R, {(0, 0): 0.4, (0, 1): 0.3, (1, 1): 0.3}),
    "gathered twice": (
        lambda u: u[torch.tensor([0, 0])] < R,
        {(0, 0): 0.4, (0, 1): 0.3, (1, 1): 0.3},
    ),
    "recycled": (
        lambda u: [1, int(u / 0.5 < 0.5)] if u < 0.5 else [0, int((u - 0.5) / 0.5 < 0.5)],
        coins(0.5, 0.5),
    ),
    "token and coin": (
        lambda u: torch.cat([torch.searchsorted(CDF, u), (u < 0.65).long()]),
        {(0, 1): 0.5, (1, 1): 0.15, (1, 0): 0.15, (2, 0): 0.2},
    ),
    "coin and token": (
        lambda u: torch.cat([(u < 0.65).long(), torch.searchsorted(CDF, u)]),
        {(1, 0): 0.5, (1, 1): 0.15, (0, 1): 0.15, (0, 2): 0.2},
    ),
    "two tokens": (
        lambda u: torch.cat([torch.searchsorted(CDF, u), torch.searchsorted(R, u)]),
        {(0, 0): 0.3, (0, 1): 0.2, (1, 1): 0.1, (1, 2): 0.2, (2, 2): 0.2},
    ),
}


@pytest.mark.parametrize(("use", "law"), SHARED.values(), ids=SHARED)
def test_one_uniform_for_several_decisions(use, law):
    check(lambda g: use(uniform(g, 1)), {key: mass for key, mass in law.items() if mass})


def test_a_uniform_that_decides_twice_is_reported():
    found = steered(lambda g: [bool((u := uniform(g)) < 0.3), bool(u < 0.6)])
    (reuse,) = found.reuses
    assert "following.py" in reuse
    assert "test_comparisons.py" in reuse
    assert not steered(lambda g: uniform(g, 2) < R).reuses


LEADING = {
    "cumprod": lambda u: (u < R).long().cumprod(0).sum(),
    "cumsum of rejections": lambda u: ((u >= R).cumsum(0) < 1).sum(),
    "loop": lambda u: 0 if u[0] >= R[0] else 1 if u[1] >= R[1] else 2,
    "argmin": lambda u: torch.cat([u < R, torch.tensor([False])]).int().argmin(),
    "all": lambda u: sum(int((u < R)[: i + 1].all()) for i in range(2)),
}


@pytest.mark.parametrize("count", LEADING.values(), ids=LEADING)
def test_leading_run(count):
    check(lambda g: count(uniform(g, 2)), {(0,): 0.7, (1,): 0.12, (2,): 0.18})


@pytest.mark.parametrize(
    "emit",
    [
        lambda g: uniform(g, 2) == 0.5,
        lambda g: uniform(g) < torch.empty(()).exponential_(generator=g),
        lambda g: torch.searchsorted(uniform(g, 3), 0.5),
        lambda g: torch.searchsorted(CDF, uniform(g, 1), side="right"),
        lambda g: uniform(g, 2).isfinite() & (uniform(g, 2).nan_to_num() < 0.5),
        lambda g: uniform(g, 3).sort().values < 0.5,
        lambda g: uniform(g, 3).argsort(),
    ],
)
def test_refused(emit):
    refused(emit)
