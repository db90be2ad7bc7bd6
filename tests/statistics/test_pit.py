import numpy as np
import pytest
from scipy import stats

from specverify.errors import UsageError
from specverify.statistics.pit import (
    bin_counts,
    pit_band,
    pit_interval,
    pit_lower,
    randomised_pit,
    ratio_order,
    uniformity_test,
)

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


def sparse_rows(rng: np.random.Generator, n: int, size: int) -> np.ndarray:
    rows = rng.integers(0, 4, (n, size)).astype(float)  # many zeros and ties
    rows[:, 0] += 1
    return rows / rows.sum(1, keepdims=True)


@pytest.mark.parametrize("order", ["ratio", "probability", "index"])
def test_interval_is_that_of_the_sorted_transform(order):
    rng = np.random.default_rng(9)
    p, q, tokens = sparse_rows(rng, 500, 12), sparse_rows(rng, 500, 12), rng.integers(0, 12, 500)
    orders = {"ratio": ratio_order(p, q), "probability": np.argsort(-p, kind="stable", axis=1)}
    lower, width = pit_interval(p, tokens, order, q if order == "ratio" else None)
    for v in (0.0, 0.3, BELOW_ONE):
        expected = randomised_pit(p, tokens, np.full(500, v), orders.get(order))
        np.testing.assert_allclose(lower + v * width, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("order", ["ratio", "probability", "index"])
def test_interval_stays_below_one_and_takes_rows_that_are_not_normalised(order):
    rng = np.random.default_rng(10)
    p, q = rng.dirichlet(np.full(7, 0.2), size=(2, 4000)).astype(np.float32)
    p[::7], q[::5] = np.eye(7)[0], 1 / 7
    tokens = rng.integers(0, 7, 4000)
    lower, width = pit_interval(3 * p, tokens, order, q)
    assert (lower >= 0).all()
    assert (width >= 0).all()
    assert (lower + BELOW_ONE * width).max() < 1
    normal = p.astype(float) / p.astype(float).sum(1, keepdims=True)
    np.testing.assert_allclose(width, normal[np.arange(4000), tokens], rtol=1e-6, atol=1e-15)


def test_chunks_of_rows_leave_no_seam():
    rng = np.random.default_rng(11)
    p, q = rng.dirichlet(np.ones(30_000), size=(2, 40))
    tokens = rng.integers(0, 30_000, 40)
    lower, width = pit_interval(p, tokens, "ratio", q)
    for row in (0, 17, 39):
        alone = pit_interval(p[row : row + 1], tokens[row : row + 1], "ratio", q[row : row + 1])
        assert (lower[row], width[row]) == (alone[0][0], alone[1][0])


def test_band_holds_uniform_numbers_and_shows_a_leak():
    rng = np.random.default_rng(12)
    even = pit_band(bin_counts(rng.random(20_000), 16), 0.01)
    assert even.distance < even.width
    assert even.p_value > 0.01
    leaked = pit_band(bin_counts(rng.random(20_000) ** 0.9, 16), 0.01)
    assert leaked.distance > leaked.width
    assert leaked.p_value < 0.01


def test_band_is_the_formula():
    band = pit_band([30, 10, 40, 20], 0.05)
    assert band.distance == pytest.approx(0.1)  # 0.40 against 0.50 after two bins
    assert band.p_value == pytest.approx(2 * np.exp(-2 * 100 * 0.01))
    assert band.width == pytest.approx(np.sqrt(np.log(40) / 200))
    assert pit_band([0, 0], 0.05) == (0, 1, 1)


def test_band_is_left_no_more_often_than_promised():
    rng = np.random.default_rng(13)
    runs = [pit_band(row, 0.1) for row in rng.multinomial(400, np.full(16, 1 / 16), size=2000)]
    left = sum(band.p_value <= 0.1 for band in runs)
    assert left == sum(band.distance >= band.width for band in runs)
    assert left <= 200 + 3 * np.sqrt(200)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: randomised_pit([[0.5, 0.5]], [2], [0.5]), "outside 0 to 1"),
        (lambda: randomised_pit([[0.5, 0.5]], [1], [1.0]), r"\[0, 1\)"),
        (lambda: randomised_pit([0.5, 0.5], [1], [0.1]), "needs probs"),
        (lambda: bin_counts([0.5], 1), "2 bins"),
        (lambda: bin_counts([1.0]), "randomised_pit"),
        (lambda: pit_interval([[0.5, 0.5]], [0], "ratio"), "pass q"),
        (lambda: pit_interval([[0.5, 0.5]], [0], "ids"), "got 'ids'"),
        (lambda: pit_interval([[0.5, 0.5]], [2], "index"), "outside 0 to 1"),
        (lambda: pit_interval([[0.5, 0.5]], [0], "ratio", [[1.0]]), "needs p"),
        (lambda: pit_band([1], 0.1), "2 bins"),
        (lambda: pit_band([1, 2], 1.0), "alpha"),
    ],
)
def test_invalid_input_is_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call()


@pytest.mark.parametrize("order", ["ratio", "probability", "index"])
def test_intervals_of_whole_rows_are_those_of_single_tokens(order):
    rng = np.random.default_rng(5)
    p, q = rng.dirichlet(np.full(7, 0.5), size=(2, 40))
    p[:5, 2] = 0
    q[3:8, 1:3] = 0
    p[10], q[10] = np.full(7, 1 / 7), np.full(7, 1 / 7)
    lower = pit_lower(p, order, q)
    for token in range(7):
        single, _ = pit_interval(p, np.full(40, token), order, q)
        np.testing.assert_allclose(lower[:, token], single, atol=1e-14)
    with pytest.raises(UsageError, match="pass q"):
        pit_lower(p, "ratio")
