import numpy as np
import pytest
import torch

from specverify.verification import BLOCK, TOKEN
from specverify.verification.block import prefix_probabilities as prefix_probabilities_of
from specverify.verification.block import thresholds as thresholds_of
from specverify.verification.checks import prepare

BELOW_ONE = 1 - 2.0**-53


def test_prefix_probability_is_that_of_accepting_as_far(
    pair, outcome, prefix_probabilities, thresholds
):
    """Lemma of Sun et al. 2024: P(tau >= i | x^i) = w_i, summed over the draft's blocks."""
    w = prefix_probabilities(pair)
    # Among subnormal numbers w * p has no digits left, at a mass of 1e-324.
    possible = pair.proposed > 1e-300
    computed = prefix_probabilities_of(pair.inputs()).numpy()
    np.testing.assert_allclose(computed[possible], w[possible], atol=1e-14)
    mean = outcome(BLOCK.decide, thresholds["block"](pair), pair).mean_accepted
    assert mean == pytest.approx((pair.proposed[:, None] * w[:, 1:]).sum(), abs=1e-12)


def test_a_later_coin_rescues_an_earlier_failure(feed):
    """No stop at the first failure: w_2 is 1 although position 1 has threshold 0."""
    p = torch.tensor([[[0.25, 0.75], [0.75, 0.25], [0.5, 0.5]]], dtype=torch.float64)
    q = torch.tensor([[[0.5, 0.5], [0.25, 0.75]]], dtype=torch.float64)
    tokens = torch.tensor([[0, 0]])
    inputs = prepare(tokens, q, p, None)
    w = prefix_probabilities_of(inputs)
    assert w.tolist() == [[1.0, 0.5, 1.0]]
    # S = (0.375 - 0.25)+ + (0.125 - 0.75)+ = 1/8, so h_1 = (1/8) / (1/8 + 1/2) = 1/5.
    assert thresholds_of(inputs, w).tolist() == [[pytest.approx(0.2), 1.0]]
    with feed([[BELOW_ONE, BELOW_ONE]], 0.0):
        assert BLOCK(tokens, q, p).accepted.tolist() == [2]


def test_an_impossible_prefix_is_refused_by_a_coin_of_zero(feed):
    p = torch.tensor([[[0.0, 1.0], [0.5, 0.5], [0.5, 0.5]]], dtype=torch.float64)
    q = torch.full((1, 2, 2), 0.5, dtype=torch.float64)
    with feed([[0.0, 0.0]], 0.0):
        verified = BLOCK(torch.tensor([[0, 0]]), q, p)
    assert verified.accepted.tolist() == [0]
    assert verified.tokens.tolist() == [[1, -1, -1]]


def test_an_equal_draft_is_accepted_whole(feed):
    """p = q makes S = 0 and w = 1: the threshold is 1, not 0/0."""
    p = torch.tensor([[[0.3, 0.7], [0.6, 0.4], [0.5, 0.5]]], dtype=torch.float64)
    tokens = torch.tensor([[1, 0]])
    inputs = prepare(tokens, p[:, :2], p, None)
    assert thresholds_of(inputs, prefix_probabilities_of(inputs)).tolist() == [[1.0, 1.0]]
    with feed([[BELOW_ONE, BELOW_ONE]], 0.0):
        verified = BLOCK(tokens, p[:, :2], p)
    assert verified.accepted.tolist() == [2]


def test_equals_token_verification_at_one_draft_token():
    generator = torch.Generator().manual_seed(6)
    p = torch.rand((5_000, 2, 4), dtype=torch.float64, generator=generator)
    p = p / p.sum(-1, keepdim=True)
    q = p[:, 1:].flip(-1)
    tokens = q.argmax(-1)
    results = [rule(tokens, q, p, torch.Generator().manual_seed(7)) for rule in (TOKEN, BLOCK)]
    assert torch.equal(results[0].tokens, results[1].tokens)
    assert 0 < results[0].accepted.sum() < 5_000


def test_deterministic_draft_equals_a_one_hot_one():
    generator = torch.Generator().manual_seed(8)
    p = torch.rand((2_000, 4, 5), dtype=torch.float64, generator=generator)
    p = p / p.sum(-1, keepdim=True)
    tokens = p[:, :3].argmax(-1)
    one_hot = torch.nn.functional.one_hot(tokens, 5).double()
    results = [BLOCK(tokens, q, p, torch.Generator().manual_seed(9)) for q in (None, one_hot)]
    assert torch.equal(results[0].tokens, results[1].tokens)
    assert 0 < results[0].accepted.double().mean() < 3
