"""Rows of logits and histories that every transform must handle."""

import math

import pytest
import torch
from torch import Tensor


def _rows() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(2026)
    normal = 3 * torch.randn(200, 12, generator=g, dtype=torch.float64)
    masked = normal.masked_fill(torch.rand(200, 12, generator=g) < 0.5, -math.inf)
    masked[:, 5] = normal[:, 5]
    # 0, 1, 2 or 4 times ln 2 below the maximum: only these make float64 softmax exactly dyadic.
    below = [[0, 1, 2, 2], [2, 0, 2, 1], [0, 0, 0, 0], [0, 0, 99, 99], [1, 2, 2, 0]]
    dyadic = -math.log(2) * torch.tensor(below, dtype=torch.float64)
    return {
        "random": normal,
        "wide": torch.randn(20, 500, generator=g, dtype=torch.float64),
        "peaked": 40 * normal,
        "tied": torch.randint(0, 3, (200, 7), generator=g).double(),
        "wide tied": torch.randint(0, 3, (50, 100), generator=g).double(),
        "uniform": torch.zeros(2, 8, dtype=torch.float64),
        "dyadic": dyadic,
        "masked": masked,
        "one-hot": torch.eye(5, dtype=torch.float64).log(),
        "single token": torch.tensor([[-3.0], [0.0], [7.0]], dtype=torch.float64),
    }


ROWS = _rows()


@pytest.fixture(params=list(ROWS))
def rows(request: pytest.FixtureRequest) -> Tensor:
    """One corpus of logits, float64 [B, V]."""
    return ROWS[request.param].clone()


@pytest.fixture
def histories() -> Tensor:
    """Histories over 12 tokens with many repeats, long [200, 9]."""
    g = torch.Generator().manual_seed(7)
    ids = torch.randint(0, 12, (200, 9), generator=g)
    ids[:50] = torch.randint(0, 3, (50, 9), generator=g)
    return ids


@pytest.fixture
def scores() -> Tensor:
    """Logits to go with `histories`, float64 [200, 12], some of them -inf."""
    g = torch.Generator().manual_seed(8)
    logits = 2 * torch.randn(200, 12, generator=g, dtype=torch.float64)
    return logits.masked_fill(torch.rand(200, 12, generator=g) < 0.1, -math.inf)
