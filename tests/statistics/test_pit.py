import numpy as np
import pytest
from scipy import stats

from specverify.errors import UsageError
from specverify.statistics.pit import bin_counts, randomised_pit, ratio_order, uniformity_test

BELOW_ONE = np.nextafter(1.0, 0.0)


def draw(rng: np.random.Generator, probs: np.ndarray) -> np.ndarray:
    return (probs.cumsum(1) <= rng.random((len(probs), 1)) * probs.sum(1, keepdims=True)).sum(1)


@pytest.mark.parametrize("order", [None, [3, 0, 2, 1]])
def test_intervals_of_the_tokens_tile_the_unit_interval(order):
    law = np.array([0.5, 0.125, 0.0, 0.375])
    probs, tokens = np.tile(law, (4, 1)), np.arange(4)
    low = randomised_pit(probs, tokens, np.zeros(4), order)
    high = randomised_pit(probs, tokens, np.full(4, BELOW_ONE), order)
    edge = 0.0
    for token in order or range(4):
        assert low[token] == pytest.approx(edge, abs=1e-15)
        edge += law[token]
        assert high[token] == pytest.approx(edge, abs=1e-15)
    assert high.max() < 1


def test_each_row_has_its_own_law_and_order():
    probs = np.array([[0.25, 0.75], [0.5, 0.5]])
    u = randomised_pit(probs, [1, 1], [0.5, 0.5], [[0, 1], [1, 0]])
    assert u.tolist() == [0.625, 0.25]


@pytest.mark.parametrize("by_ratio", [False, True])
def test_uniform_under_the_null(by_ratio):
    rng = np.random.default_rng(4)
    p, q = (rng.dirichlet(np.full(20, 0.3), size=40_000) for _ in range(2))
    u = randomised_pit(p, draw(rng, p), rng.random(40_000), ratio_order(p, q) if by_ratio else None)
    assert stats.kstest(u, "uniform").pvalue > 1e-3
    assert uniformity_test(bin_counts(u)).p_value > 1e-3


def test_strata_add_up():
    rng = np.random.default_rng(5)
    rows = [bin_counts(rng.random(n)) for n in (1000, 2000)]
    result = uniformity_test(rows)
    assert (result.df, result.strata) == (30, 2)
    assert result.p_value > 1e-3


def test_a_leak_of_draft_mass_is_seen_in_ratio_order():
    rng = np.random.default_rng(6)
    p, q = (rng.dirichlet(np.ones(20), size=20_000) for _ in range(2))
    tokens = draw(rng, 0.9 * p + 0.1 * q)
    u = randomised_pit(p, tokens, rng.random(20_000), ratio_order(p, q))
    assert uniformity_test(bin_counts(u)).p_value < 1e-9
    assert u.mean() > 0.5


def test_the_largest_gap_in_ratio_order_is_the_total_variation_of_a_leak():
    rng = np.random.default_rng(8)
    p, q = rng.dirichlet(np.ones(30)), rng.dirichlet(np.ones(30))
    leaked = 0.8 * p + 0.2 * q
    gap = np.abs((leaked - p)[ratio_order(p, q)].cumsum()).max()
    assert gap == pytest.approx(np.abs(leaked - p).sum() / 2, rel=1e-12)


def test_ratio_order_puts_impossible_tokens_last_and_ties_by_id():
    assert ratio_order([0.5, 0.0, 0.25, 0.25], [0.5, 0.25, 0.0, 0.25]).tolist() == [2, 0, 3, 1]


def test_bin_counts_of_shards_add_up():
    u = np.random.default_rng(0).random(1000)
    assert (bin_counts(u[:300]) + bin_counts(u[300:])).tolist() == bin_counts(u).tolist()
    assert bin_counts([0.0, BELOW_ONE], 7).tolist() == [1, 0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: randomised_pit([[0.5, 0.5]], [2], [0.5]), "outside 0 to 1"),
        (lambda: randomised_pit([[0.5, 0.5]], [1], [1.0]), r"\[0, 1\)"),
        (lambda: randomised_pit([0.5, 0.5], [1], [0.1]), "needs probs"),
        (lambda: bin_counts([0.5], 1), "2 bins"),
        (lambda: bin_counts([1.0]), "randomised_pit"),
    ],
)
def test_invalid_input_is_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call()
