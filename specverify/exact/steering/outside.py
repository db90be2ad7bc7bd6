"""Randomness that is not steered, changed from run to run so that its influence shows."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from specverify.errors import OutsideRandomness


class Outside:
    """The global generators of numpy and Python, which nothing steered may draw from."""

    def __init__(self) -> None:
        self._before = _states()

    def check(self) -> None:
        """Raise `OutsideRandomness` if one of them was drawn from or seeded."""
        for name, state in _states().items():
            if state != self._before[name]:
                raise OutsideRandomness(
                    f"it draws from or seeds {name}'s global generator, and only torch's "
                    "randomness is steered"
                )


def _states() -> dict[str, Any]:
    name, keys, *rest = np.random.get_state()
    return {"numpy": (name, np.asarray(keys).tobytes(), *rest), "Python": random.getstate()}


@contextmanager
def outside_randomness(seed: int) -> Iterator[Outside]:
    """Seed the global generators of torch, numpy and Python for a while, then restore them."""
    numpy_state, python_state = np.random.get_state(legacy=False), random.getstate()
    with torch.random.fork_rng(devices=()):
        try:
            torch.default_generator.manual_seed(seed)
            np.random.seed(seed % (1 << 32))
            random.seed(seed)
            yield Outside()
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)
