"""How long a search goes on, and where it keeps what it finds."""

import math
import time
from dataclasses import dataclass, field
from pathlib import Path

from specverify.errors import UsageError

SECONDS = 60.0
"""Of a search for which no limit is given."""
LONGEST = 30 * 24 * 3600.0
CONFIRMATION = "confirmation"
"""Counter of a case that says which confirmation its alarm stood in, from 1."""


def share_of(alpha: float, number: int) -> float:
    """Level of the `number`-th confirmation: the levels of all sum to `alpha`, however many."""
    return alpha * 6 / (math.pi * number) ** 2


@dataclass(frozen=True)
class Fuzzing:
    """What is asked of a search."""

    seconds: float | None = None
    """Wall time after which no further input is tried; `SECONDS` where no number of inputs is given
    either. An input that is being tried is finished, and a failure found is made smaller."""
    inputs: int | None = None
    """Inputs after which it ends: what it tries is then the same on every machine."""
    database: Path | None = None
    """Folder of inputs that failed, which are tried first; nothing is kept when None."""

    def __post_init__(self) -> None:
        if self.seconds is not None and not 0 < self.seconds <= LONGEST:  # false for NaN too
            raise UsageError(
                f"fuzz_time={self.seconds}; give a positive number of seconds, at most "
                f"{LONGEST:.0f}"
            )
        if self.inputs is not None and self.inputs < 1:
            raise UsageError(f"fuzz_inputs={self.inputs}; give a whole number of at least 1")


@dataclass
class Clock:
    """When a search must end."""

    asked: Fuzzing
    tried: int = 0
    """Inputs on which the subject was tried, before a failure is made smaller."""
    _begin: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Longest time, infinite if only the number of inputs limits it."""
        if self.asked.seconds is not None:
            return self.asked.seconds
        return math.inf if self.asked.inputs is not None else SECONDS

    @property
    def passed(self) -> float:
        """Seconds since the search began."""
        return time.monotonic() - self._begin

    @property
    def out_of_time(self) -> bool:
        """Whether the time is up."""
        return self.passed >= self.seconds

    @property
    def ended(self) -> bool:
        """Whether no further input may be tried."""
        reached = self.asked.inputs is not None and self.tried >= self.asked.inputs
        return reached or self.out_of_time
