"""The joint law of the first K+1 tokens, exactly and by sampling, for every lossless rule."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from specverify.verification import BLOCK, TOKEN, VERIFICATIONS, acceptance, emission
from specverify.verification.block import prefix_probabilities
from specverify.verification.checks import RoundInputs
from specverify.verification.protocol import Verified

LOSSLESS = ("token", "block")


@pytest.mark.parametrize("name", LOSSLESS)
def test_law_is_the_targets(name, pair, thresholds, outcome):
    result = outcome(VERIFICATIONS[name].decide, thresholds[name](pair), pair)
    np.testing.assert_allclose(result.law, pair.target_law(), atol=1e-12)


def correction_from_target(inputs: RoundInputs, generator) -> Verified:
    accepted = emission.leading(
        emission.coins(inputs, generator) < acceptance(inputs.p_drafted, inputs.q_drafted)
    )
    last = inputs.p[torch.arange(len(accepted)), accepted]
    return emission.assemble(inputs, accepted, emission.draw(last, generator))


def no_stop_after_rejection(inputs: RoundInputs, generator) -> Verified:
    kept = emission.coins(inputs, generator) < acceptance(inputs.p_drafted, inputs.q_drafted)
    return emission.emit(inputs, kept.sum(1), generator)


def block_with_token_residual(inputs: RoundInputs, generator) -> Verified:
    accepted = BLOCK.decide(inputs, generator).accepted
    return emission.emit(inputs, accepted, generator)


MUTANTS = {
    "correction from the target": ("token", correction_from_target),
    "no stop after a rejection": ("token", no_stop_after_rejection),
    # Shows only after a rejection behind an accepted prefix of probability below 1.
    "residual without the prefix probability": ("block", block_with_token_residual),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_enumeration_sees_wrong_rules(mutant, random_pair, thresholds, outcome):
    name, decide = MUTANTS[mutant]
    pair = random_pair(2, 3, 3, 1.0)
    result = outcome(decide, thresholds[name](pair), pair)
    assert np.abs(result.law - pair.target_law()).sum() / 2 > 0.02


def test_enumeration_sees_a_wrong_threshold(pairs, thresholds, outcome):
    pair = pairs["random"]
    with pytest.raises(AssertionError, match="a threshold is not where it should be"):
        outcome(BLOCK.decide, thresholds["token"](pair), pair)


def expected_token(pair) -> float:
    """E[tau] = sum over i and prefixes of the product of min(p, q)."""
    total, reach = 0.0, np.ones(())
    for p, q in zip(pair.target[:-1], pair.draft, strict=True):
        reach = reach[..., None] * np.minimum(p, q)
        total += reach.sum()
    return total


def expected_block(pair) -> float:
    """E[tau] = sum over i and prefixes of Q(x^i) w_i(x^i)."""
    total, joint, weight = 0.0, np.ones(()), np.ones(())
    for p, q in zip(pair.target[:-1], pair.draft, strict=True):
        ratio = np.divide(p, q, out=np.ones_like(p), where=q > 0)
        weight = np.minimum(1.0, weight[..., None] * ratio)
        joint = joint[..., None] * q
        total += (joint * weight).sum()
    return total


def test_accepted_tokens_follow_the_closed_forms(pair, thresholds, outcome):
    token = outcome(TOKEN.decide, thresholds["token"](pair), pair).mean_accepted
    block = outcome(BLOCK.decide, thresholds["block"](pair), pair).mean_accepted
    assert token == pytest.approx(expected_token(pair), abs=1e-12)
    assert block == pytest.approx(expected_block(pair), abs=1e-12)
    assert block >= token - 1e-12
    if pair.width == 1:
        assert block == pytest.approx(token, abs=1e-12)


def test_block_accepts_strictly_more_on_the_papers_example(thresholds, outcome, pairs):
    """The example of Sun et al. 2024: p = (1/3, 2/3), q = (2/3, 1/3), K = 2: 10/9 against 11/9."""
    pair_class = type(pairs["random"])
    pair = pair_class.make(
        lambda shape: np.broadcast_to([1 / 3, 2 / 3], shape),
        lambda shape, p: np.broadcast_to([2 / 3, 1 / 3], shape),
        2,
        2,
    )
    token = outcome(TOKEN.decide, thresholds["token"](pair), pair)
    block = outcome(BLOCK.decide, thresholds["block"](pair), pair)
    assert token.mean_accepted == pytest.approx(10 / 9)
    assert block.mean_accepted == pytest.approx(11 / 9)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), vocab_size=st.integers(1, 4), width=st.integers(1, 3))
def test_block_never_accepts_less(seed, vocab_size, width):
    """The inequality of Sun et al. 2024, on `prefix_probabilities` itself."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet([0.5] * vocab_size, width)
    q = rng.dirichlet([0.5] * vocab_size, width)
    blocks = np.array(list(product(range(vocab_size), repeat=width)))
    inputs = RoundInputs(
        torch.tensor(blocks),
        torch.full((len(blocks),), width),
        torch.ones(blocks.shape, dtype=torch.bool),
        torch.tensor(np.concatenate([p, p[:1]])).expand(len(blocks), -1, -1),
        torch.tensor(q).expand(len(blocks), -1, -1),
    )
    proposed = torch.tensor(np.stack([q[i, blocks[:, i]] for i in range(width)], 1).prod(1))
    block = (proposed[:, None] * prefix_probabilities(inputs)[:, 1:]).sum()
    token = np.minimum(p, q).sum(1).cumprod().sum()
    assert block >= token - 1e-12


SAMPLES = 300_000


def sampled_p_value(decide, pair, seed: int) -> float:
    """Chi-squared p-value of the completed first K+1 tokens of many sampled rounds."""
    rng = np.random.default_rng(seed)
    drafted = rng.choice(len(pair.blocks), p=pair.proposed, size=SAMPLES)
    inputs = RoundInputs(
        torch.tensor(pair.blocks[drafted]),
        torch.full((SAMPLES,), pair.width),
        torch.ones((SAMPLES, pair.width), dtype=torch.bool),
        torch.tensor(pair.p[drafted]),
        torch.tensor(pair.q[drafted]),
    )
    tokens = decide(inputs, torch.Generator().manual_seed(seed)).tokens.numpy().copy()
    for i in range(1, pair.width + 1):
        missing = tokens[:, i] < 0
        rows = pair.target[i][tuple(tokens[missing, :i].T)]
        u = rng.random((len(rows), 1))
        tokens[missing, i] = (rows.cumsum(-1)[:, :-1] <= u).sum(1)
    shape = (pair.vocab_size,) * (pair.width + 1)
    observed = np.bincount(np.ravel_multi_index(tuple(tokens.T), shape), minlength=np.prod(shape))
    expected = pair.target_law().ravel() * SAMPLES
    assert expected.min() > 5
    return float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)


@pytest.mark.parametrize("name", ["token", "block", "match"])
def test_sampled_law_is_the_targets(name, random_pair):
    pair = random_pair(3, 3, 2, 3.0)
    assert sampled_p_value(VERIFICATIONS[name].decide, pair, 1) > 1e-4


def one_coin_for_all(inputs: RoundInputs, generator) -> Verified:
    coins = emission.coins(inputs, generator)[:, :1]
    kept = coins < acceptance(inputs.p_drafted, inputs.q_drafted)
    return emission.emit(inputs, emission.leading(kept), generator)


def match_with_one_noise(inputs: RoundInputs, generator) -> Verified:
    u = torch.rand((len(inputs.tokens), 1, 1), dtype=torch.float64, generator=generator)
    sampled = (inputs.p.cumsum(-1) <= u).sum(-1).clamp(max=inputs.p.shape[-1] - 1)
    accepted = emission.leading(sampled[:, :-1] == inputs.tokens)
    return emission.assemble(inputs, accepted, sampled.gather(1, accepted[:, None]).squeeze(1))


@pytest.mark.parametrize(
    "mutant",
    [
        correction_from_target,
        no_stop_after_rejection,
        one_coin_for_all,
        match_with_one_noise,
    ],
)
def test_sampling_sees_wrong_rules(mutant, random_pair):
    assert sampled_p_value(mutant, random_pair(3, 3, 2, 3.0), 1) < 1e-9
