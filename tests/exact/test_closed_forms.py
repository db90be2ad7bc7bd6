"""Closed forms of one round against every coin pattern of every block, and against the papers."""

import math
from collections import defaultdict
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specverify.exact.closed_forms import ALGORITHMS
from specverify.exact.compare_round import compare_round
from specverify.exact.enumerate import (
    acceptance_distribution,
    round_distribution,
)
from specverify.exact.joint import total_variation
from specverify.exact.round import Round

LOSSLESS = ["token", "block", "match"]


def from_tables(target, draft, **options) -> Round:
    """The round whose rows after t tokens are target[t] and draft[t], [V^t, V] or one for all."""
    size = np.shape(target[0])[-1]

    def conditional(tables):
        def rows(prefixes):
            depth = prefixes.shape[1]
            table = np.broadcast_to(tables[depth], (size**depth, size))
            return table[prefixes @ size ** np.arange(depth - 1, -1, -1)]

        return rows

    return Round(conditional(target), conditional(draft), size, len(draft), **options)


def table(rng, depth: int, size: int) -> np.ndarray:
    """Rows with zeros and ties, one-hot rows, and plain ones."""
    shape = (size**depth, size)
    style = rng.integers(3, size=(size**depth, 1))
    with_zeros = rng.integers(0, 3, size=shape) + np.eye(size)[rng.integers(size, size=len(style))]
    one_hot = np.eye(size)[rng.integers(size, size=len(style))]
    rows = np.where(style == 0, with_zeros, np.where(style == 1, one_hot, rng.random(shape) + 1e-3))
    return rows / rows.sum(1, keepdims=True)


@st.composite
def rounds(draw, minimum=0):
    size, width = draw(st.integers(1, 4)), draw(st.integers(minimum, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    target = [table(rng, depth, size) for depth in range(width + 1)]
    draft = []
    for rows in target[:-1]:
        other = table(rng, len(draft), size)
        draft.append(np.where(rng.random((len(other), 1)) < 0.25, rows, other))
    dtype = draw(st.sampled_from([torch.float64, torch.float64, torch.bfloat16]))
    return from_tables(target, draft, dtype=dtype, one_hot=draw(st.booleans()))


def kept_residual(p, q, weight):
    left = np.maximum(weight * p - q, 0)
    return left / left.sum() if left.sum() > 0 else p


def blocks_of(round: Round):
    """Each block with its probability, and the rows p [K+1, V] and q as reported [K, V] on it."""
    size = round.vocab_size
    for block in product(range(size), repeat=round.num_draft_tokens):
        codes = [0]
        for token in block:
            codes.append(codes[-1] * size + token)
        drafts = [round.q(depth)[code] for depth, code in enumerate(codes[:-1])]
        drafted = math.prod(float(q[x]) for q, x in zip(drafts, block, strict=True))
        if round.one_hot:
            drafts = [np.eye(size)[token] for token in block]
        if drafted > 0:
            yield block, drafted, [round.p(t)[code] for t, code in enumerate(codes)], drafts


def block_by_coins(round: Round, *, break_early=False, scaled=True) -> dict:
    """Sun et al. 2024, algorithm 2, one block and one pattern of its K coins after another."""
    emitted = defaultdict(float)
    width = round.num_draft_tokens
    for block, drafted, p, q in blocks_of(round):
        weights = [1.0]
        for i, token in enumerate(block):
            weights.append(min(1.0, weights[i] * p[i][token] / q[i][token]))
        thresholds = []
        for i in range(1, width):
            excess = np.maximum(weights[i] * p[i] - q[i], 0).sum()
            below = excess + 1 - weights[i]
            thresholds.append(excess / below if below > 0 else 1.0)
        thresholds += weights[width:] if width else []
        for coins in product([True, False], repeat=width):
            odds = math.prod(
                h if coin else 1 - h for h, coin in zip(thresholds, coins, strict=True)
            )
            if break_early:
                tau = (*coins, False).index(False)
            else:
                tau = max((i + 1 for i, coin in enumerate(coins) if coin), default=0)
            last = p[width]
            if tau < width:
                last = kept_residual(p[tau], q[tau], weights[tau] if scaled else 1.0)
            for token in np.flatnonzero(last).tolist():
                emitted[(*block[:tau], token)] += drafted * odds * last[token]
    return dict(emitted)


def token_by_coins(round: Round) -> dict:
    """Leviathan et al. 2023, algorithm 1, one block and one first rejection after another."""
    emitted = defaultdict(float)
    width = round.num_draft_tokens
    for block, drafted, p, q in blocks_of(round):
        reach = drafted
        for i in range(width + 1):
            accept = min(1.0, p[i][block[i]] / q[i][block[i]]) if i < width else 0.0
            last = kept_residual(p[i], q[i], 1.0) if i < width else p[i]
            for token in np.flatnonzero(last).tolist():
                emitted[(*block[:i], token)] += reach * (1 - accept) * last[token]
            reach *= accept
    return dict(emitted)


def match_by_samples(round: Round, rows=lambda p: p) -> dict:
    """Every block with every vector of target samples y_0 to y_K."""
    emitted = defaultdict(float)
    for block, drafted, p, _ in blocks_of(round):
        p = [rows(row) for row in p]
        for sampled in product(range(round.vocab_size), repeat=len(p)):
            odds = math.prod(float(row[y]) for row, y in zip(p, sampled, strict=True))
            agree = [x == y for x, y in zip(block, sampled, strict=False)]
            emitted[sampled[: (*agree, False).index(False) + 1]] += drafted * odds
    return dict(emitted)


def greedy_by_samples(round: Round) -> dict:
    return match_by_samples(round, lambda p: np.eye(len(p))[int(np.argmax(p))])


BY_HAND = {
    "token": token_by_coins,
    "block": block_by_coins,
    "match": match_by_samples,
    "greedy": greedy_by_samples,
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(round=rounds())
def test_closed_forms_are_the_rules_coin_by_coin(algorithm, round):
    found = round_distribution(algorithm, round)
    assert total_variation(found, BY_HAND[algorithm](round)) < 1e-14
    assert min(found.values()) > 0


@pytest.mark.parametrize("algorithm", LOSSLESS)
@given(round=rounds())
def test_sampling_rules_preserve_the_target(algorithm, round):
    found = compare_round(round, round_distribution(algorithm, round))
    assert found.total_variation < 1e-12
    assert found.outside_support == {}


@given(round=rounds())
def test_greedy_emits_the_start_of_the_greedy_sequence(round):
    greedy = []
    for depth in range(round.num_draft_tokens + 1):
        greedy.append(
            int(round.completed_target(np.array([greedy], np.int64).reshape(1, depth)).argmax())
        )
    found = round_distribution("greedy", round)
    assert all(list(tokens) == greedy[: len(tokens)] for tokens in found)
    assert math.fsum(found.values()) == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(round=rounds())
def test_acceptance_is_what_the_lengths_of_the_emitted_tuples_say(algorithm, round):
    lengths = np.zeros(round.num_draft_tokens + 1)
    for tokens, mass in round_distribution(algorithm, round).items():
        lengths[: len(tokens)] += mass
    found = acceptance_distribution(algorithm, round)
    assert found == pytest.approx(lengths, abs=1e-13)
    mean = sum(
        (len(tokens) - 1) * mass for tokens, mass in round_distribution(algorithm, round).items()
    )
    assert found[1:].sum() == pytest.approx(mean, abs=1e-13)


@given(round=rounds(minimum=1))
def test_block_never_accepts_less_than_token(round):
    token, block = (acceptance_distribution(name, round) for name in ("token", "block"))
    assert (block >= token - 1e-14).all()
    assert block[1] == pytest.approx(token[1], abs=1e-14)
    if not round.one_hot:
        overlap = np.minimum(round.p(0), round.q(0)).sum()
        assert token[1] == pytest.approx(overlap, abs=1e-14)
        assert acceptance_distribution("match", round)[1] <= overlap + 1e-14


PAPER = ([[1 / 3, 2 / 3]] * 3, [[2 / 3, 1 / 3]] * 2)


def test_the_papers_example():
    """Sun et al. 2024: 10/9 accepted tokens by the token rule, 11/9 by the block rule."""
    round = from_tables(*PAPER)
    assert acceptance_distribution("token", round) == pytest.approx([1, 2 / 3, 4 / 9], abs=1e-15)
    assert acceptance_distribution("block", round) == pytest.approx([1, 2 / 3, 5 / 9], abs=1e-15)
    assert acceptance_distribution("match", round) == pytest.approx([1, 4 / 9, 16 / 81], abs=1e-15)
    assert acceptance_distribution("greedy", round) == pytest.approx([1, 1 / 3, 1 / 9], abs=1e-15)


def test_block_verification_with_a_break_is_off_by_a_third():
    """On the paper's example x_1 = 0 has threshold 0: with a break it is never accepted."""
    round = from_tables(*PAPER)
    assert compare_round(round, block_by_coins(round)).total_variation < 1e-15
    broken = compare_round(round, block_by_coins(round, break_early=True))
    assert broken.total_variation == pytest.approx(1 / 3)
    assert broken.first_token_total_variation == pytest.approx(1 / 3)


def test_block_verification_with_the_token_residual_is_off_by_an_eighteenth():
    """Prefix (0) is corrected with probability 1/6; the residuals (1, 0, 0) and (2/3, 1/3, 0)
    differ by 1/3, which the first token does not show."""
    round = from_tables(
        [[[1 / 3, 2 / 3, 0]], [[0.5, 0.5, 0]], [[0.2, 0.3, 0.5]]],
        [[[2 / 3, 1 / 3, 0]], [[0, 0.25, 0.75], [0.5, 0.5, 0], [0.5, 0.5, 0]]],
    )
    assert compare_round(round, round_distribution("block", round)).total_variation < 1e-15
    unscaled = compare_round(round, block_by_coins(round, scaled=False))
    assert unscaled.total_variation == pytest.approx(1 / 18)
    assert unscaled.first_token_total_variation < 1e-15


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_degenerate_rounds(algorithm):
    nothing_drafted = from_tables([[[0.25, 0.75]]], [])
    expected = {(1,): 1.0} if algorithm == "greedy" else {(0,): 0.25, (1,): 0.75}
    assert round_distribution(algorithm, nothing_drafted) == expected
    assert acceptance_distribution(algorithm, nothing_drafted).tolist() == [1.0]
    one_token = from_tables([[[1.0]]] * 3, [[[1.0]]] * 2)
    assert round_distribution(algorithm, one_token) == {(0, 0, 0): 1.0}
    disjoint = from_tables([[[0.0, 1.0]]] * 3, [[[1.0, 0.0]]] * 2)
    assert round_distribution(algorithm, disjoint) == {(1,): 1.0}


@pytest.mark.parametrize("algorithm", LOSSLESS)
@pytest.mark.parametrize("off", [1 - 2**-53, 1 + 2**-52])
def test_rounding_costs_no_more_than_rounding(algorithm, off):
    """Draft and target an ulp apart, and probabilities so small that their quotients overflow."""
    p = np.array([0.3, 0.7, 1e-310])
    q = np.array([0.3 * off, 0.7, 5e-324])
    for rows in ((p, q), (q, p)):
        round = from_tables([rows[:1]] * 4, [rows[1:]] * 3)
        found = compare_round(round, round_distribution(algorithm, round))
        assert found.total_variation < 1e-15
        assert found.outside_support == {}
        assert acceptance_distribution(algorithm, round).max() <= 1


@pytest.mark.parametrize("algorithm", ["token", "block"])
def test_a_draft_that_is_the_target_is_always_accepted(algorithm):
    rows = Round.random(3, 2, seed=5)
    round = Round(rows.target, rows.target, 3, 2)
    assert acceptance_distribution(algorithm, round).tolist() == pytest.approx([1, 1, 1], abs=1e-15)
    assert all(len(tokens) == 3 for tokens in round_distribution(algorithm, round))


def test_without_draft_probabilities_the_token_rule_is_sampler_match():
    """algorithms.md 1.7: whatever the draft is drawn from, if its probability is taken as 1."""
    sampled = Round.random(3, 2, seed=1)
    blind = Round(sampled.target, sampled.draft, 3, 2, one_hot=True)
    token, match = (round_distribution(name, blind) for name in ("token", "match"))
    assert total_variation(token, match) < 1e-15
    assert total_variation(token, round_distribution("token", sampled)) > 0.1


def test_greedy_takes_the_first_of_tied_tokens():
    round = from_tables([[[0.2, 0.4, 0.4]]] * 2, [[[0.5, 0.25, 0.25]]])
    assert round_distribution("greedy", round) == {(1,): 0.75, (1, 1): 0.25}
