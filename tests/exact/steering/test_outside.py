import random

import numpy as np
import pytest
import torch

from specverify.exact.steering.outside import outside_randomness


def draw():
    return random.random(), float(np.random.random()), float(torch.rand(()))


def test_seeded_and_restored():
    states = random.getstate(), torch.get_rng_state(), np.random.get_state(legacy=False)
    with outside_randomness(5):
        first = draw()
    with outside_randomness(5):
        assert draw() == first
    with outside_randomness(1 << 40):
        assert all(a != b for a, b in zip(draw(), first, strict=True))
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert np.array_equal(
        np.random.get_state(legacy=False)["state"]["key"], states[2]["state"]["key"]
    )


def test_restored_after_an_error():
    state = random.getstate()
    with pytest.raises(ZeroDivisionError), outside_randomness(5):
        draw()[int(1 / (0 * random.random()))]
    assert random.getstate() == state
