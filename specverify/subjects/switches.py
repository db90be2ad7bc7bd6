"""Switches of the whole process that a subject may throw: put back after every call, and told."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class _Switch:
    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


def _set_device(device: torch.device) -> None:
    # None is how torch itself starts; a device named, even this one, costs every call something.
    torch.set_default_device(None if device.type == "cpu" else device)


_SWITCHES = (
    _Switch("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
    _Switch("torch's default device", torch.get_default_device, _set_device),
    _Switch("torch's gradient mode", torch.is_grad_enabled, torch.set_grad_enabled),
    _Switch("torch's number of threads", torch.get_num_threads, torch.set_num_threads),
    _Switch(
        "torch's deterministic algorithms",
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    _Switch("numpy's error handling", np.geterr, lambda kept: np.seterr(**kept)),
)


@contextmanager
def switches_kept() -> Iterator[list[str]]:
    """Put the switches back at the end; the list then names those that were changed.

    What runs afterwards computes as if the subject had left them alone: a default dtype of float16,
    or numpy errors that raise, would change what it is judged by.
    """
    before = [(switch, switch.read()) for switch in _SWITCHES]
    changed: list[str] = []
    try:
        yield changed
    finally:
        for switch, value in before:
            if switch.read() != value:
                switch.write(value)
                changed.append(switch.name)
