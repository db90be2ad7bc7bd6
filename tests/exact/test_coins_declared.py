"""What a kernel says of its coins, and coins drawn at random."""

import numpy as np
import pytest
import torch

from specverify.errors import UsageError
from specverify.exact.coins import Coins

SHAPES = {"accept": "[B,K]", "final": "[B]"}


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        ({"u": "[B,M]"}, {}, "unknown dimension 'M'"),
        ({"u": "[B,0]"}, {}, "unknown dimension '0'"),
        ({"u": "[K]"}, {}, "B first"),
        ({"u": "B,K"}, {}, "in brackets"),
        ({"noise": "[B,V]"}, {}, "one noise a token"),
        ({"not a name": "[B]"}, {}, "keyword"),
        ({"draft_probs": "[B]"}, {}, "besides draft_tokens"),
        (SHAPES, {"dtype": "float16"}, "float64 or float32"),
        (SHAPES, {"arrays": "jax"}, "torch or numpy"),
    ],
)
def test_declarations_that_teach(shapes, options, message):
    with pytest.raises(UsageError, match=message):
        Coins(shapes, **options)


@pytest.mark.parametrize(("dtype", "bits"), [("float64", 53), ("float32", 24)])
@pytest.mark.parametrize("arrays", ["torch", "numpy"])
def test_random_coins_lie_on_the_grid(arrays, dtype, bits):
    coins = Coins(SHAPES, dtype, arrays)
    drawn = coins.draw(1000, 2, torch.Generator().manual_seed(1))
    again = coins.draw(1000, 2, torch.Generator().manual_seed(1))
    assert {name: tuple(u.shape) for name, u in drawn.items()} == {
        "accept": (1000, 2),
        "final": (1000,),
    }
    for name, u in drawn.items():
        assert isinstance(u, np.ndarray) == (arrays == "numpy")
        values = np.asarray(u)
        assert values.dtype == dtype
        assert np.array_equal(values, np.asarray(again[name]))
        assert values.min() >= 0
        assert values.max() < 1
        steps = values.astype(np.float64) * 2.0**bits
        assert np.array_equal(steps, np.floor(steps))
        assert values.mean() == pytest.approx(0.5, abs=0.06)
