"""Shards in worker processes of this machine.

Workers are spawned, not forked: a fork copies the threads' locks of torch and of BLAS libraries,
which then hang. Each has a pipe of its own, so that the end of one is known with the shard it was
at, and nothing is shared that a killed worker could leave locked.
"""

import multiprocessing
import os
import pickle
import re
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import PurePath
from typing import Any, TypeVar

from specverify.errors import SubjectError, SubjectTimeout, UsageError
from specverify.quoting import message_of
from specverify.sampling.deadline import Cell, overdue
from specverify.sampling.engines import Engine
from specverify.sampling.worker import HELD, LOOK, PING, REMEDY, serve

T = TypeVar("T")

_QUEUED = 2
"""Shards at one worker: one it is at, and one more so that it need not wait for this process."""

_GRACE = 2.0
"""Seconds a worker has to end by itself before it is killed."""

_KILLED = getattr(signal, "SIGKILL", None)

_FRAME = re.compile(r'(?m)^  File "(.*)", line (\d+) in (.*)$')
"""A line of the traceback that `faulthandler` writes: file, line, function."""

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class WorkerTraceback(Exception):
    """Cause of an exception that came from a worker: the traceback it had there, as text."""


@dataclass(eq=False)
class _Worker:
    process: SpawnProcess
    connection: Connection
    deadline: Cell
    """When the call it is at must be over, see `deadline`."""
    last_words: Connection
    """Has the traceback of a crash."""
    pending: deque[int | None] = field(default_factory=deque)
    """Sent and not answered yet, oldest first; None is the work itself."""
    overran: float | None = None
    """The time limit for which it was killed."""


class Processes(Engine):
    """Runs shards in worker processes, each with one thread.

    Workers start with the first run that needs them and serve later runs with other work. A run
    that is left before its end, by closing it, by an error or by an interrupt, ends them; the next
    one starts new ones. They ignore Ctrl-C, which this process decides about, and end with this
    process, even if it is killed.

    A worker whose call ran past its time limit, and cannot be interrupted from within, is killed.

    Args:
        jobs: how many processes.
        contain: whether a run goes on when the code under test ends a worker: what stands for the
            shard it was at is then `work.lost(index, how)`, and another worker takes its place.

    Raises:
        UsageError: `jobs` is no positive whole number.
    """

    def __init__(self, jobs: int, *, contain: bool = False) -> None:
        if type(jobs) is not int or jobs < 1:
            raise UsageError(f"jobs is {jobs!r}; give a whole number of processes, at least 1")
        self.jobs = jobs
        self.contain = contain
        self._workers: list[_Worker] = []
        self._running = False
        self._owner = os.getpid()

    def run(
        self, work: Callable[[int], T], indices: Sequence[int]
    ) -> Generator[tuple[int, T], None, None]:
        """Yield (index, result) in order of completion; at most 2 x `jobs` shards are under way.

        Args:
            work: gives the result of a shard from its index. It is pickled once, here.
            indices: the shards wanted, each once.

        Raises:
            UsageError: the work cannot be pickled, or not be loaded in a worker; or an earlier run
                of this engine is still open.
            SubjectError: a worker ended and is not contained, or could not start; the message
                names the shard it was at.
            Exception: what the work raised, with the worker's traceback as its cause.
        """
        try:
            payload = pickle.dumps(work)
        except Exception as error:
            raise UsageError(
                f"{_name(work)} cannot be sent to worker processes: {message_of(error)}; {REMEDY}"
            ) from error
        lost = getattr(work, "lost", None) if self.contain else None
        return self._results(payload, indices, lost)

    def _results(
        self,
        payload: bytes,
        indices: Sequence[int],
        lost: Callable[[int, str], Any] | None,
    ) -> Generator[Any, None, None]:
        if self._running:
            raise UsageError(
                "an earlier run of this engine is still open; exhaust or close it first, or use an "
                "engine of its own"
            )
        self._running = True
        try:
            crew = self._crew(min(self.jobs, len(indices)))
            for worker in crew:
                _send_work(worker, payload)
            waiting = iter(indices)
            for worker in crew * _QUEUED:
                _send_next(worker, waiting)
            while any(worker.pending for worker in crew):
                worker = self._answering(crew)
                try:
                    index, result = _receive(worker)
                except _Gone:
                    index = worker.pending[0]
                    if lost is None or index is None:
                        raise _ended(worker) from None
                    yield index, lost(index, _how_and_why(worker))
                    # Only now: most runs end with a shard that was lost.
                    self._replace(crew, worker, payload, waiting)
                    continue
                if index is not None:
                    _send_next(worker, waiting)
                    yield index, result
        except BaseException:
            self.close()
            raise
        finally:
            self._running = False

    def _crew(self, size: int) -> list[_Worker]:
        """So many workers, those that ended in between replaced."""
        ended = [worker for worker in self._workers if not _answers(worker)]
        self._workers = [worker for worker in self._workers if worker not in ended]
        _end(ended)
        if len(self._workers) < size and hasattr(signal, "pthread_sigmask"):
            # Where it starts, the tracker of multiprocessing sets the mask by its own lights.
            resource_tracker.ensure_running()
        while len(self._workers) < size:
            self._add()
        return self._workers[:size]

    def _add(self) -> _Worker:
        # Held back, an interrupt can neither leave a worker that no list knows nor reach one that
        # does not ignore it yet.
        with _signals_held(), _one_thread():
            self._workers.append(_start())
        return self._workers[-1]

    def _replace(
        self, crew: list[_Worker], gone: _Worker, payload: bytes, waiting: Iterator[int]
    ) -> None:
        """Put another worker in the place of one that ended; it takes over what that had left."""
        left = [index for index in gone.pending if index is not None][1:]
        left += islice(waiting, 1)
        self._workers.remove(gone)
        crew.remove(gone)
        _end([gone])
        if left:
            crew.append(self._add())
            _send_work(crew[-1], payload)
            taken_over = iter(left)
            for _ in left:
                _send_next(crew[-1], taken_over)

    def _answering(self, crew: list[_Worker]) -> _Worker:
        """Wait for a worker that has an answer, or has ended.

        Of several the one with the oldest shard: were one served before all others again and
        again, what is consumed in order would wait for theirs.
        """
        while True:
            if not self._workers:
                raise UsageError("the engine was closed while a run of it was open; run it again")
            busy = [worker for worker in crew if worker.pending]
            for worker in busy:
                worker.overran = worker.overran or overdue(worker.deadline)
                if worker.overran is not None:
                    worker.process.kill()
            answered = wait([worker.connection for worker in busy], LOOK)
            ready = [
                worker
                for worker in busy
                if worker.connection in answered or worker.process.exitcode is not None
            ]
            if ready:
                return min(ready, key=_oldest)

    def close(self) -> None:
        """End all workers and wait until they are gone; those that do not go are killed."""
        if os.getpid() != self._owner:
            return  # a process forked off later has no say over them
        with _signals_held():
            workers, self._workers = self._workers, []
            _end(workers)

    def __del__(self) -> None:
        if getattr(self, "_workers", None):
            with suppress(Exception):
                self.close()


def _name(work: object) -> str:
    code = getattr(work, "func", work)
    return f"the work {getattr(code, '__qualname__', type(code).__qualname__)!r}"


@contextmanager
def _signals_held() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The environment that a process started within inherits: libraries read it as they load."""
    kept = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _start() -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    read, written = context.Pipe(duplex=False)
    deadline = context.RawArray("d", 2)
    # A daemon, so that an engine nobody closed cannot keep this process from ending.
    process = context.Process(
        target=serve, args=(theirs, deadline, written), name="specverify-worker", daemon=True
    )
    try:
        process.start()
    finally:
        theirs.close()
        written.close()
    return _Worker(process, ours, deadline, read)


def _answers(worker: _Worker) -> bool:
    """Whether an idle worker is there; one killed a moment ago need not look ended yet."""
    try:
        worker.connection.send(PING)
        while not worker.connection.poll(LOOK):
            if worker.process.exitcode is not None:
                return False
        return worker.connection.recv() == PING
    except (EOFError, OSError):
        return False


def _send_work(worker: _Worker, payload: bytes) -> None:
    worker.pending.append(None)
    # That a worker has ended is told when its answer is waited for, with the shard it was at.
    with suppress(OSError):
        worker.connection.send(None)
        worker.connection.send_bytes(payload)


def _send_next(worker: _Worker, waiting: Iterator[int]) -> None:
    for index in waiting:
        worker.pending.append(index)
        with suppress(OSError):
            worker.connection.send(index)
        return


def _oldest(worker: _Worker) -> float:
    first = worker.pending[0]
    return -1 if first is None else first


class _Gone(Exception):
    """A worker ended before it had answered."""


def _receive(worker: _Worker) -> tuple[int | None, Any]:
    try:
        if not worker.connection.poll():
            raise EOFError
        content = worker.connection.recv_bytes()
    except (EOFError, OSError):
        raise _Gone from None
    index = worker.pending.popleft()
    value, text = pickle.loads(content)
    if text is not None:
        raise value from WorkerTraceback(f"in a worker process:\n{text}")
    return index, value


def _how(worker: _Worker) -> str:
    """How a worker ended, in words that follow its name."""
    worker.process.join(_GRACE)
    code = worker.process.exitcode
    if worker.overran is not None:
        return (
            f"was killed: a call ran past its time limit of {worker.overran:g} s and could not be "
            "interrupted"
        )
    if code is not None and -code in HELD:
        # Whoever signals all processes of a job signals this one too: let its handler speak first.
        time.sleep(LOOK)
    if code is None:
        return "closed its connection"
    if code < 0:
        return f"was killed by {_signal_name(-code)} (exit code {code})"
    return f"ended itself with exit code {code}"


def _how_and_why(worker: _Worker) -> str:
    """The same, with what there is to say about the cause."""
    how, code = _how(worker), worker.process.exitcode
    if worker.overran is not None or code is None:
        return how
    if code >= 0:
        return f"{how}, as os._exit({code}) does"
    return f"{how}; watch its memory" if -code == _KILLED else f"{how}{_where(worker)}"


def _ended(worker: _Worker) -> SubjectError:
    first, *rest = worker.pending
    if first is not None:
        error = SubjectError if worker.overran is None else SubjectTimeout
        return error(
            f"the worker process of shard {first} {_how_and_why(worker)}. Most likely the "
            "subject's code did it: run with one job (--jobs 1; jobs=1 in Python) to see where, or "
            "with --isolate (isolate=True) to go on with the other cases"
        )
    shard = f", before shard {rest[0]}" if rest else ""
    return SubjectError(
        f"a worker process {_how(worker)} while it started{shard}. Its standard error says "
        "why. If it was started from a script, the script must start its run under "
        'if __name__ == "__main__": and not be read from standard input; or use one job (--jobs 1, '
        "without --isolate; jobs=1 in Python)"
    )


def _where(worker: _Worker) -> str:
    """The line at which a worker crashed, if it could still tell."""
    try:
        # At most what one traceback is; a process it forked may keep the pipe open.
        text = os.read(worker.last_words.fileno(), 1 << 16) if worker.last_words.poll() else b""
    except OSError:
        return ""
    frames = _FRAME.findall(text.decode("utf-8", "replace"))
    if not frames:
        return ""
    called = f", called at {_line(frames[1])}" if len(frames) > 1 else ""
    return f", in {frames[0][2]} at {_line(frames[0])}{called}"


def _line(frame: tuple[str, str, str]) -> str:
    """Short enough to hold on any machine."""
    return f"{'/'.join(PurePath(frame[0]).parts[-2:])}:{frame[1]}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _end(workers: list[_Worker]) -> None:
    """End workers: idle ones by the end of their pipe, others by a signal, all within a time."""
    for worker in workers:
        worker.connection.close()
        worker.last_words.close()
        if None in worker.pending:
            worker.process.kill()  # one that starts may hold SIGTERM back
        elif worker.pending:
            worker.process.terminate()
    deadline = time.monotonic() + _GRACE
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join(_GRACE)
        with suppress(ValueError):  # not even SIGKILL ended it: a kernel call that hangs
            worker.process.close()
