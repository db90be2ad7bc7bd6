"""Closed forms of the token and block rules, written here from the papers, against the composer."""

import math
from collections import defaultdict
from itertools import product

import numpy as np
import pytest

from specverify.errors import UsageError
from specverify.exact.joint import (
    complete,
    joint_of_block_kernel,
    largest_ratio,
    outside_support,
    total_variation,
)
from specverify.exact.prefix_tree import PrefixTree

V = 3


class Law:
    """Next-token distributions that differ at every position and prefix, some entries 0."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rows: dict = {}

    def __call__(self, prefix) -> np.ndarray:
        if prefix not in self.rows:
            rng = np.random.default_rng([self.seed, *[token + 1 for token in prefix]])
            row = rng.random(V) * (rng.random(V) > 0.2)
            row[rng.integers(V)] += 0.1
            self.rows[prefix] = row / row.sum()
        return self.rows[prefix]

    def batch(self, prefixes) -> np.ndarray:
        return np.array([self(tuple(prefix)) for prefix in prefixes.tolist()])


def normalised(weights):
    return weights / weights.sum()


def residual(p, q):
    return normalised(np.maximum(p - q, 0))


def token_rule(p, q, k, *, correction=residual, bonus=None):
    """Leviathan et al. (2211.17192), algorithm 1, as the distribution of the emitted tuple."""

    def kernel(prefix):
        out = defaultdict(float)

        def step(accepted, reach):
            law = p(prefix + accepted)
            if len(accepted) == k:
                last = law if bonus is None else bonus(prefix + accepted)
                for token in range(V):
                    out[(*accepted, token)] += reach * last[token]
                return
            draft = q(prefix + accepted)
            kept = np.minimum(law, draft)
            for token in np.flatnonzero(kept).tolist():
                step((*accepted, token), reach * kept[token])
            if (draft > law).any():
                corrected = correction(law, draft)
                for token in range(V):
                    out[(*accepted, token)] += reach * (1 - kept.sum()) * corrected[token]

        step((), 1.0)
        return dict(out)

    return kernel


def block_rule(p, q, k, *, stop_at_first=False, plain_residual=False):
    """Sun et al. (2403.10444), algorithm 2: the longest prefix whose own coin accepts."""

    def kernel(prefix):
        out = defaultdict(float)
        for draft in product(range(V), repeat=k):
            contexts = [prefix + draft[:i] for i in range(k + 1)]
            weight = math.prod(q(contexts[i])[draft[i]] for i in range(k))
            if weight == 0:
                continue
            scale = [1.0]
            for i in range(k):
                ratio = p(contexts[i])[draft[i]] / q(contexts[i])[draft[i]]
                scale.append(min(1.0, scale[i] * ratio))
            accept = [1.0]
            for i in range(1, k):
                excess = np.maximum(scale[i] * p(contexts[i]) - q(contexts[i]), 0).sum()
                accept.append(1.0 if scale[i] == 1 else excess / (excess + 1 - scale[i]))
            accept.append(scale[k])
            for taken in range(k + 1):
                if stop_at_first:
                    reach = math.prod(accept[1 : taken + 1])
                    reach *= 1 - accept[taken + 1] if taken < k else 1
                else:
                    reach = accept[taken] * math.prod(1 - h for h in accept[taken + 1 :])
                if reach == 0:
                    continue
                law = p(contexts[taken])
                if taken < k:
                    factor = 1.0 if plain_residual else scale[taken]
                    left = np.maximum(factor * law - q(contexts[taken]), 0)
                    law = normalised(left) if left.sum() > 0 else law
                for token in range(V):
                    out[(*draft[:taken], token)] += weight * reach * law[token]
        return dict(out)

    return kernel


def match_rule(p, q, k):
    """Draw from the target at each position; go on while the draft happens to agree."""

    def kernel(prefix):
        out = defaultdict(float)

        def step(accepted, reach):
            law, draft = p(prefix + accepted), q(prefix + accepted)
            for token in range(V):
                if len(accepted) == k:
                    out[(*accepted, token)] += reach * law[token]
                elif law[token] > 0:
                    out[(*accepted, token)] += reach * law[token] * (1 - draft[token])
                    if draft[token] > 0:
                        step((*accepted, token), reach * law[token] * draft[token])

        step((), 1.0)
        return dict(out)

    return kernel


def without_bonus(kernel, k):
    """Drop the bonus token: the block alone is emitted on full acceptance."""

    def cut(prefix):
        out = defaultdict(float)
        for emitted, mass in kernel(prefix).items():
            out[emitted[:k]] += mass
        return dict(out)

    return cut


def withholding(kernel):
    """Look at the second token and keep it only if it is not 0."""

    def cut(prefix):
        out = defaultdict(float)
        for emitted, mass in kernel(prefix).items():
            out[emitted[:1] if emitted[1:2] == (0,) else emitted] += mass
        return dict(out)

    return cut


def past_dependent_length(p, q):
    """Choose the block length by the prefix alone."""

    def kernel(prefix):
        return token_rule(p, q, 1 + sum(prefix) % 3)(prefix)

    return kernel


def stop(prefixes):
    """Stop token 2, stop sequence 0 1."""
    ended = prefixes[:, -1] == 2
    if prefixes.shape[1] >= 2:
        ended |= (prefixes[:, -2] == 0) & (prefixes[:, -1] == 1)
    return ended


RIGHT = {
    "token": lambda p, q: token_rule(p, q, 2),
    "token, K=3": lambda p, q: token_rule(p, q, 3),
    "token, K=0": lambda p, q: token_rule(p, q, 0),
    "token, draft is target": lambda p, q: token_rule(p, p, 2),
    "token, no bonus": lambda p, q: without_bonus(token_rule(p, q, 2), 2),
    "token, length by the past": past_dependent_length,
    "block": lambda p, q: block_rule(p, q, 2),
    "block, K=3": lambda p, q: block_rule(p, q, 3),
    "match": lambda p, q: match_rule(p, q, 2),
}
WRONG = {
    "residual not subtracted": lambda p, q: token_rule(p, q, 2, correction=lambda a, b: a),
    "residual absolute": lambda p, q: token_rule(
        p, q, 2, correction=lambda a, b: normalised(abs(a - b))
    ),
    "bonus from draft": lambda p, q: token_rule(p, q, 2, bonus=q),
    "bonus from previous row": lambda p, q: token_rule(p, q, 2, bonus=lambda c: p(c[:-1])),
    "block, break at first failure": lambda p, q: block_rule(p, q, 2, stop_at_first=True),
    "block, residual unscaled": lambda p, q: block_rule(p, q, 3, plain_residual=True),
    "withholds by what it saw": lambda p, q: withholding(token_rule(p, q, 2)),
}


@pytest.mark.parametrize("is_end", [None, stop], ids=["endless", "stopping"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rule", RIGHT)
def test_right_rules_compose_to_the_autoregressive_distribution(rule, seed, is_end):
    p, q = Law(seed), Law(seed + 100)
    target = PrefixTree.grow(p.batch, V, 4, is_end).sequences()
    found = joint_of_block_kernel(RIGHT[rule](p, q), 4, is_end)
    assert total_variation(found, target) < 1e-12
    assert sum(outside_support(found, target).values()) == 0
    assert not outside_support(target, found)


@pytest.mark.parametrize("rule", WRONG)
def test_wrong_rules_do_not(rule):
    distances = []
    for seed in range(3):
        p, q = Law(seed), Law(seed + 100)
        target = PrefixTree.grow(p.batch, V, 5).sequences()
        found = joint_of_block_kernel(WRONG[rule](p, q), 5)
        assert math.fsum(found.values()) == pytest.approx(1, abs=1e-12)
        distances.append(total_variation(found, target))
    assert max(distances) > 1e-2


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rule", ["token", "token, no bonus", "block", "match"])
def test_a_right_round_completes_to_the_target(rule, seed):
    p, q = Law(seed), Law(seed + 100)
    target = PrefixTree.grow(p.batch, V, 3).sequences()
    assert total_variation(complete(RIGHT[rule](p, q)(()), p.batch, 3), target) < 1e-12


@pytest.mark.parametrize("rule", ["residual not subtracted", "withholds by what it saw"])
def test_a_wrong_round_does_not(rule):
    p, q = Law(1), Law(101)
    target = PrefixTree.grow(p.batch, V, 3).sequences()
    assert total_variation(complete(WRONG[rule](p, q)(()), p.batch, 3), target) > 1e-2


def test_bonus_from_draft_shows_only_beyond_the_block():
    """algorithms.md section 5, R16: invisible in the first K tokens."""
    p, q = Law(2), Law(102)
    kernel = WRONG["bonus from draft"](p, q)
    short, long = (PrefixTree.grow(p.batch, V, size).sequences() for size in (2, 3))
    assert total_variation(joint_of_block_kernel(kernel, 2), short) < 1e-12
    assert total_variation(joint_of_block_kernel(kernel, 3), long) > 1e-2


def test_a_block_is_cut_at_its_first_stop():
    joint = joint_of_block_kernel(lambda prefix: {(0, 1, 0): 0.5, (1, 1, 2): 0.5}, 4, stop)
    assert joint == {(0, 1): 0.5, (1, 1, 2): 0.5}


def test_a_block_is_cut_at_the_length_limit():
    assert joint_of_block_kernel(lambda prefix: {(0, 1): 0.25, (1,): 0.75}, 1) == {
        (0,): 0.25,
        (1,): 0.75,
    }


def test_comparisons():
    a, b = {(0,): 0.5, (1,): 0.3, (2,): 0.2}, {(0,): 0.25, (1,): 0.75, (3,): 0.0}
    assert total_variation(a, b) == pytest.approx(0.45)
    assert total_variation(a, a) == 0
    assert largest_ratio(a, b) == math.inf
    assert largest_ratio({(0,): 0.5, (1,): 0.5}, b) == 2.0
    assert outside_support(a, b) == {(2,): 0.2}
    assert list(outside_support(a, {})) == [(0,), (1,), (2,)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: complete({(): 1.0}, p, 2), "1 to 2 tokens"),
        (lambda p: complete({(0, 1, 2): 1.0}, p, 2), "1 to 2 tokens"),
        (lambda p: complete({(0,): 0.5}, p, 2), "sums to 0.5"),
        (lambda p: joint_of_block_kernel(lambda prefix: {(): 1.0}, 2), "emits nothing"),
        (lambda p: joint_of_block_kernel(lambda prefix: {(0,): 0.9}, 2), "sums to 0.9"),
        (lambda p: joint_of_block_kernel(lambda prefix: {(0,): 1.0}, 0), "length=0"),
    ],
)
def test_invalid_input_is_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call(Law(0).batch)
