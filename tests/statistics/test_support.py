import math

import numpy as np
import pytest
import torch
from scipy import stats

from specverify.errors import UsageError
from specverify.statistics.support import (
    ZERO_COIN,
    detectable_rate,
    floor_rate,
    hits_to_reject,
    samples_needed_support,
    support_e_value,
)


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.bfloat16, "bfloat16"), (torch.float16, "float16")]
)
def test_half_width_uniforms_are_zero_as_often_as_stated(dtype, name):
    n = 8_000_000
    generator = torch.Generator().manual_seed(0)
    zeros = int((torch.rand(n, dtype=dtype, generator=generator) == 0).sum())
    assert stats.binomtest(zeros, n, ZERO_COIN[name]).pvalue > 1e-3
    assert floor_rate(name) == 2 * ZERO_COIN[name]


@pytest.mark.parametrize("excused", [0.0, 1e-3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_e_process_has_mean_one_at_the_floor_and_less_below_it(dtype, excused):
    """Exactly, over all numbers of hits: at rho, at half of it, and, the control, at 1.2 rho."""
    n, rho = 400, floor_rate(dtype) + excused
    hits = np.arange(n + 1)
    values = np.array(
        [support_e_value(int(h), n, dtype=dtype, excused=excused).statistic for h in hits]
    )

    def mean(rate):
        return float(np.exp(values + stats.binom.logpmf(hits, n, rate)).sum())

    assert mean(rho) == pytest.approx(1.0, rel=1e-9)
    assert mean(rho / 2) < 1
    assert mean(1.2 * rho) > 1


def test_watched_continuously_it_keeps_its_level_and_the_fixed_n_test_does_not():
    rng, runs, n = np.random.default_rng(1), 500, 10_000
    rho, alpha = floor_rate("bfloat16"), 0.05
    crossed = {"e": 0, "fixed": 0}
    # Hits alone raise the evidence, so only the looks right after one need to be taken.
    for _ in range(runs):
        times = np.cumsum(rng.geometric(rho, 60))
        times = times[times <= n]
        hits = np.arange(1, len(times) + 1)
        crossed["fixed"] += (stats.binom.sf(hits - 1, times, rho) <= alpha).any()
        logs = [
            support_e_value(int(h), int(t), dtype="bfloat16").statistic
            for h, t in zip(hits, times, strict=True)
        ]
        crossed["e"] += max(logs) >= -math.log(alpha)
    assert stats.binom.sf(crossed["e"] - 1, runs, alpha) > 1e-3
    assert crossed["fixed"] > 2 * alpha * runs


def test_e_value_without_hits_is_at_most_one():
    for n in (0, 1, 10**6, 10**9):
        result = support_e_value(0, n)
        assert result.statistic <= 1e-12
        assert result.p_value == pytest.approx(1.0)


def test_e_value_of_the_allowance_and_its_end():
    assert support_e_value(2, 10**7).p_value > 0.3
    assert support_e_value(20, 10**7).p_value < 1e-12
    assert support_e_value(1, 10**6, dtype="float64").p_value < 1e-6
    result = support_e_value(20, 10**7)
    assert (result.name, result.cells, result.impossible) == ("support", 1, 20)
    assert result.p_value == pytest.approx(math.exp(-result.statistic))


@pytest.mark.parametrize("excused", [0.3, 0.6, 0.95, 0.999])
def test_a_large_excused_rate_leaves_little_to_find(excused):
    result = support_e_value(int(1000 * excused), 1000, dtype="bfloat16", excused=excused)
    assert result.statistic < 0.1
    assert support_e_value(1000, 1000, dtype="bfloat16", excused=0.999).statistic == 0.0


@pytest.mark.parametrize("n", [10, 10**4, 10**7])
@pytest.mark.parametrize("dtype", list(ZERO_COIN))
def test_hits_to_reject_is_the_threshold(n, dtype):
    hits = hits_to_reject(n, 1e-9, dtype=dtype)
    assert hits is not None
    assert support_e_value(hits, n, dtype=dtype).p_value <= 1e-9 * (1 + 1e-9)
    assert support_e_value(hits - 1, n, dtype=dtype).p_value > 1e-9
    assert hits_to_reject(n, 1e-9, dtype=dtype, excused=0.2) in (None, *range(hits, n + 1))


def test_detectable_rate_is_seen_with_the_stated_power():
    rate = detectable_rate(10**6, 1e-9, 0.999)
    hits = hits_to_reject(10**6, 1e-9)
    assert rate is not None
    assert hits is not None
    assert stats.binom.sf(hits - 1, 10**6, rate) == pytest.approx(0.999, rel=1e-9)


@pytest.mark.parametrize("rate", [0.3, 1e-3, 1e-5])
def test_samples_for_a_rate_are_the_fewest(rate):
    n = samples_needed_support(rate, 1e-7, 0.99)

    def power(n: int) -> float:
        return stats.binom.sf(hits_to_reject(n, 1e-7) - 1, n, rate)

    assert power(n) >= 0.99 > power(n - 1)


def test_a_rate_that_coins_explain_needs_what_does_not_exist():
    assert samples_needed_support(2.0**-23, 1e-7) is None
    assert samples_needed_support(2.0**-23, 1e-7, dtype="float64") is not None


def test_too_few_tokens_can_not_reject():
    assert hits_to_reject(1, 1e-9, dtype="bfloat16") is None
    assert detectable_rate(1, 1e-9, dtype="bfloat16") is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: support_e_value(3, 2),
        lambda: support_e_value(1, 2, dtype="int8"),
        lambda: support_e_value(1, 2, excused=1.0),
        lambda: support_e_value(-1, 2),
        lambda: samples_needed_support(0.0, 1e-6),
        lambda: hits_to_reject(0, 0.1),
        lambda: detectable_rate(10, 0.1, 1.0),
    ],
)
def test_invalid_input_is_refused(call):
    with pytest.raises(UsageError):
        call()
