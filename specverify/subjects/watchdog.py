"""A time limit on calls into code that may hang."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

from specverify.errors import SubjectTimeout, UsageError
from specverify.sampling import deadline

LONGEST = 365 * 86_400.0
"""The longest limit, a year; timers of the system overflow beyond some such number."""

RAN_PAST = "ran past its time limit"
"""How every message about a call that took too long says so."""

_REPEAT = 0.25
"""Seconds between alarms after the first one, for code that swallows it."""

_IMPORT_GRACE = 60.0
"""Seconds past the limit that an import under way is given to end."""

_IMPORTING = "<frozen importlib._bootstrap"
"""How the file names of the import system's frames begin."""

_MACHINERY = frozenset({__file__, contextlib.__file__, deadline.__file__})


class _Expired(BaseException):
    """Thrown into the running code; not an `Exception`, which subjects commonly catch."""


def check_time_limit(seconds: float) -> None:
    """Refuse a limit that cannot be kept.

    Raises:
        UsageError: it is not a positive number, or above `LONGEST`.
    """
    if not 0 < seconds <= LONGEST:  # false for NaN too
        raise UsageError(
            f"time limit is {seconds!r}; give a positive number of seconds, at most {LONGEST:.0f}"
        )


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Interrupt the enclosed block once it has run for `seconds` of wall time.

    In the main thread of a system with `SIGALRM` the block is interrupted between two bytecodes,
    and again every quarter of a second if it swallows the interruption, even by a bare `except`
    in an endless loop. Only code that never returns to the interpreter (one endless kernel)
    outlasts it, until that kernel ends, or, in a worker process, until the process that started it
    ends it (see `sampling.deadline`). An import under way may end first, within a minute: cut
    off, it would leave half a module behind for every later call to stumble over. Elsewhere (other
    threads, Windows) nothing can interrupt Python code; there, and in a block that switches the
    alarm off, the limit is checked when the block returns. Limits nest.

    Raises:
        SubjectTimeout: the block ran past the limit, whatever it raised or returned in the end.
        UsageError: the limit is no number that `check_time_limit` takes.
    """
    check_time_limit(seconds)
    with deadline.told(seconds):
        if hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread():
            yield from _interrupting(seconds)
        else:
            yield from _measuring(seconds)


def _interrupting(seconds: float) -> Iterator[None]:
    fired, thrown = False, False

    def expire(_signal: int, frame: FrameType | None) -> None:
        nonlocal fired, thrown
        fired = True
        # Raised between the block and its clean-up, it would escape the `except` below. The block
        # cannot hide behind this: the next alarm comes soon, and `fired` is looked at in the end.
        if frame is not None and frame.f_code.co_filename in _MACHINERY:
            return
        late = time.monotonic() - begin - seconds
        if late < _IMPORT_GRACE and _imports(frame, owner):
            deadline.extend(_REPEAT)
            return
        if thrown and frame is not None:
            _raise_in_handlers(frame, owner)
        thrown = True
        raise _Expired

    tracer = sys.gettrace()
    owner = _outside_machinery(sys._getframe())
    begin = time.monotonic()
    handler = signal.signal(signal.SIGALRM, expire)
    outer, outer_interval = signal.setitimer(signal.ITIMER_REAL, seconds, _REPEAT)

    def late() -> bool:
        return fired or time.monotonic() - begin > seconds

    try:
        yield
        if late():
            raise _timed_out(seconds)
    except (KeyboardInterrupt, SubjectTimeout):
        raise
    except BaseException as error:
        if late():
            raise _timed_out(seconds) from (None if isinstance(error, _Expired) else error)
        raise
    finally:
        owner = None
        sys.settrace(tracer)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if outer:
            left = outer - (time.monotonic() - begin)
            signal.setitimer(signal.ITIMER_REAL, max(left, 1e-3), outer_interval)


def _outside_machinery(frame: FrameType | None) -> FrameType | None:
    """The frame that holds the `with`."""
    while frame is not None and frame.f_code.co_filename in _MACHINERY:
        frame = frame.f_back
    return frame


def _imports(frame: FrameType | None, owner: FrameType | None) -> bool:
    """Whether a frame, or one between it and the owner, is part of an import."""
    while frame is not None and frame is not owner:
        if frame.f_code.co_filename.startswith(_IMPORTING):
            return True
        frame = frame.f_back
    return False


def _raise_in_handlers(frame: FrameType | None, owner: FrameType | None) -> None:
    """Interrupt the line that runs next in any frame called by the owner: that of a handler.

    `while True: try: ... except: pass` catches an exception raised in its `try`, where nearly all
    alarms find it, but not one raised in its `except`.
    """

    def trace(_frame: FrameType, event: str, _argument: object) -> object:
        if event == "line":
            raise _Expired
        return trace

    while frame is not None and frame is not owner:
        frame.f_trace = trace
        frame = frame.f_back
    sys.settrace(lambda *_: None)


def _measuring(seconds: float) -> Iterator[None]:
    begin = time.monotonic()
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if time.monotonic() - begin > seconds:
            raise _timed_out(seconds) from error
        raise
    if time.monotonic() - begin > seconds:
        raise _timed_out(seconds)


def _timed_out(seconds: float) -> SubjectTimeout:
    return SubjectTimeout(
        f"a call {RAN_PAST} of {seconds:g} s; if it is slow rather than stuck, "
        "raise the limit with --time-limit SECONDS (time_limit= in Python)"
    )
