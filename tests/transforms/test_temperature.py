import math

import pytest
import torch
from torch.testing import assert_close
from transformers.generation.logits_process import TemperatureLogitsWarper

from specverify.errors import SettingsError
from specverify.transforms import Greedy, Temperature

NO_HISTORY = torch.zeros(1, 0, dtype=torch.long)


@pytest.mark.parametrize("temperature", [0.1, 0.7, 1.0, 1.5, 100.0])
def test_temperature_equals_transformers(rows, temperature):
    theirs = TemperatureLogitsWarper(temperature)(NO_HISTORY, rows)
    assert torch.equal(Temperature(temperature=temperature)(NO_HISTORY, rows), theirs)


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e300])
def test_extreme_temperatures_stay_finite(temperature):
    logits = torch.tensor([[500.0, -500.0, 499.0, -math.inf]], dtype=torch.float64)
    probs = Temperature(temperature)(NO_HISTORY, logits).softmax(-1)
    expected = [1.0, 0, 0, 0] if temperature < 1 else [1 / 3, 1 / 3, 1 / 3, 0]
    assert_close(probs, torch.tensor([expected], dtype=torch.float64), atol=1e-12, rtol=0)


def test_temperature_near_zero_is_uniform_over_ties_where_greedy_takes_the_first():
    logits = torch.tensor([[1.0, 2.0, 2.0]])
    assert Temperature(1e-3)(NO_HISTORY, logits).softmax(-1).tolist() == [[0.0, 0.5, 0.5]]
    assert Greedy()(NO_HISTORY, logits).tolist() == [[-math.inf, 0.0, -math.inf]]


@pytest.mark.parametrize("temperature", [0, 0.0, -1.0, math.inf, math.nan, "1", True, None])
def test_bad_temperatures_are_refused(temperature):
    with pytest.raises(SettingsError, match="temperature"):
        Temperature(temperature)


def test_zero_points_to_greedy():
    with pytest.raises(SettingsError, match="use Greedy"):
        Temperature(0.0)


def test_greedy_is_one_hot_at_the_first_maximum(rows):
    result = Greedy()(NO_HISTORY, rows)
    assert result.dtype == torch.float64
    for row, out in zip(rows.tolist(), result.tolist(), strict=True):
        first = row.index(max(row))
        assert out == [0.0 if i == first else -math.inf for i in range(len(row))]
