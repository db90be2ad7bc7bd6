"""Small models and prompts that the decoding tests share."""

import pytest
import torch

from specverify.models.table import TableModel


@pytest.fixture
def target() -> TableModel:
    return TableModel.random(5, 2, seed=11, scale=1.2)


@pytest.fixture
def draft(target: TableModel) -> TableModel:
    return target.near(seed=12, noise=0.8)


@pytest.fixture
def batch():
    """Pads prompts on the left: ids [B, T] and attention mask [B, T]."""

    def make(*prompts: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        return ids, mask

    return make


@pytest.fixture
def seeded():
    return lambda seed=0: torch.Generator().manual_seed(seed)
