"""The console script: the command line in a child process, so that no ending goes unnoticed.

A subject may end its process: by `os._exit(0)`, a failed assertion in C++, a segmentation fault.
Such an end must never look like a passed certification, so the child reports its exit code, and the
parent distrusts every end that was not reported.
"""

import mmap
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from specverify.certification.verdict import EXIT_ERROR, EXIT_INTERRUPTED
from specverify.cli import main

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP")
_PR_SET_PDEATHSIG = 1


def run() -> int:
    """Run the command line under supervision; where processes cannot fork, run it directly.

    Returns:
        The exit code of `specverify.cli.main`, or 3 if the process that ran it ended before it
        could return one.
    """
    if not hasattr(os, "fork"):
        return main()
    # Memory rather than a pipe: a subject may close every descriptor, and still be right.
    report = mmap.mmap(-1, 2)
    # Held back until both processes are ready for them.
    numbers = {getattr(signal, name) for name in _FORWARDED}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    parent, child = os.getpid(), os.fork()
    if child == 0:
        _end_with(parent)
        return _run_and_report(report, mask)
    forwarded = _forward(numbers, child)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _, status = os.waitpid(child, 0)
    ended, code = report[:]
    if ended:
        return code
    return _unreported(os.waitstatus_to_exitcode(status), forwarded)


def _run_and_report(report: mmap.mmap, mask: set[int | signal.Signals]) -> int:
    """In the child: run, then say how it ended."""
    process = os.getpid()
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = main()
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    # A subject may fork, and its children may come out here too.
    if os.getpid() == process:
        report[:] = bytes([True, code])
        _end_if_waited_for(code)
    return code


def _end_if_waited_for(code: int) -> None:
    """End the process now if Python would wait at its end for what a subject left running.

    Python joins threads and child processes that are no daemons, and they may never end.
    """
    main_thread = threading.main_thread()
    waits = any(not t.daemon and t is not main_thread for t in threading.enumerate())
    processes: list[BaseProcess] = []
    if "multiprocessing" in sys.modules:
        import multiprocessing

        processes = multiprocessing.active_children()
    if not waits and all(process.daemon for process in processes):
        return
    for process in processes:
        process.kill()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, replaced by nothing, or its reader has left
            stream.flush()
    os._exit(code)


def _forward(numbers: set[signal.Signals], child: int) -> set[int]:
    """Pass signals on to the child, those excepted that the caller has ignored.

    A terminal sends Ctrl-C to both processes; `main` takes two in quick succession for one.

    Returns:
        The signals passed on, filled as they come.
    """
    forwarded: set[int] = set()

    def forward(number: int, _frame: object) -> None:
        forwarded.add(number)
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, forward)
    return forwarded


def _end_with(parent: int) -> None:
    """Where the system can (Linux), have SIGTERM sent to this process when its parent is killed.

    Whoever kills the parent, a job's time limit say, would else wait for the child's output.
    """
    if sys.platform != "linux":
        return
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def _unreported(code: int, forwarded: set[int]) -> int:
    if -code in forwarded:
        sys.stderr.write("Interrupted; no certificate was written.\n")
        return EXIT_INTERRUPTED
    if code < 0:
        how = f"was killed by {_signal_name(-code)}"
        remedy = "set PYTHONFAULTHANDLER=1 to see where it was, and watch its memory"
    else:
        how = f"ended itself with exit code {code}, as os._exit({code}) does"
        remedy = "let it raise an exception or return instead"
    sys.stderr.write(
        f"Error: the process that ran the subject {how}, before there was a verdict; no "
        f"certificate was written. Most likely the subject's code did it: {remedy}; certify it "
        "with --isolate to go on with the other cases\n"
    )
    return EXIT_ERROR


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
