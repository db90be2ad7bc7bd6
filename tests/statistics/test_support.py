from fractions import Fraction
from math import comb

import pytest
import torch
from scipy import stats

from specverify.errors import UsageError
from specverify.statistics.support import (
    ZERO_COIN,
    detectable_rate,
    floor_rate,
    hits_to_reject,
    support_test,
)


def exact_survival(hits: int, n: int, rate: Fraction) -> float:
    return float(
        sum(comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in range(hits, min(n, hits + 12)))
    )


@pytest.mark.parametrize("hits", [1, 2, 5, 9])
@pytest.mark.parametrize(("dtype", "bits"), [("float32", 23), ("float64", 52)])
def test_p_value_is_the_binomial_survival(hits, dtype, bits):
    result = support_test(hits, 1500, dtype=dtype)
    expected = exact_survival(hits, 1500, Fraction(1, 2**bits))
    assert result.p_value == pytest.approx(expected, rel=1e-10)
    assert (result.statistic, result.impossible, result.n) == (hits, hits, 1500)


def test_excused_hits_add_to_the_floor():
    result = support_test(3, 1500, excused=1e-3)
    assert result.p_value == pytest.approx(stats.binom.sf(2, 1500, 1e-3 + floor_rate("float32")))
    with pytest.raises(UsageError, match=r"excused must lie in \[0, 1\), got 1\.5"):
        support_test(3, 1500, excused=1.5)


def test_no_hits_is_no_evidence():
    assert support_test(0, 10**9).p_value == 1.0
    assert support_test(0, 0).p_value == 1.0


def test_the_allowance_of_float32_and_its_end():
    """1.2 hits are expected in ten million tokens: two are no finding, twenty are."""
    assert support_test(2, 10**7).p_value > 0.3
    assert support_test(20, 10**7).p_value < 1e-15
    assert support_test(1, 10**7, dtype="float64").p_value < 1e-8


def test_all_hits_do_not_break_the_tail():
    assert support_test(5, 5).p_value == pytest.approx(2.0 ** (-23 * 5), rel=1e-12)
    assert support_test(1000, 1000).p_value == 0.0  # 2^-23000 is below every float


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.bfloat16, "bfloat16"), (torch.float16, "float16")]
)
def test_half_width_uniforms_are_zero_as_often_as_stated(dtype, name):
    n = 8_000_000
    generator = torch.Generator().manual_seed(0)
    zeros = int((torch.rand(n, dtype=dtype, generator=generator) == 0).sum())
    assert stats.binomtest(zeros, n, ZERO_COIN[name]).pvalue > 1e-3
    assert floor_rate(name) == 2 * ZERO_COIN[name]


@pytest.mark.parametrize("n", [10, 10**4, 10**7])
@pytest.mark.parametrize("dtype", list(ZERO_COIN))
def test_hits_to_reject_is_the_threshold(n, dtype):
    hits = hits_to_reject(n, 1e-9, dtype=dtype)
    assert hits is not None
    assert support_test(hits, n, dtype=dtype).p_value <= 1e-9
    assert support_test(hits - 1, n, dtype=dtype).p_value > 1e-9


def test_detectable_rate_is_seen_with_the_stated_power():
    rate = detectable_rate(10**6, 1e-9, 0.999)
    hits = hits_to_reject(10**6, 1e-9)
    assert rate is not None
    assert hits is not None
    assert stats.binom.sf(hits - 1, 10**6, rate) == pytest.approx(0.999, rel=1e-9)


def test_too_few_tokens_can_not_reject():
    assert hits_to_reject(1, 1e-9, dtype="bfloat16") is None
    assert detectable_rate(1, 1e-9, dtype="bfloat16") is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: support_test(3, 2),
        lambda: support_test(-1, 2),
        lambda: support_test(1, 2, dtype="int8"),
        lambda: hits_to_reject(0, 0.1),
        lambda: detectable_rate(10, 0.1, 1.0),
    ],
)
def test_invalid_input_is_refused(call):
    with pytest.raises(UsageError):
        call()
