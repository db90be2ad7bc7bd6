"""Nodes of a prefix tree and the prefixes they stand for."""

import itertools

import numpy as np
import pytest

from specverify.exact.prefix_tree import PrefixTree
from specverify.exact.tree_walk import OUTSIDE, node_prefixes, nodes_at

V, LENGTH = 3, 4


def conditional(prefixes):
    """Token 0 never follows itself; the rest depends on the length."""
    probs = np.full((len(prefixes), V), 1.0)
    probs[:, 1] += prefixes.shape[1]
    if prefixes.shape[1]:
        probs[prefixes[:, -1] == 0, 0] = 0.0
    return probs / probs.sum(1, keepdims=True)


def ends(prefixes):
    return prefixes[:, -1] == 2


@pytest.fixture(params=[0.0, 0.05], ids=["whole", "merged"])
def tree(request):
    return PrefixTree.grow(conditional, V, LENGTH, ends, minimum_mass=request.param)


def walk(tree, prefix):
    node = 0
    for token in prefix:
        node = int(tree.children[node, token])
        if node < 0:
            return OUTSIDE
    return node


def test_every_prefix_leads_to_the_node_that_walking_finds(tree):
    runs = np.array(list(itertools.product(range(V), repeat=LENGTH)))
    for depth in range(LENGTH + 1):
        found = nodes_at(tree, runs, np.full(len(runs), depth))
        assert found.tolist() == [walk(tree, run[:depth]) for run in runs.tolist()]


def test_each_run_has_its_own_depth_and_padding_leads_outside(tree):
    runs = np.array([[1, 1, 1, 1], [1, 0, -1, -1], [1, 0, -1, -1], [2, -1, -1, -1], [0, 0, 1, 1]])
    found = nodes_at(tree, runs, np.array([0, 2, 3, 1, 2]))
    assert found.tolist() == [0, walk(tree, (1, 0)), OUTSIDE, OUTSIDE, OUTSIDE]


def test_no_runs(tree):
    none = np.zeros((0, 2), np.int64)
    assert nodes_at(tree, none, np.zeros(0, np.int64)).shape == (0,)


def test_prefixes_lead_back_to_their_nodes(tree):
    prefixes, depths = node_prefixes(tree)
    assert prefixes.shape == (len(tree.children), LENGTH - 1)
    assert ((prefixes >= 0).sum(1) == depths).all()
    for node, (prefix, depth) in enumerate(zip(prefixes.tolist(), depths.tolist(), strict=True)):
        assert walk(tree, prefix[:depth]) == node


def test_a_tree_of_one_token_has_the_root_alone():
    tree = PrefixTree.grow(conditional, V, 1)
    prefixes, depths = node_prefixes(tree)
    assert (prefixes.shape, depths.tolist()) == ((1, 0), [0])
