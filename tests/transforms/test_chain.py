import math

import pytest
import torch
from torch.testing import assert_close

from specverify.errors import SettingsError
from specverify.transforms import XTC, BadWords, ForcedTokens, LogitBias, Temperature, TopK
from specverify.transforms.chain import Chain

NO_HISTORY = torch.zeros(1, 0, dtype=torch.long)
LOGITS = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64).log()


def test_order_is_the_order_given():
    bias, temperature = LogitBias({0: 1.0}), Temperature(2.0)
    logits = torch.zeros(1, 2)
    assert Chain([bias], [temperature])(NO_HISTORY, logits).tolist() == [[0.5, 0.0]]
    assert Chain([temperature, bias], [])(NO_HISTORY, logits).tolist() == [[1.0, 0.0]]


def test_a_later_constraint_may_bring_a_token_back():
    everything = BadWords([[0], [1], [2], [3]])
    revived = Chain([everything, ForcedTokens({0: 2})], [])(NO_HISTORY, LOGITS)
    assert revived.isneginf().tolist() == [[True, True, False, True]]
    with pytest.raises(SettingsError, match="bad_words with forced_tokens"):
        Chain([everything, ForcedTokens({1: 2})], [])(NO_HISTORY, LOGITS)


def test_permissive_drops_only_what_may_empty_a_row():
    finite, infinite = LogitBias({0: 1.0}), LogitBias({0: -math.inf})
    top_k = TopK(2)
    chain = Chain([finite, infinite, BadWords([[1]])], [top_k])
    assert chain.forbidding == ("logit_bias", "bad_words")
    assert chain.permissive().processors == (finite,)
    assert chain.permissive().warpers == (top_k,)


def test_expected_probabilities_average_every_combination_of_coins():
    # Two independent coins: none, first only, second only, both.
    chain = Chain([], [XTC(0.5, 0.15), XTC(0.25, 0.35)])
    first = torch.tensor([0.0, 0.0, 2 / 3, 1 / 3])
    untouched = torch.tensor([0.4, 0.3, 0.2, 0.1])
    # The second finds one token above .35 (of .4) and leaves it, or after the first one of 2/3.
    expected = (0.5 * untouched + 0.5 * first).double()
    result = chain.expected_probabilities(NO_HISTORY, LOGITS)
    assert_close(result, expected.unsqueeze(0), atol=1e-7, rtol=0)


def test_expected_probabilities_apply_what_follows_to_every_outcome():
    # Temperature after the coin sharpens both outcomes before they are mixed.
    chain = Chain([], [XTC(0.5, 0.25), Temperature(0.5)])
    squares = torch.tensor([0.16, 0.09, 0.04, 0.01], dtype=torch.float64)
    without_first = squares * torch.tensor([0, 1, 1, 1])
    expected = 0.5 * squares / squares.sum() + 0.5 * without_first / without_first.sum()
    result = chain.expected_probabilities(NO_HISTORY, LOGITS)
    assert_close(result[0], expected, atol=1e-15, rtol=0)
