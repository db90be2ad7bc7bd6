"""What a call must not depend on, changed from call to call, and what a call does to it."""

import random
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from types import FrameType
from typing import Any
from unittest import mock

import numpy as np
import torch

import specverify

_APART = 100_003.0
"""Seconds between the clocks of two surroundings: more than a day, so that no unit hides it."""
_START = 1_800_000_000.0
"""What the first of these clocks says at the start, so that no second begins within a call."""

_CLOCKS = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns")
_WORDS = {
    **dict.fromkeys(_CLOCKS, "the clock"),
    "urandom": "the randomness of the operating system",
    "getpid": "the number of the process",
    "id": "the address of an object",
    "data_ptr": "the address of a tensor",
    "seed": "a seed that is drawn from outside",
}
_DIRECT = frozenset({"id", "data_ptr", "seed"})
"""Asked for by libraries all the time: told only where the subject asks itself."""


@dataclass
class Surroundings:
    """The global generators around a call."""

    before: dict[str, bytes]
    """State of each, by the name of its library."""
    after: dict[str, bytes] = field(default_factory=dict)
    """The same once the call is over."""

    @property
    def touched(self) -> list[str]:
        """Libraries whose global generator the call has moved on or seeded."""
        return [name for name, state in self.after.items() if state != self.before[name]]


@contextmanager
def surroundings(seed: int, clock: int = 0) -> Iterator[Surroundings]:
    """Seed the global generators of torch, numpy and Python and set the clock, for a while.

    The clock is what `time.time` and `time.time_ns` say where they are called through the module;
    timers, which measure durations, are left alone.

    Args:
        seed: of the generators; another one gives other states.
        clock: another number sets another time.
    """
    numpy_state, python_state = np.random.get_state(legacy=False), random.getstate()
    now, begin, start = time.time_ns, time.time_ns(), _START + clock * _APART

    def told() -> int:
        return int(start) * 1_000_000_000 + now() - begin

    clocks = mock.patch.multiple(time, time=lambda: told() / 1e9, time_ns=told)
    with torch.random.fork_rng(devices=()), clocks:
        try:
            torch.default_generator.manual_seed(seed)
            np.random.seed(seed % (1 << 32))
            random.seed(seed)
            found = Surroundings(_states())
            yield found
            found.after = _states()
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)


def watched(call: Callable[..., Any], seen: dict[str, None]) -> Callable[..., Any]:
    """The same call, which notes what it asks the world outside for.

    Seen are the clock, random numbers of the operating system, the number of the process, and
    addresses, where code asks that belongs neither to Python nor to an installed package.

    Args:
        call: into a subject.
        seen: sentences are added to it.
    """

    def note(frame: FrameType, event: str, function: Any) -> None:
        if event != "c_call":
            return
        name = getattr(function, "__name__", "")
        if name in _WORDS and (line := _asking(frame, direct=name in _DIRECT)):
            seen[f"{_WORDS[name]} ({name}) at {line}"] = None

    def watching(*arguments: Any, **keywords: Any) -> Any:
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            return call(*arguments, **keywords)
        finally:
            sys.setprofile(before)

    return watching


def _states() -> dict[str, bytes]:
    _, keys, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": np.asarray(keys).tobytes() + repr(rest).encode(),
        "Python": repr(random.getstate()).encode(),
    }


def _asking(frame: FrameType | None, *, direct: bool) -> str | None:
    """The innermost line that belongs to a subject, None if it is not the one that asks."""
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if not _of_library(file):
            return f"{'/'.join(PurePath(file).parts[-2:])}:{frame.f_lineno}"
        if direct or file.is_relative_to(_OWN):
            return None
        frame = frame.f_back
    return None


_OWN = Path(specverify.__file__).parent
_PLACES = tuple(Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib", "platlib"))


def _of_library(file: Path) -> bool:
    """Code of Python, of an installed package or of specverify itself, its fixtures left out."""
    if file.is_relative_to(_OWN):
        return file.relative_to(_OWN).parts[0] != "fixtures"
    return any(file.is_relative_to(place) for place in _PLACES) or str(file).startswith("<")
