from collections.abc import Callable

import pytest
import torch

from specverify.drafting.protocol import Histories
from specverify.settings import SamplingSettings
from specverify.transforms.pipeline import Pipeline


@pytest.fixture
def batch() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Prompts of different length, padded on the left, with their mask."""

    def make(*rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        width = max(map(len, rows))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        return ids, mask

    return make


@pytest.fixture
def histories(batch) -> Callable[..., Histories]:
    def make(*rows: list[int]) -> Histories:
        return Histories.from_prompts(*batch(*rows))

    return make


@pytest.fixture
def pipeline() -> Callable[..., Pipeline]:
    def make(vocab_size: int, generator: torch.Generator | None = None, **fields) -> Pipeline:
        return Pipeline.from_settings(SamplingSettings(**fields), vocab_size, generator)

    return make


@pytest.fixture
def commit() -> Callable:
    """Append tokens to every row and tell the drafter, as the decoding loop does."""

    def do(session, history: Histories, accepted: list[int], emitted: list[list[int]]) -> None:
        before = history.lengths
        history.reserve(max(map(len, emitted)))
        for row, tokens in enumerate(emitted):
            start = int(before[row])
            history.tokens[row, start : start + len(tokens)] = torch.tensor(tokens)
        history.lengths = before + torch.tensor([len(tokens) for tokens in emitted])
        valid = torch.minimum(before + torch.tensor(accepted), history.lengths - 1)
        session.commit(valid)

    return do
