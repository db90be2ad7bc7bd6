"""Closed forms of correction and bonus against enumeration of drafts, coins and draws."""

import itertools
from collections import defaultdict

import numpy as np
import pytest

from specverify.certification.conditional import WITH_CORRECTION, correction_distribution

V, K = 3, 2
RULES = sorted(WITH_CORRECTION)


def tables(seed, *, sparse=False):
    """p and q after every prefix of up to K tokens."""
    rng = np.random.default_rng(seed)

    def law():
        weights = rng.dirichlet(np.ones(V))
        if sparse:
            weights = rng.integers(0, 3, V) + 0.0
            weights[rng.integers(V)] += 1
        return weights / weights.sum()

    prefixes = [x for depth in range(K + 1) for x in itertools.product(range(V), repeat=depth)]
    return {x: law() for x in prefixes}, {x: law() for x in prefixes}


def norm(weights):
    return weights / weights.sum() if weights.sum() > 0 else weights


def ratio(a, b):
    return min(1.0, a / b) if b > 0 else float(a > 0)


def token_rule(p, q, block):
    """Number accepted, its probability given the block, and the law of the last token."""
    reach = 1.0
    for i, x in enumerate(block):
        before = block[:i]
        accept = ratio(p[before][x], q[before][x])
        yield i, reach * (1 - accept), norm(np.maximum(p[before] - q[before], 0))
        reach *= accept
    yield K, reach, p[block]


def block_rule(p, q, block):
    weights = [1.0]
    for i, x in enumerate(block):
        weights.append(ratio(weights[-1] * p[block[:i]][x], q[block[:i]][x]))
    failed = 1.0
    for i in range(K, -1, -1):
        excess = np.maximum(weights[i] * p[block[:i]] - q[block[:i]], 0) if i < K else None
        if i == 0:
            success = 1.0
        elif excess is None:
            success = weights[K]
        else:
            total = excess.sum() + 1 - weights[i]
            success = excess.sum() / total if total > 0 else 1.0
        yield i, failed * success, p[block] if excess is None else norm(excess)
        failed *= 1 - success


def match_rule(p, q, block):
    reach = 1.0
    for i, x in enumerate(block):
        other = p[block[:i]].copy()
        other[x] = 0
        yield i, reach * other.sum(), norm(other)
        reach *= p[block[:i]][x]
    yield K, reach, p[block]


ENUMERATED = {"token": token_rule, "block": block_rule, "match": match_rule}


def enumerate_round(rule, p, q):
    """Mass of every (accepted tokens, last token, whether all were accepted)."""
    masses = defaultdict(float)
    for block in itertools.product(range(V), repeat=K):
        drawn = np.prod([q[block[:i]][x] for i, x in enumerate(block)])
        for accepted, probability, law in ENUMERATED[rule](p, q, block):
            for last in range(V):
                masses[block[:accepted], last] += drawn * probability * law[last]
    return masses


CASES = [(seed, sparse) for sparse in (False, True) for seed in range(8)]


@pytest.mark.parametrize(("seed", "sparse"), CASES)
@pytest.mark.parametrize("rule", RULES)
def test_the_enumeration_is_lossless(rule, seed, sparse):
    """What is enumerated is the rule of the papers: the round, completed, is the target."""
    p, q = tables(seed, sparse=sparse)
    completed = defaultdict(float)
    for (accepted, last), mass in enumerate_round(rule, p, q).items():
        emitted = (*accepted, last)
        for rest in itertools.product(range(V), repeat=K - len(accepted)):
            whole = emitted + rest
            tail = [p[whole[:i]][whole[i]] for i in range(len(emitted), K + 1)]
            completed[whole] += mass * np.prod(tail)
    for whole in itertools.product(range(V), repeat=K + 1):
        expected = np.prod([p[whole[:i]][x] for i, x in enumerate(whole)])
        assert completed[whole] == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize(("seed", "sparse"), CASES)
@pytest.mark.parametrize("rule", RULES)
def test_the_correction_equals_the_enumeration(rule, seed, sparse):
    p, q = tables(seed, sparse=sparse)
    masses = enumerate_round(rule, p, q)
    compared = 0
    for depth in range(K):
        for accepted in itertools.product(range(V), repeat=depth):
            observed = np.array([masses[accepted, last] for last in range(V)])
            if observed.sum() < 1e-14:
                continue
            path = [accepted[:i] for i in range(depth + 1)]
            law = correction_distribution(
                rule,
                np.stack([p[x] for x in path])[None],
                np.stack([q[x] for x in path])[None],
                np.array([accepted], np.int64).reshape(1, depth),
            )[0]
            np.testing.assert_allclose(law, observed / observed.sum(), atol=1e-12)
            compared += 1
    assert compared


@pytest.mark.parametrize(("seed", "sparse"), CASES)
@pytest.mark.parametrize("rule", RULES)
def test_the_bonus_is_the_targets_next_token(rule, seed, sparse):
    p, q = tables(seed, sparse=sparse)
    masses = enumerate_round(rule, p, q)
    for block in itertools.product(range(V), repeat=K):
        observed = np.array([masses[block, last] for last in range(V)])
        if observed.sum() > 1e-14:
            np.testing.assert_allclose(observed / observed.sum(), p[block], atol=1e-12)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_where_no_rejection_is_possible_the_law_is_zero(rule):
    p = np.array([[[0.5, 0.5, 0.0]]])
    assert correction_distribution(rule, p, p, np.zeros((1, 0), np.int64)).tolist() == [[0, 0, 0]]


def test_the_rules_differ_where_they_should():
    """A law that did not depend on the rule, or on the path, would pass many a comparison."""
    p, q = tables(3)
    path = [(), (0,)]
    laws = [
        correction_distribution(
            rule,
            np.stack([p[x] for x in path])[None],
            np.stack([q[x] for x in path])[None],
            np.array([[int(np.argmin(p[()] / q[()]))]]),
        )[0]
        for rule in RULES
    ]
    for a, b in itertools.combinations(laws, 2):
        assert np.abs(a - b).max() > 1e-3
