"""Rows with settings of their own: grouped, decoded, and put back in their places."""

import pytest
import torch

from specverify.decoding.output import DecoderOutput
from specverify.decoding.row_settings import generate_by_settings
from specverify.errors import UsageError
from specverify.settings import SamplingSettings

PROMPTS = torch.tensor([[0, 4], [1, 5], [2, 6], [3, 7]])
MASK = torch.ones_like(PROMPTS)
SHORT, LONG = SamplingSettings(max_new_tokens=1), SamplingSettings(max_new_tokens=3)


def repeats(calls):
    """A decoder that emits the first token of its prompt, to the limit."""

    def generate(prompt_ids, attention_mask, settings):
        calls.append((prompt_ids[:, 0].tolist(), settings))
        tokens = prompt_ids[:, :1].expand(-1, settings.max_new_tokens)
        return DecoderOutput(tokens.clone(), accepted=prompt_ids[:, 1:].clone())

    return generate


def test_one_contract_is_one_call():
    calls = []
    output = generate_by_settings(repeats(calls), PROMPTS, MASK, SHORT)
    assert calls == [([0, 1, 2, 3], SHORT)]
    assert output.tokens.tolist() == [[0], [1], [2], [3]]


def test_equal_ones_are_one_call():
    calls = []
    own = [SamplingSettings(max_new_tokens=1) for _ in range(4)]
    generate_by_settings(repeats(calls), PROMPTS, MASK, own)
    assert len(calls) == 1


def test_rows_come_back_in_the_order_of_their_prompts():
    calls = []
    output = generate_by_settings(repeats(calls), PROMPTS, MASK, [LONG, SHORT, SHORT, LONG])
    assert calls == [([0, 3], LONG), ([1, 2], SHORT)]
    assert output.tokens.tolist() == [[0, 0, 0], [1, -1, -1], [2, -1, -1], [3, 3, 3]]
    assert output.accepted is not None
    assert output.accepted.tolist() == [[4], [5], [6], [7]]


def test_settings_that_are_too_few_are_refused():
    with pytest.raises(UsageError, match="settings of 2 rows for 4 prompts"):
        generate_by_settings(repeats([]), PROMPTS, MASK, [SHORT, LONG])
