import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specverify.verification import acceptance, residual

TINY = 5e-324


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("p", "q", "expected"),
    [
        (0.25, 0.5, 0.5),
        (0.5, 0.25, 1.0),
        (0.3, 0.3, 1.0),
        (0.0, 0.5, 0.0),
        (0.5, 0.0, 1.0),
        (0.0, 0.0, 0.0),
        (1.0, TINY, 1.0),
        (TINY, TINY, 1.0),
        (TINY, 2 * TINY, 0.5),
    ],
)
def test_acceptance(p, q, expected):
    assert acceptance(rows(p), rows(q)).tolist() == [expected]


def test_acceptance_of_equal_rows_leaves_no_coin_that_rejects():
    """p / q is exactly 1 for equal numbers, which u * q < p would not be for subnormal ones."""
    p = torch.rand(10_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + TINY
    assert bool((acceptance(p, p) == 1).all())
    coin, q = 1 - 2.0**-53, rows(TINY)
    assert not bool(coin * q < q)
    assert bool(coin < acceptance(q, q))


@pytest.mark.parametrize(
    ("p", "q", "expected"),
    [
        ([0.5, 0.5, 0.0], [0.25, 0.25, 0.5], [0.5, 0.5, 0.0]),
        ([0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [1.0, 0.0, 0.0]),
        ([0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]),
        ([0.5, 0.5], [0.5, 0.5], [0.5, 0.5]),
        ([0.0, 1.0], [0.0, 1.0], [0.0, 1.0]),
        ([1.0], [1.0], [1.0]),
        ([1.0, TINY], [1.0, 0.0], [0.0, 1.0]),
    ],
)
def test_residual(p, q, expected):
    assert residual(rows(*p), rows(*q)).tolist() == expected


def test_residual_of_a_weighted_prefix():
    p, q = rows([0.5, 0.5], [0.5, 0.5]), rows([0.125, 0.875], [0.5, 0.5])
    assert residual(p, q, rows(0.5, 0.5)).tolist() == [[1.0, 0.0], [0.5, 0.5]]


def test_rejection_by_rounding_falls_back_to_the_support_of_p():
    """q an ulp above p everywhere: rejections are possible, (p - q)+ is zero, p = 0 stays out."""
    p = rows(0.25, 0.75, 0.0)
    q = torch.nextafter(p, torch.ones_like(p)) * (p > 0)
    assert bool((acceptance(p, q) < 1)[:2].any())
    assert residual(p, q).tolist() == p.tolist()


WEIGHTS = st.lists(st.integers(0, 8), min_size=1, max_size=6).filter(any)


@given(WEIGHTS, st.data())
def test_zero_residual_is_never_needed(weights, data):
    """Where (p - q)+ is zero no token q proposes can be rejected; elsewhere the rejected mass is
    the excess, which is what makes norm((p - q)+) the right correction.
    """
    other = data.draw(
        st.lists(st.integers(0, 8), min_size=len(weights), max_size=len(weights)).filter(any)
    )
    p, q = (torch.tensor(w, dtype=torch.float64) / sum(w) for w in (weights, other))
    rejected = (q * (1 - acceptance(p, q))).sum().item()
    excess = (p - q).clamp(min=0).sum().item()
    assert rejected == pytest.approx(excess, abs=1e-15)
    if excess == 0:
        assert bool((acceptance(p, q)[q > 0] == 1).all())
    emitted = torch.minimum(p, q) + rejected * residual(p, q)
    np.testing.assert_allclose(emitted, p, atol=1e-15)
    assert bool((residual(p, q)[p == 0] == 0).all())


def test_tables_compile_in_one_call():
    generator = torch.Generator().manual_seed(1)
    p, q = torch.rand((2, 7, 5), dtype=torch.float64, generator=generator).softmax(-1)
    table = residual(p, q)
    assert table.shape == (7, 5)
    for row in range(7):
        assert table[row].tolist() == residual(p[row], q[row]).tolist()
        assert acceptance(p, q)[row].tolist() == acceptance(p[row], q[row]).tolist()


def test_lower_precision_is_computed_in_float64():
    p, q = torch.tensor([0.75, 0.25]).half(), torch.tensor([0.25, 0.75]).half()
    assert acceptance(p, q).dtype == residual(p, q).dtype == torch.float64
    assert acceptance(p, q).tolist() == [1.0, 1 / 3]
