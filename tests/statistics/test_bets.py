import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from specverify.errors import UsageError
from specverify.statistics.bets import Bets

PLAIN, RAW = Bets.standard(raw=False), Bets.standard(raw=True)


def laws(kind: str, rng: np.random.Generator) -> list[np.ndarray]:
    """p, q, raw p, raw q of one row."""
    size = int(rng.integers(4, 40))
    p, q, raw_p, raw_q = (rng.dirichlet(np.full(size, 0.3)) for _ in range(4))
    first_half = np.arange(size) < size // 2
    if kind == "sparse":
        p, q, raw_p, raw_q = (
            np.where(rng.random(size) < 0.5, law, 0) + 0.1 * np.eye(size)[rng.integers(size)]
            for law in (p, q, raw_p, raw_q)
        )
    elif kind == "one-hot":
        p = np.eye(size)[rng.integers(size)]
    elif kind == "p = q":
        q, raw_q = p, raw_p
    elif kind == "nearly p = q":
        q = p * np.exp(1e-9 * rng.standard_normal(size))
    elif kind == "disjoint":
        p, q = np.where(first_half, p, 0), np.where(first_half, 0, q)
    elif kind == "nearly disjoint":
        p, q = np.where(first_half, p, 0), np.where(first_half, 1e-15 * q, q)
    elif kind == "peaked":
        p, q = p**20, q**15
    elif kind == "float32":
        p, q, raw_p, raw_q = (law.astype(np.float32) for law in (p, q, raw_p, raw_q))
    elif kind == "denormal":
        p[0], p[1], q[0] = 5e-324, 1e-310, 1.0
    return [p, q, raw_p, raw_q]


KINDS = [
    "random", "sparse", "one-hot", "p = q", "nearly p = q", "disjoint", "nearly disjoint",
    "peaked", "float32", "denormal",
]  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bets", [PLAIN, RAW], ids=["plain", "raw"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_component_has_more_mass_than_one(bets, kind):
    rng = np.random.default_rng(KINDS.index(kind))
    for _ in range(40):
        rows = laws(kind, rng)
        p = rows[0].astype(np.float64) / rows[0].sum(dtype=np.float64)
        table = bets.table(*rows)
        assert np.isfinite(table).all()
        assert (table[p == 0] == 0).all()
        assert (p @ np.exp(table)).max() <= 1 + 1e-12
        if kind not in ("denormal",):  # there mass is given up, and only there
            assert (p @ np.exp(table)).min() >= 1 - 1e-12


@pytest.mark.parametrize("kind", ["sparse", "float32"])
def test_one_row_for_all_tokens_and_one_token_a_row_agree(kind):
    rng = np.random.default_rng(0)
    rows = laws(kind, rng)
    tokens = np.arange(len(rows[0]))
    tiled = [np.tile(law, (len(tokens), 1)) for law in rows]
    np.testing.assert_array_equal(RAW.log_ratios(tokens, *tiled), RAW.table(*rows))


def test_chunks_leave_no_seam():
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.ones(3000), size=(2, 100))
    tokens = rng.integers(0, 3000, 100)
    whole = PLAIN.log_ratios(tokens, p, q)
    one = [PLAIN.log_ratios(tokens[i : i + 1], p[i : i + 1], q[i : i + 1])[0] for i in range(100)]
    np.testing.assert_allclose(whole, one, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("size", [5, 3000])
def test_tokens_may_share_a_law(size):
    rng = np.random.default_rng(3)
    laws = rng.dirichlet(np.ones(size), size=(4, 20))
    # In no order, and one law has no token.
    rows = rng.choice(19, 100)
    tokens = rng.integers(0, size, 100)
    shared = RAW.log_ratios(tokens, *laws, rows=rows)
    np.testing.assert_allclose(shared, RAW.log_ratios(tokens, *laws[:, rows]), rtol=1e-12)


def column(bets: Bets, name: str, *rows: np.ndarray) -> np.ndarray:
    """The law of a component."""
    return rows[0] * np.exp(bets.table(*rows)[:, bets.names.index(name)])


def test_components_are_the_laws_they_are_called():
    rng = np.random.default_rng(2)
    p, q, raw_p, raw_q = rng.dirichlet(np.ones(9), size=4)

    def rule(drawn, divided, residual):
        kept = drawn * np.minimum(1, p / divided)
        return kept + (1 - kept.sum()) * residual / residual.sum()

    def check(name, expected, bets=RAW):
        rows = (p, q, raw_p, raw_q) if bets is RAW else (p, q)
        np.testing.assert_allclose(column(bets, name, *rows), expected, rtol=1e-12)

    check("residual = p", rule(q, q, p), PLAIN)
    check("residual = p, diluted 0.1", 0.9 * p + 0.1 * rule(q, q, p), PLAIN)
    check("ratio with raw q, residual = (p-raw q)+", rule(q, raw_q, np.maximum(p - raw_q, 0)))
    check("ratio with raw q, residual = |p-q|", rule(q, raw_q, np.abs(p - q)))
    check("draft from raw q, residual = (q-p)+", rule(raw_q, q, np.maximum(q - p, 0)))
    check("draft and ratio with raw q, residual = p", rule(raw_q, raw_q, p))
    check("leak to q, 1", q)
    check("leak to raw p, 0.1", 0.9 * p + 0.1 * raw_p)
    check("leak to uniform, 0.01", 0.99 * p + 0.01 / 9, PLAIN)
    tilted = p * np.clip(q / p, np.exp(-5), np.exp(5)) ** -0.25
    check("tilt ln(q/p), -0.25", tilted / tilted.sum(), PLAIN)
    raised = p * np.exp(0.25 * (q > p))
    check("tilt q > p, 0.25", raised / raised.sum(), PLAIN)
    joint = p**0.875 * (q / p) ** -0.25
    check("tilt ln(q/p), -0.25, temperature 1.14", joint / joint.sum(), PLAIN)
    check("temperature 0.667", p**1.5 / (p**1.5).sum(), PLAIN)


def test_left_out_laws_are_leaks():
    """With one q, corrections from (q-p)+ and |p-q| give q and (p + q)/2."""
    p, q = np.random.default_rng(3).dirichlet(np.ones(9), size=2)
    kept, below, away = np.minimum(p, q), np.maximum(q - p, 0), np.abs(p - q)
    np.testing.assert_allclose(kept + (1 - kept.sum()) * below / below.sum(), q)
    np.testing.assert_allclose(kept + (1 - kept.sum()) * away / away.sum(), (p + q) / 2)


def test_leaks_onto_impossible_tokens_are_conditioned_on_the_others():
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.1, 0.3, 0.6])
    d = PLAIN.leak_grid[12]
    expected = ((1 - d) * p + d * q)[:2] / (1 - 0.6 * d)
    table = PLAIN.table(p, q)[:, PLAIN.leak_index[12]]
    np.testing.assert_allclose(np.exp(table[:2]) * p[:2], expected, rtol=1e-13)
    assert table[2] == 0


def test_a_negative_leak_is_bet_on_only_where_it_is_nonnegative():
    name = "leak away from q, 0.1"
    p, mild = np.array([0.2, 0.8]), np.array([0.3, 0.7])
    np.testing.assert_allclose(column(PLAIN, name, p, mild), 1.1 * p - 0.1 * mild, rtol=1e-13)
    p, strong = np.array([0.01, 0.99]), np.array([0.9, 0.1])
    np.testing.assert_array_equal(column(PLAIN, name, p, strong), p)


def test_leak_grid_names_its_components():
    for bets in (PLAIN, RAW):
        assert (bets.leak_grid[0], bets.leak_grid[-1]) == (1e-4, 1)
        names = [bets.names[index] for index in bets.leak_index]
        assert names == [f"leak to q, {d:.2g}" for d in bets.leak_grid]


def test_weights_names_and_families():
    for bets in (PLAIN, RAW):
        weights = np.exp(bets.log_weights)
        assert weights.sum() == pytest.approx(1, rel=1e-12)
        assert len(set(bets.names)) == len(bets.names) == len(bets.families) == len(weights)
        library = np.array([family == "library" for family in bets.families])
        assert weights[library].sum() == pytest.approx(2 / 3, rel=1e-12)
        assert set(bets.families) == {"library", "agnostic"}
    assert not any("raw" in name for name in PLAIN.names)
    with pytest.raises(FrozenInstanceError):
        PLAIN.names = ()  # type: ignore[misc]


def test_without_a_draft_bets_on_it_are_zero():
    p = np.random.default_rng(4).dirichlet(np.ones(50))
    table = PLAIN.table(p, p)
    named = enumerate(PLAIN.names)
    bets_on_q = [
        i for i, name in named if ("q" in name or "residual" in name) and "temp" not in name
    ]
    assert np.abs(table[:, bets_on_q]).max() <= 1e-15


def test_a_law_that_forbids_the_token_costs_a_finite_amount():
    p, q = np.array([[0.5, 0.5]]), np.array([[1.0, 0.0]])
    values = PLAIN.log_ratios([1], p, q)[0]
    assert values[PLAIN.leak_index[-1]] == -700
    assert values[PLAIN.leak_index[0]] == pytest.approx(math.log(1 - 1e-4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RAW.log_ratios([0], [[1.0]], [[1.0]]), "pass p_raw and q_raw"),
        (lambda: PLAIN.log_ratios([0], [[1.0]], [[0.5, 0.5]]), "one shape"),
        (lambda: PLAIN.log_ratios([[0]], [[1.0]], [[1.0]]), r"tokens \[N\]"),
        (lambda: PLAIN.log_ratios([0.0], [[1.0]], [[1.0]]), "integer tokens"),
        (lambda: PLAIN.log_ratios([2], [[0.5, 0.5]], [[0.5, 0.5]]), "outside 0 to 1"),
        (
            lambda: PLAIN.log_ratios([0], [[1.0]], [[1.0]], rows=np.array([1])),
            "rows run from 1 to 1, of 1 laws",
        ),
        (lambda: PLAIN.log_ratios([0], [[0.5, -0.5]], [[0.5, 0.5]]), "row 0 is no law"),
        (lambda: PLAIN.log_ratios([0], [[0.5, 0.5]], [[0.0, 0.0]]), "row 0 is no law"),
        (lambda: PLAIN.table([math.nan, 0.5], [0.5, 0.5]), "no law"),
    ],
)
def test_invalid_input_is_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call()
