"""Randomness that is not steered, changed from run to run so that its influence shows."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def outside_randomness(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, numpy and Python for a while, then restore them."""
    numpy_state, python_state = np.random.get_state(legacy=False), random.getstate()
    with torch.random.fork_rng(devices=()):
        try:
            torch.default_generator.manual_seed(seed)
            np.random.seed(seed % (1 << 32))
            random.seed(seed)
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)
