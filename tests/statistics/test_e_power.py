import math

import numpy as np
import pytest
from scipy import stats

from specverify.errors import UsageError
from specverify.statistics.dirichlet import log_dirichlet
from specverify.statistics.e_power import (
    detectable_dirichlet,
    detectable_kl,
    detectable_leak,
    dirichlet_evidence,
    hardest_leak,
    leak_kl,
    leak_spread,
    log_threshold,
    samples_needed_dirichlet,
    samples_needed_e,
    samples_needed_leak,
)
from specverify.statistics.power import chi_squared_divergence

L = log_threshold(1e-6)


def zipf_pair(vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(vocab_size)
    p = 1 / np.arange(1, vocab_size + 1)
    p /= p.sum()
    q = p**0.9 * np.exp(0.7 * rng.standard_normal(vocab_size))
    return p, q / q.sum()


@pytest.mark.parametrize(("threshold", "factor"), [(L, 42.2), (19.8, 51), (L + math.log(64), 48)])
def test_factors_of_statistics_md(threshold, factor):
    assert samples_needed_e(1e-4, threshold) == pytest.approx(factor * 1e4, rel=0.01)


def test_thresholds_add_up():
    assert log_threshold(1e-6, 400) == pytest.approx(19.8, abs=0.01)
    assert log_threshold(1e-6, 400, 1 / 64) == pytest.approx(19.8 + math.log(64), abs=0.01)


def test_64_components_need_57_and_detect_the_leak_of_statistics_md():
    threshold = log_threshold(1e-6, 400, 1.0) + math.log(64)
    assert samples_needed_e(1e-4, threshold) == pytest.approx(57e4, rel=0.02)
    leak = detectable_leak(10**6, 0.5, threshold)
    assert leak == pytest.approx(math.sqrt(114 / (10**6 * 0.5)), rel=0.02)
    assert detectable_leak(10, 0.5, threshold) is None


@pytest.mark.parametrize("vocab_size", [2, 64, 512])
@pytest.mark.parametrize("leak", [0.02, 0.2])
def test_the_oracle_process_needs_what_is_predicted(vocab_size, leak):
    rng = np.random.default_rng(3)
    p, q = zipf_pair(vocab_size)
    a = (1 - leak) * p + leak * q
    kl, spread = leak_kl(leak, p, q), leak_spread(leak, p, q)
    for n in (samples_needed_e(kl, L, 0.9), samples_needed_e(kl, L, 0.9, spread=spread)):
        late = rng.multinomial(int(1.15 * n), a, size=2000) @ np.log(a / p)
        early = rng.multinomial(int(0.85 * n), a, size=2000) @ np.log(a / p)
        assert (early >= L).mean() < 0.9 < (late >= L).mean()


@pytest.mark.parametrize(("cells", "even"), [(8, False), (64, True), (64, False)])
def test_the_dirichlet_process_needs_what_is_predicted(cells, even):
    rng = np.random.default_rng(4)
    p = np.full(cells, 1 / cells) if even else zipf_pair(cells)[0]
    a = p * np.exp(0.1 * rng.standard_normal(cells))
    a /= a.sum()
    n = samples_needed_dirichlet(chi_squared_divergence(a, p), cells, L, 0.9)

    def power(n: int) -> float:
        draws = rng.multinomial(n, a, size=300)
        return np.mean([log_dirichlet(counts, p) >= L for counts in draws])

    assert power(int(0.85 * n)) < 0.9 < power(int(1.15 * n))


def test_the_approximation_is_that_of_the_process():
    rng = np.random.default_rng(5)
    p = np.full(16, 1 / 16)
    for n in (2000, 50_000):
        counts = rng.multinomial(n, p)
        statistic = ((counts - n * p) ** 2 / (n * p)).sum()
        predicted = dirichlet_evidence(statistic, n, 16)
        assert predicted == pytest.approx(log_dirichlet(counts, p), abs=0.3)


def test_both_directions_agree():
    assert samples_needed_e(detectable_kl(70_000, L), L) in (70_000, 70_001)
    for cells in (2, 64, 5000):
        divergence = detectable_dirichlet(400_000, cells, L)
        needed = samples_needed_dirichlet(divergence, cells, L)
        assert needed == pytest.approx(400_000, rel=1e-4)


def test_kl_of_a_leak_is_exact_also_where_it_is_tiny():
    p, q = zipf_pair(64)
    a = 0.7 * p + 0.3 * q
    assert leak_kl(0.3, p, q) == pytest.approx(stats.entropy(a, p), rel=1e-12)
    second_order = chi_squared_divergence(q, p) / 2
    assert leak_kl(1e-7, p, q) == pytest.approx(1e-14 * second_order, rel=1e-5)
    assert leak_kl(0.0, p, q) == 0
    assert leak_kl(0.1, [1.0, 0.0], [0.5, 0.5]) == math.inf
    assert leak_kl(1.0, [0.5, 0.5], [1.0, 0.0]) == pytest.approx(math.log(2))
    assert leak_spread(1.0, [0.5, 0.5], [1.0, 0.0]) == 0


@pytest.mark.parametrize("seed", range(20))
def test_no_pair_is_harder_than_the_hardest(seed):
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(4, 0.7)), rng.dirichlet(np.full(4, 0.7))
    overlap = np.minimum(p, q).sum()
    leak = rng.uniform(0.01, 1)
    tv = leak * (1 - overlap)
    _, kl, _ = hardest_leak(tv, overlap)
    assert 2 * tv**2 <= kl * (1 + 1e-9)
    assert kl <= leak_kl(leak, p, q) * (1 + 1e-9)


def test_the_hardest_is_attained_and_costs_less_at_small_overlap():
    rate, kl, spread = hardest_leak(0.05, 0.7)
    p, q = np.array([rate, 1 - rate]), np.array([rate + 0.3, 0.7 - rate])
    assert np.minimum(p, q).sum() == pytest.approx(0.7)
    assert leak_kl(0.05 / 0.3, p, q) == pytest.approx(kl)
    assert leak_spread(0.05 / 0.3, p, q) == pytest.approx(spread)
    assert kl == pytest.approx(2 * 0.05**2, rel=0.01)
    assert hardest_leak(0.05, 0.1)[1] > 2 * kl
    assert samples_needed_leak(0.05, 0.1, L) < samples_needed_leak(0.05, 0.7, L) / 1.5
    assert samples_needed_leak(0.4, 0.7, L) is None
    assert samples_needed_leak(1e-4, 0.0, L) == pytest.approx(69_078, abs=5)


@pytest.mark.parametrize(
    "call",
    [
        lambda: log_threshold(0.0),
        lambda: log_threshold(1e-6, 0),
        lambda: samples_needed_e(0.0, L),
        lambda: samples_needed_e(math.inf, L),
        lambda: samples_needed_e(1e-3, -1.0),
        lambda: samples_needed_e(1e-3, L, 1.0),
        lambda: samples_needed_e(1e-3, L, spread=-1.0),
        lambda: samples_needed_e(1e-30, L),
        lambda: detectable_kl(0, L),
        lambda: detectable_leak(10, 0.0, L),
        lambda: leak_kl(1.1, [1.0], [1.0]),
        lambda: leak_kl(0.1, [1.0], [0.5, 0.5]),
        lambda: leak_spread(0.1, [1.0, 0.0], [0.5, 0.5]),
        lambda: hardest_leak(0.4, 0.7),
        lambda: samples_needed_leak(0.1, 1.0, L),
        lambda: samples_needed_dirichlet(0.0, 3, L),
        lambda: samples_needed_dirichlet(0.1, 1, L),
        lambda: detectable_dirichlet(0, 3, L),
    ],
)
def test_invalid_input_is_refused(call):
    with pytest.raises(UsageError):
        call()
