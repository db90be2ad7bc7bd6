import time
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specverify.errors import UsageError
from specverify.exact import prefix_tree
from specverify.exact.prefix_tree import ENDED_EARLY, ENDED_LATE, IMPOSSIBLE, PrefixTree


class Table:
    """Next-token distributions by position and the last two tokens, some entries 0."""

    def __init__(self, vocab_size: int, seed: int, zeros: float = 0.0) -> None:
        rng = np.random.default_rng(seed)
        shape = (8, vocab_size + 1, vocab_size + 1, vocab_size)
        rows = rng.random(shape) ** 2 * (rng.random(shape) >= zeros)
        rows[..., 0] += 0.01
        self.rows = rows / rows.sum(-1, keepdims=True)

    def __call__(self, prefixes):
        none = np.full(len(prefixes), -1)
        last = [prefixes[:, -k] if prefixes.shape[1] >= k else none for k in (1, 2)]
        return self.rows[prefixes.shape[1], last[0], last[1]]

    def mass(self, sequence) -> float:
        return float(
            np.prod([self(np.array([sequence[:t]], int))[0, x] for t, x in enumerate(sequence)])
        )


def ends_with(*stops):
    """Whether a prefix ends in one of the stop sequences."""

    def is_end(prefixes):
        ended = np.zeros(len(prefixes), bool)
        for stop in stops:
            if prefixes.shape[1] >= len(stop):
                ended |= (prefixes[:, -len(stop) :] == stop).all(1)
        return ended

    return is_end


def brute_force(table, vocab_size, length, is_end=None):
    """The stopped joint distribution by walking every sequence on its own."""
    joint = {}
    for full in product(range(vocab_size), repeat=length):
        cut = next(
            (t for t in range(1, length) if is_end and is_end(np.array([full[:t]]))[0]), length
        )
        joint[full[:cut]] = table.mass(full[:cut])
    return {key: mass for key, mass in joint.items() if mass > 0}


def padded(rows, length):
    return np.array([[*row, *[-1] * (length - len(row))] for row in rows])


STOPS = [None, ends_with((2,)), ends_with((0, 1), (2, 2), (1,))]


@pytest.mark.parametrize("is_end", STOPS, ids=["none", "token", "sequences"])
@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_full_tree_is_the_brute_force_product(is_end, zeros):
    table = Table(3, seed=1, zeros=zeros)
    tree = PrefixTree.grow(table, 3, 5, is_end)
    expected = brute_force(table, 3, 5, is_end)
    found = tree.sequences()
    assert found.keys() == expected.keys()
    assert max(abs(found[key] - expected[key]) for key in found) < 1e-15
    assert tree.leaf_probabilities().sum() == pytest.approx(1, abs=1e-12)


def classify(run, table, tree, is_end, minimum_mass):
    """The cell of one run by the definition, token by token: its sequence, its rest, or a code."""
    prefix, mass = (), 1.0
    for token in run:
        if token < 0:
            return ENDED_EARLY
        if prefix and is_end and is_end(np.array([prefix]))[0]:
            return ENDED_LATE
        if len(prefix) == tree.length:
            return prefix
        mass *= table(np.array([prefix], int))[0, token]
        if mass == 0:
            return IMPOSSIBLE
        if mass < minimum_mass:
            return ("rest", prefix)
        prefix += (token,)
        rest = run[len(prefix) :]
        if all(x < 0 for x in rest) and (
            len(prefix) == tree.length or (is_end and is_end(np.array([prefix]))[0])
        ):
            return prefix
    return ENDED_EARLY


@given(
    seed=st.integers(0, 10**6),
    minimum_mass=st.sampled_from([0.0, 0.01, 0.05, 0.3]),
    stop=st.sampled_from(STOPS),
)
def test_adaptive_partition_and_location_follow_the_definition(seed, minimum_mass, stop):
    table = Table(3, seed, zeros=0.3)
    tree = PrefixTree.grow(table, 3, 4, stop, minimum_mass=minimum_mass)
    assert abs(tree.leaf_probabilities().sum() - 1) < 1e-12
    assert (tree.leaf_probabilities()[~tree.rest] >= minimum_mass).all()

    runs = np.random.default_rng(seed).integers(-1, 3, size=(300, 5))
    runs[(runs < 0).cumsum(1) > 0] = -1
    runs[:10, 1] = 2  # some runs resume after padding
    for run, cell in zip(runs.tolist(), tree.locate(runs).tolist(), strict=True):
        expected = classify(run, table, tree, stop, minimum_mass)
        if isinstance(expected, int):
            assert cell == expected
        else:
            assert cell >= 0
            sequence = tuple(tree.tokens[cell][tree.tokens[cell] >= 0].tolist())
            assert (("rest", sequence) if tree.rest[cell] else sequence) == expected


def test_rest_cells_hold_exactly_the_mass_of_the_merged_children():
    table = Table(4, seed=3)
    tree = PrefixTree.grow(table, 4, 3, minimum_mass=0.03)
    masses = np.zeros(len(tree.rest))
    for sequence, mass in PrefixTree.grow(table, 4, 3).sequences().items():
        masses[tree.locate([sequence])[0]] += mass
    assert 0 < tree.rest.sum() < len(tree.rest)
    np.testing.assert_allclose(masses, tree.leaf_probabilities(), rtol=0, atol=1e-15)


def test_located_samples_have_the_cell_probabilities():
    table, rng, n = Table(4, seed=6), np.random.default_rng(0), 50_000
    stop = ends_with((3,))
    runs = np.full((n, 4), -1)
    alive = np.ones(n, bool)
    for t in range(4):
        u = rng.random((n, 1))
        token = (table(runs[:, :t]).cumsum(1) <= u).sum(1).clip(max=3)
        runs[alive, t] = token[alive]
        alive &= token != 3
    tree = PrefixTree.grow(table, 4, 4, stop, minimum_mass=25 / n)
    counts = np.bincount(tree.locate(runs), minlength=len(tree.rest))
    expected = n * tree.leaf_probabilities()
    assert (np.abs(counts - expected) < 5.5 * np.sqrt(expected) + 5).all()


def test_codes_for_runs_that_break_the_contract():
    def conditional(prefixes):
        return np.tile([0.5, 0.25, 0.25, 0.0], (len(prefixes), 1))

    tree = PrefixTree.grow(conditional, 4, 3, ends_with((2,)))
    runs = padded(
        [(0, 0, 0), (0, 2), (0, 1), (), (0, 3, 0), (3,), (0, 2, 1), (2, 2), (0, 0, 2, 1), (0, 0)], 4
    )
    cells = tree.locate(runs)
    assert tree.tokens[cells[0]].tolist() == [0, 0, 0]
    assert tree.tokens[cells[1]].tolist() == [0, 2, -1]
    early, late = ENDED_EARLY, ENDED_LATE
    assert cells[2:].tolist() == [early, early, IMPOSSIBLE, IMPOSSIBLE, late, late, late, early]


def test_runs_longer_than_the_tree_are_judged_by_their_first_tokens():
    tree = PrefixTree.grow(Table(3, seed=0), 3, 2)
    cells = tree.locate([[1, 2, 0, 1], [1, 2, -1, -1]])
    assert cells[0] == cells[1] >= 0


def test_rows_without_columns_ended_early():
    tree = PrefixTree.grow(Table(3, seed=0), 3, 2)
    assert tree.locate(np.zeros((2, 0), int)).tolist() == [ENDED_EARLY, ENDED_EARLY]
    assert tree.locate(np.zeros((0, 2), int)).tolist() == []


def test_one_token_vocabulary():
    tree = PrefixTree.grow(lambda prefixes: np.ones((len(prefixes), 1)), 1, 3)
    assert tree.sequences() == {(0, 0, 0): 1.0}


def test_levels_may_be_cut_into_calls(monkeypatch):
    table, sizes = Table(4, seed=2), []
    whole = PrefixTree.grow(table, 4, 5, ends_with((1, 0)), minimum_mass=1e-3)
    monkeypatch.setattr(prefix_tree, "_ENTRIES_A_CALL", 28)

    def recording(prefixes):
        sizes.append(len(prefixes))
        return table(prefixes)

    pieces = PrefixTree.grow(recording, 4, 5, ends_with((1, 0)), minimum_mass=1e-3)
    assert max(sizes) == 7
    runs = np.random.default_rng(1).integers(0, 4, size=(500, 5))
    a, b = whole.locate(runs), pieces.locate(runs)
    assert ((a < 0) == (b < 0)).all()
    assert (whole.tokens[a[a >= 0]] == pieces.tokens[b[b >= 0]]).all()
    assert (whole.probabilities[a[a >= 0]] == pieces.probabilities[b[b >= 0]]).all()


def test_large_trees_are_fast():
    table = Table(8, seed=0)
    start = time.perf_counter()
    tree = PrefixTree.grow(table, 8, 6)
    tree.locate(np.random.default_rng(0).integers(0, 8, size=(100_000, 6)))
    assert time.perf_counter() - start < 5
    assert len(tree.leaf_probabilities()) == 8**6
    assert tree.leaf_probabilities().sum() == pytest.approx(1, abs=1e-12)

    rows = np.random.default_rng(1).dirichlet(np.full(1024, 0.05), size=1025)
    adaptive = PrefixTree.grow(
        lambda prefixes: rows[prefixes[:, -1] if prefixes.shape[1] else [1024]],
        1024,
        5,
        minimum_mass=2.5e-4,
    )
    assert 100 < len(adaptive.children) < 4000
    assert adaptive.leaf_probabilities().sum() == pytest.approx(1, abs=1e-12)


def test_sequences_of_a_partition_are_refused():
    tree = PrefixTree.grow(Table(3, seed=0), 3, 3, minimum_mass=0.2)
    with pytest.raises(UsageError, match="minimum_mass=0"):
        tree.sequences()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 0}, "length >= 1"),
        ({"minimum_mass": 1.0}, "minimum_mass"),
        ({"vocab_size": 4}, r"must return \[1, 4\]"),
        ({"maximum_entries": 20}, "raise minimum_mass"),
        ({"conditional": lambda prefixes: np.full((len(prefixes), 3), 0.5)}, "no distribution"),
        ({"conditional": lambda prefixes: np.full((len(prefixes), 3), np.nan)}, "no distribution"),
        ({"is_end": lambda prefixes: np.zeros(1)}, "must return bool"),
    ],
)
def test_invalid_input_is_refused(arguments, message):
    valid = {"conditional": Table(3, seed=0), "vocab_size": 3, "length": 3, "is_end": None}
    with pytest.raises(UsageError, match=message):
        PrefixTree.grow(**(valid | arguments))


@pytest.mark.parametrize("runs", [[0, 1], [[0, 3]], [[0, -2]]])
def test_runs_of_wrong_shape_or_ids_are_refused(runs):
    with pytest.raises(UsageError):
        PrefixTree.grow(Table(3, seed=0), 3, 2).locate(runs)
