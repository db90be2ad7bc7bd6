"""Work for engines, in a module that worker processes import in no time."""

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

from specverify.errors import SubjectTimeout


def square(index):
    return index * index


def state(index):
    """A state with floats whose sums depend on the order they are taken in."""
    import numpy as np

    rng = np.random.default_rng(index)
    return {
        "index": index,
        "total": float(rng.normal()),
        "counts": rng.integers(0, 9, 4),
        "nested": {"extremes": rng.normal(size=(2, 3)).astype(np.float32), "example": [index]},
    }


def logged_state(log, seconds, index):
    """As `state`, after a while, and noted in a file with the process that made it."""
    note(log, index)
    time.sleep(seconds)
    return state(index)


def logged_square(log, seconds, index):
    note(log, index)
    time.sleep(seconds)
    return square(index)


def stuck_after_three(log, index):
    return logged_square(log, 0 if index <= 3 else 60, index)


def note(log, index):
    with Path(log).open("a") as file:
        file.write(f"{index} {os.getpid()}\n")


def noted(log):
    """(index, process) of every note."""
    path = Path(log)
    if not path.exists():
        return []
    return [tuple(map(int, line.split())) for line in path.read_text().splitlines()]


def process_of(index):
    return os.getpid()


def threads(index):
    return [os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")]


def torch_threads(index):
    return sys.modules["torch"].threads


class NeedsTorch:
    """Work whose loading imports torch, or what the test puts in its place."""

    def __call__(self, index):
        return torch_threads(index)

    def __setstate__(self, state):
        import torch  # noqa: F401

    def __getstate__(self):
        return {"some": "state"}


class CountsPickles:
    """Work that counts how often it was pickled."""

    pickled = 0

    def __call__(self, index):
        return index

    def __getstate__(self):
        type(self).pickled += 1
        return {"some": "state"}


def refuse_to_load(*_):
    raise ValueError("no such model here")


class CannotBeLoaded:
    def __call__(self, index):
        return index

    def __reduce__(self):
        return refuse_to_load, ()


class Needy(Exception):
    """An exception that pickle cannot make again."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def fail(kind, index):
    if index != 3:
        return index
    raise {
        "value": ValueError("three is too many"),
        "timeout": SubjectTimeout("a call ran past its time limit of 2 s"),
        "needy": Needy("this", "that"),
    }[kind]


def end(how, index):
    if index == 3:
        how()
    return index


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def exit_at_once():
    os._exit(0)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def abort():
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()


def leave_a_child_behind():
    """End while a forked process keeps this one's descriptors open."""
    if os.fork() == 0:
        time.sleep(6)
    os._exit(7)


def unpicklable_result(index):
    return lambda: index


def has_a_child(index):
    """Start a process of one's own, as a subject may, and end it."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    child.terminate()
    child.join()
    return child.exitcode


def stubborn(log, index):
    """Work that neither SIGTERM nor an interrupt ends."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(log, index)
    while index > 0:
        time.sleep(0.05)
    return index


def reversed_square(index):
    """The later the shard, the sooner it is done."""
    time.sleep(max(0.0, 0.2 - 0.04 * index))
    return square(index)


def block_the_timer():
    """Never return, nor let anything in this process say so."""
    import ctypes

    from specverify.sampling import deadline

    with deadline.told(0.5 - deadline.SLACK):
        ctypes.PyDLL(None).pause()  # keeps the interpreter's lock


def print_everywhere():
    sys.stdout.write("by the interpreter\n")
    sys.stdout.flush()
    os.write(1, b"by the system\n")


class Contained:
    """Work of which some shards do something, and that goes on without them."""

    def __init__(self, log, at=(), how=None):
        self.log, self.at, self.how = log, at, how

    def __call__(self, index):
        note(self.log, index)
        if index in self.at:
            self.how()
        return index

    def lost(self, index, how):
        return f"{index} {how}"
