import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specverify.decoding.alias_table import AliasTable, Scratch

BITS = 8
LARGEST = 1 - 2.0**-53


class FixedUniforms:
    """Stands in for a numpy generator and hands out one chosen value."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self, out: NDArray[np.float64]) -> None:
        out.fill(self.value)


def compile_rows(probs: NDArray[np.float64]) -> AliasTable:
    rows, vocab_size = probs.shape
    return AliasTable(probs, np.arange(rows * vocab_size).reshape(rows, vocab_size), BITS)


def draw(table: AliasTable, rows: NDArray[np.int64], generator) -> NDArray[np.int64]:
    out = np.empty(len(rows), np.int64)
    table.draw(rows * table.cells, generator, Scratch(len(rows)), out)
    return out


ROWS = [
    [1.0],
    [0.0, 1.0],
    [0.5, 0.5],
    [0.25, 0.25, 0.5],
    [0.0, 0.0, 1.0, 0.0, 0.0],
    [0.125] * 8,
    [0.1] * 10,
    [1e-17, 1.0, 1e-300],
    [1 - 2.0**-52, 2.0**-52],
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_compiled_law_is_the_row(row):
    table = compile_rows(np.array([row]))
    assert 0.5 * abs(table.probabilities(len(row)) - row).sum() <= len(row) * 2.0**-51


@given(st.lists(st.sampled_from([0, 1, 1, 2, 3, 5, 1000, 1e-9]), min_size=1, max_size=40))
def test_the_compiled_law_is_any_row_and_has_its_support(weights):
    if not sum(weights):
        weights = [1, *weights]
    row = np.array(weights, float) / sum(weights)
    law = compile_rows(row[None]).probabilities(len(row))[0]
    assert 0.5 * abs(law - row).sum() <= len(row) * 2.0**-51
    assert not law[row == 0].any()


def test_draws_follow_the_compiled_law_on_the_whole_grid():
    # Thirds are off the grid of 2^-10, so every cell boundary falls between two uniforms.
    probs = np.array([[1 / 3, 2 / 3, 0.0], [0.2, 0.3, 0.5]])
    table = compile_rows(probs)
    for row, expected in enumerate(probs):
        hits = np.zeros(3)
        for k in range(1024):
            hits[draw(table, np.array([row]), FixedUniforms(k / 1024))[0] & 255] += 1
        assert abs(hits / 1024 - expected).max() <= 4 / 1024


@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.parametrize("uniform", [0.0, 2.0**-53, 0.5, LARGEST])
def test_edge_uniforms_never_reach_an_impossible_token(row, uniform):
    probs = np.array([row, row])
    words = draw(compile_rows(probs), np.array([0, 1]), FixedUniforms(uniform))
    assert all(row[token] > 0 for token in words & 255)


def test_outcomes_carry_the_successor_of_their_own_row_and_token():
    probs = np.random.default_rng(0).dirichlet(np.ones(5), size=7)
    table = compile_rows(probs)
    rows = np.arange(7).repeat(100)
    words = draw(table, rows, np.random.default_rng(1))
    assert ((words >> BITS) == (rows * 5 + (words & 255)) * table.cells).all()
