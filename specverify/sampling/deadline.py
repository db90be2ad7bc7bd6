"""When a call in a worker process must be over, told to the process that started it.

A timer inside a process cannot end code that never returns to the interpreter, or that switches
the timer off. Whoever started the process can: it reads here when the call under way should have
ended at the latest.
"""

import time
from collections.abc import Iterator, MutableSequence
from contextlib import contextmanager

Cell = MutableSequence[float]
"""Shared by both processes: the deadline on the monotonic clock, which all processes of a machine
share, and the time limit it comes from; 0 while no call is under way."""

SLACK = 5.0
"""Seconds past its limit that a call is given to be interrupted from within."""

_cell: Cell = [0.0, 0.0]


def share(cell: Cell) -> None:
    """Tell in this cell from now on; called once, by a worker that starts."""
    global _cell
    _cell = cell


@contextmanager
def told(limit: float) -> Iterator[None]:
    """Tell of a call with a time limit in seconds, and afterwards of the one around it."""
    cell = _cell
    before = cell[0], cell[1]
    cell[0], cell[1] = time.monotonic() + limit + SLACK, limit
    try:
        yield
    finally:
        cell[0], cell[1] = before


def extend(seconds: float) -> None:
    """Give the call under way that many seconds more."""
    if _cell[0]:
        _cell[0] += seconds


def overdue(cell: Cell) -> float | None:
    """The time limit of a call that should have ended by now; None if there is no such call."""
    end, limit = cell[0], cell[1]
    return limit if 0 < end < time.monotonic() else None
