"""What a call does beside its task: printing, and threads that go on after it.

Neither says anything about what is emitted. Both are told as remarks of the whole certificate, not
as findings of a case: a banner printed once belongs to no case, and a thread may end at any time.
"""

import io
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO, TypeVar

from specverify.subjects.protocols import Subject

PRINTS = "prints to standard output; it was sent to standard error, so that reports stay readable"
GOES_ON = (
    "leaves threads running after a call: they end with the process, and what they change in it "
    "meanwhile is not watched"
)
REMARKS = (PRINTS, GOES_ON)
"""Findings that are remarks."""

_PATIENCE = 0.5
"""Seconds that a thread is given to end after the call that started it."""

_LEFT_BEHIND: set[tuple[str, int]] = set()
"""Subjects known to leave threads running, by name and callable: waiting for each thread of theirs
would take too long, and of another subject with that name it says nothing."""


class _Noted(Protocol):
    @property
    def findings(self) -> tuple[str, ...]: ...

    def model_copy(self, *, update: dict[str, object]) -> "_Noted": ...


Case = TypeVar("Case", bound=_Noted)


@contextmanager
def side_effects(subject: Subject) -> Iterator[list[str]]:
    """Send to standard error what is printed for a while; the list then has the remarks.

    What writes to the descriptor itself is not seen here.

    Args:
        subject: what is called.
    """
    kept, threads = sys.stdout, set(threading.enumerate())
    sys.stdout = stand_in = _StandIn(sys.stderr)
    remarks: list[str] = []
    try:
        yield remarks
    finally:
        sys.stdout = kept
        if stand_in.used:
            remarks.append(PRINTS)
        started = set(threading.enumerate()) - threads
        if started and _go_on(subject, started):
            remarks.append(GOES_ON)


def lifted(cases: Iterable[Case]) -> tuple[list[Case], tuple[str, ...]]:
    """Cases without the remarks among their findings, and those remarks, each once."""
    told: dict[str, None] = {}
    plain = []
    for case in cases:
        found = [finding for finding in case.findings if finding in REMARKS]
        if found:
            told |= dict.fromkeys(found)
            rest = tuple(finding for finding in case.findings if finding not in REMARKS)
            case = case.model_copy(update={"findings": rest})
        plain.append(case)
    return plain, tuple(remark for remark in REMARKS if remark in told)


def _go_on(subject: Subject, started: set[threading.Thread]) -> bool:
    """Whether some of these threads are running once those that are ending have ended."""
    known = (subject.name, id(subject.call))
    if known in _LEFT_BEHIND:
        return True
    for thread in started:
        # A thread that Python did not start cannot be waited for.
        if not isinstance(thread, threading._DummyThread):
            thread.join(_PATIENCE)
            if thread.is_alive():
                _LEFT_BEHIND.add(known)
                return True
    return False


class _StandIn(io.TextIOBase):
    """Standard output during a call."""

    encoding = "utf-8"

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.used = False

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.used = True
        return len(text) if self._stream is None else self._stream.write(text)

    def flush(self) -> None:
        if self._stream is not None:
            self._stream.flush()

    def fileno(self) -> int:
        return super().fileno() if self._stream is None else self._stream.fileno()

    def reconfigure(self, **_: object) -> None:
        """Nothing here can be configured."""

    def detach(self) -> Any:
        return self.buffer

    @property
    def buffer(self) -> "_Bytes":
        """A new one each time: whoever wraps it may close it."""
        return _Bytes(self)


class _Bytes(io.RawIOBase):
    def __init__(self, text: _StandIn) -> None:
        self._text = text

    def writable(self) -> bool:
        return True

    def write(self, data: bytes, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._text.write(bytes(data).decode("utf-8", "replace"))
        return len(data)
