"""Standard output and error as the command line found them, whatever a subject does to them.

Nothing heavy is imported.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

_OUT, _ERR = 1, 2
_HIGH = 512
"""A descriptor that code which closes all it does not know rarely reaches."""

_REPLACED: list[TextIO | None] = []
"""What foreign code put in their place. A wrapper closes the stream below it when nobody holds it
any more, so they are held."""


class Streams:
    """The two streams of a command, taken before it runs foreign code."""

    def __init__(self) -> None:
        self.out: TextIO | None = sys.stdout
        self.err: TextIO | None = sys.stderr

    def restore(self) -> None:
        """Put them back, unless they no longer work and what replaced them may."""
        sys.stdout = self._restored(sys.stdout, self.out)
        sys.stderr = self._restored(sys.stderr, self.err)

    @contextmanager
    def kept_for_the_report(self) -> Iterator[None]:
        """Send to standard error what foreign code writes to standard output, by whatever means.

        A report that is piped into a file or another program stays what it is: programs that the
        code starts and libraries in C write to the descriptor, whatever `sys.stdout` is.
        """
        self._flush()
        try:
            kept = _copy_of(_OUT)
            os.dup2(_ERR, _OUT)
        except OSError:  # one of them is closed
            yield
            return
        try:
            yield
        finally:
            self._flush()
            with suppress(OSError):  # closed by the code: the report then goes to standard error
                os.dup2(kept, _OUT)
                os.close(kept)

    def _flush(self) -> None:
        """Write what is buffered, here and in the C library, where it belongs."""
        for stream in (self.out, sys.stdout):
            with suppress(Exception):  # none, closed, or its reader has left
                if stream is not None:
                    stream.flush()
        with suppress(Exception):  # no C library to be found by that name
            import ctypes

            ctypes.CDLL(None).fflush(None)

    def _restored(self, now: TextIO | None, kept: TextIO | None) -> TextIO | None:
        if now is kept:
            return kept
        _REPLACED.append(now)
        with suppress(Exception):
            if now is not None:
                now.flush()
        return now if now is not None and not _works(kept) else kept


def _copy_of(descriptor: int) -> int:
    try:
        import fcntl

        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except (ImportError, OSError):  # Windows; or no number is that high
        return os.dup(descriptor)


def _works(stream: TextIO | None) -> bool:
    try:
        return stream is not None and not stream.closed
    except ValueError:  # detached from what it wrote to
        return False
