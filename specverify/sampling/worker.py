"""What runs in a worker process of `processes`: it answers messages until its pipe ends."""

import faulthandler
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from specverify.errors import SubjectError, UsageError
from specverify.quoting import message_of
from specverify.sampling import deadline

PING = "are you there?"

LOOK = 1.0
"""Seconds between looks for what no pipe tells, as when a forked process keeps a pipe open."""

HELD = {getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)}
"""Signals that whoever ends a job sends to all of its processes."""

REMEDY = (
    "define the subject at module level and name it as package.module:object, or use one job "
    "(--jobs 1, without --isolate; jobs=1 in Python)"
)


def serve(connection: Connection, cell: deadline.Cell, last_words: Connection) -> None:
    """Answer messages until the pipe ends: a ping, None and then the work, or a shard's index.

    Args:
        connection: to the process that started this one.
        cell: where that looks for the end of the call under way.
        last_words: takes the traceback of a crash.
    """
    deadline.share(cell)
    with suppress(Exception):  # closed, or not there at all
        os.dup2(2, 1)  # standard output is for who prints the report
    # One thread only, whose traceback a pipe takes at once: nobody reads before the end.
    faulthandler.enable(last_words.fileno(), all_threads=False)
    # Daemons may have no children, and a subject may need some.
    multiprocessing.current_process().daemon = False
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            # Not SIG_IGN, which programs started by the subject would inherit.
            signal.signal(getattr(signal, name), _ignore)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work = None
    while True:
        try:
            index = connection.recv()
            payload = connection.recv_bytes() if index is None else b""
        except (EOFError, OSError):
            return
        if index == PING:
            answer = pickle.dumps(PING)
        elif index is None:
            work = None  # the earlier work first: both may be large
            work, answer = _load(payload)
        else:
            answer = _answer(work, index)
        try:
            connection.send_bytes(answer)
        except OSError:
            return


def _ignore(*_: object) -> None:
    pass


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    while parent is not None:
        # Its sentinel may be kept open by a process it forked; its id is not.
        if wait([parent.sentinel], LOOK) or os.getppid() != parent.pid:
            os._exit(1)


def _load(payload: bytes) -> tuple[Any, bytes]:
    try:
        work = pickle.loads(payload)
    except BaseException as error:
        refused = UsageError(
            f"the work cannot be loaded in a worker process: {type(error).__name__}: "
            f"{message_of(error)}; {REMEDY}"
        )
        refused.__cause__ = error
        return None, _failure(refused)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
    return work, pickle.dumps((None, None))


def _answer(work: Any, index: int) -> bytes:
    """The result and None, or the exception and its traceback."""
    try:
        return pickle.dumps((work(index), None))
    except BaseException as error:
        return _failure(error)


def _failure(error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(error))
    try:
        content = pickle.dumps((error, text))
        pickle.loads(content)
    except Exception:
        # Exceptions whose arguments are not those of their class cannot be made again.
        said = SubjectError(f"{type(error).__name__}: {message_of(error)}")
        return pickle.dumps((said, text))
    return content
