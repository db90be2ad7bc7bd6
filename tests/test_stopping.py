"""Where a run ends."""

import pytest
import torch

from specverify.settings import SamplingSettings
from specverify.stopping import REASONS, run_lengths, stop_codes


def required(emitted: list[int], **settings: object) -> tuple[int, str | None]:
    """Tokens after which a run with these emitted tokens ends, and why."""
    tokens = torch.tensor([emitted])
    length, code = run_lengths(tokens, SamplingSettings(**settings))
    return int(length), REASONS[int(code) - 1] if code else None


@pytest.mark.parametrize(
    ("emitted", "settings", "expected"),
    [
        ([1, 2, 3], {"max_new_tokens": 3}, (3, "length")),
        ([1, 2, 3], {"max_new_tokens": 4}, (0, None)),
        ([1, 2, 3], {"max_new_tokens": 9, "stop_token_ids": (2,)}, (2, "stop_token")),
        ([1, 2, 3], {"max_new_tokens": 9, "stop_token_ids": (7, 3, 1)}, (1, "stop_token")),
        ([1, 2, 3], {"max_new_tokens": 9, "stop_sequences": ((2, 3),)}, (3, "stop_sequence")),
        ([1, 2, 3], {"max_new_tokens": 9, "stop_sequences": ((3, 2),)}, (0, None)),
        # The stop token is named where both apply, the stop where the limit does too.
        (
            [1, 2, 3],
            {"max_new_tokens": 2, "stop_token_ids": (2,), "stop_sequences": ((1, 2),)},
            (2, "stop_token"),
        ),
        ([1, 2], {"max_new_tokens": 2, "stop_sequences": ((1, 2),)}, (2, "stop_sequence")),
        # A sequence completed within the minimum is ignored for good.
        ([1, 2, 4], {"stop_sequences": ((1, 2),), "min_new_tokens": 2}, (0, None)),
        ([1, 2, 1, 2], {"stop_sequences": ((1, 2),), "min_new_tokens": 2}, (4, "stop_sequence")),
        ([1, 2], {"stop_sequences": ((1, 2),), "min_new_tokens": 1}, (2, "stop_sequence")),
    ],
)
def test_run_lengths(emitted, settings, expected):
    assert required(emitted, **settings) == expected


def test_a_stop_sequence_does_not_reach_into_the_prompt():
    settings = SamplingSettings(max_new_tokens=9, stop_sequences=((1, 2),))
    tokens = torch.tensor([[0, 1, 2, 5], [0, 0, 1, 2]])
    codes = stop_codes(tokens, torch.tensor([2, 2]), torch.tensor([2, 2]), 2, settings)
    assert codes.tolist() == [[0, 0], [0, 2]]


def test_padding_ends_nothing():
    lengths, codes = run_lengths(
        torch.tensor([[4, -1, -1], [4, 2, -1]]), SamplingSettings(max_new_tokens=2)
    )
    assert lengths.tolist() == [0, 2]
    assert codes.tolist() == [0, 3]


def test_no_tokens_at_all():
    lengths, _ = run_lengths(torch.empty((2, 0), dtype=torch.long), SamplingSettings())
    assert lengths.tolist() == [0, 0]
