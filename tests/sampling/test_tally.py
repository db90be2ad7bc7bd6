"""Tallies against counting by hand."""

from collections import Counter

import numpy as np
import pytest

from specverify.exact.prefix_tree import PrefixTree
from specverify.sampling.tally import Batch, Tally

V, LENGTH, END = 3, 3, 2


def conditional(prefixes):
    """Distributions that depend on the last token; nothing follows END."""
    last = prefixes[:, -1] if prefixes.shape[1] else np.zeros(len(prefixes), np.int64)
    table = np.array([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [1.0, 0.0, 0.0]])
    return table[last]


def ends(prefixes):
    return prefixes[:, -1] == END


@pytest.fixture
def tree():
    return PrefixTree.grow(conditional, V, LENGTH, ends)


def batch(rows, required, impossible=()):
    tokens = np.full((len(rows), max(map(len, rows))), -1, np.int64)
    for row, values in enumerate(rows):
        tokens[row, : len(values)] = values
    marks = np.zeros(tokens.shape, np.bool_)
    for row, column in impossible:
        marks[row, column] = True
    return Batch(tokens, np.array(required), marks)


def sampled(n, seed):
    rng = np.random.default_rng(seed)
    runs = []
    for _ in range(n):
        run = []
        while len(run) < LENGTH and END not in run:
            run.append(int(rng.choice(V, p=conditional(np.array([run], np.int64))[0])))
        runs.append(run)
    return runs


def test_counts_equal_counting_by_hand(tree):
    runs = sampled(500, seed=1)
    tally = Tally(tree)
    for part in (runs[:200], runs[200:]):
        tally.add(batch(part, [len(run) for run in part]))
    assert tally.runs == 500
    assert tally.tokens == sum(map(len, runs))
    assert tally.first.tolist() == [Counter(run[0] for run in runs)[v] for v in range(V)]
    whole = Counter(map(tuple, runs))
    cells = {
        tuple(row[row >= 0].tolist()): n for row, n in zip(tree.tokens, tally.cells, strict=True)
    }
    assert {key: n for key, n in cells.items() if n} == dict(whole)
    assert tally.wrong_ends == tally.impossible == 0


def test_runs_that_end_wrongly_are_counted_apart(tree):
    tally = Tally(tree)
    tally.add(batch([[0, 1], [0, 2, 0], [1, 1, 1]], [0, 2, 3]))
    tally.add(batch([[2, 2]], [1]))
    assert tally.wrong_ends == 3
    assert tally.wrong_end_example == [0, 1]
    assert tally.cells.sum() == 1
    assert tally.first.sum() == tally.runs == 4


def test_impossible_tokens_and_the_first_run_that_has_one(tree):
    tally = Tally(tree)
    tally.add(batch([[0, 0, 0], [1, 0, 1]], [3, 3], impossible=[(1, 1), (1, 2)]))
    tally.add(batch([[0, 0, 0]], [3], impossible=[(0, 0)]))
    assert tally.impossible == 3
    assert tally.impossible_example == [1, 0]


def test_runs_through_merged_prefixes_are_counted_as_a_whole():
    tree = PrefixTree.grow(conditional, V, LENGTH, ends, minimum_mass=0.3)
    tally = Tally(tree)
    tally.add(batch([[1, 0, 0], [1, 1, 2], [0, 0, 0]], [3, 3, 3]))
    (root,) = np.flatnonzero(tree.rest & (tree.tokens < 0).all(1))
    assert tally.cells[root] == 2
    assert tally.cells.sum() == 3


def test_memory_does_not_depend_on_the_number_of_runs(tree):
    tally = Tally(tree)
    before = tally.first.nbytes, tally.cells.nbytes
    for seed in range(3):
        runs = sampled(100, seed)
        tally.add(batch(runs, [len(run) for run in runs]))
    assert (tally.first.nbytes, tally.cells.nbytes) == before
