"""Running code under test: within a time limit, its failures named, its randomness watched."""

import ctypes
import hashlib
import os
import random
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Generator

from specverify.errors import SubjectError, SubjectTimeout
from specverify.quoting import message_of, printable
from specverify.subjects.protocols import Subject
from specverify.subjects.side_effects import side_effects
from specverify.subjects.switches import switches_kept
from specverify.subjects.watchdog import check_time_limit, time_limit

T = TypeVar("T")

DEFAULT_TIME_LIMIT = 60.0
"""Seconds a single call may take."""

_TOUCHED = (
    "draws from or seeds {}'s global generator, though it declares that all its draws come from "
    "the generator it is handed"
)

_SWITCHED = "changes {} for the whole process; it was put back after the call"

_MT19937_BYTES = 4 * (624 + 1)
"""The words of its state, and the position among them."""

_NOT_THEIRS = (
    "specverify/subjects/calling.py",
    "exact/steering/mode.py",
    "exact/steering/sources.py",
    "exact/steering/operation.py",
    "torch/_ops.py",
)
_FRAMES = 3
"""Frames of a subject's traceback quoted in the message."""


@dataclass(frozen=True)
class Call(Generic[T]):
    """What a call into a subject gave."""

    value: T
    seconds: float
    findings: tuple[str, ...] = ()
    """Sentences on what is odd about the call and no error, such as a touched global generator."""
    failure: str | None = None
    """What the next of several calls failed with, where `value` is of those before it."""


def run_guarded(
    subject: Subject,
    call: Callable[..., T],
    *arguments: Any,
    generator: Generator | None = None,
    limit: float | None = DEFAULT_TIME_LIMIT,
) -> Call[T]:
    """Call into the code of a subject.

    A subject that declares `generator=False` draws from the global generators of torch, numpy and
    Python: they are seeded from `generator` for the call and restored after it, so the same seed
    gives the same run. One that declares a generator and still draws from them is reported, and so
    is one that changes a switch of the whole process. What it prints goes to standard error.

    Args:
        subject: whose code it is; named in every message.
        call: what to call.
        *arguments: what to call it with.
        generator: seeds the global generators where the subject uses them; without one they are
            only watched.
        limit: wall time in seconds; None where what is called keeps one itself.

    Raises:
        SubjectTimeout: the call ran past the limit.
        SubjectError: the code raised; the message has the exception and where it came from.
        KeyboardInterrupt: as it is.
        UsageError: the limit is none that a timer can keep.
    """
    if limit is not None:
        check_time_limit(limit)
    declares = subject.capabilities.generator
    before = _global_states() if declares else {}
    lent = nullcontext() if declares or generator is None else lend_global_generators(generator)
    begin = time.perf_counter()
    try:
        with (
            side_effects(subject) as beside,
            switches_kept() as switched,
            lent,
            nullcontext() if limit is None else time_limit(limit),
        ):
            value = _in_this_process(call, arguments)
    except SubjectTimeout as error:
        raise SubjectTimeout(f"subject {subject.name!r}: {error}") from error.__cause__
    except KeyboardInterrupt:
        raise
    except SubjectError as error:
        said = message_of(error, longest=5000)
        if error.args == (said,):
            raise
        raise SubjectError(said) from error
    except BaseException as error:
        raise SubjectError(_explain(subject, error)) from error
    seconds = time.perf_counter() - begin
    findings = [_TOUCHED.format(name) for name in _changed(before)]
    findings += [_SWITCHED.format(name) for name in switched]
    findings += beside
    return Call(value, seconds, tuple(findings))


def ended_process(subject: Subject, how: str) -> str:
    """The failure of a subject that ended the process it ran in, `how` in words."""
    return f"the process that ran subject {subject.name!r} {how}"


def _in_this_process(call: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    """Call, and end any process the subject forked that comes out: it would go on with the run."""
    process = os.getpid()
    code = 0
    try:
        return call(*arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    except BaseException:
        code = 1
        raise
    finally:
        if os.getpid() != process:
            os._exit(code)


def _global_states() -> dict[str, Any]:
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": _numpy_state(),
        "python": random.getstate(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["torch.cuda"] = torch.cat(torch.cuda.get_rng_state_all())
    return states


def _numpy_state() -> Any:
    """The state of numpy's global generator: its bytes where it is the usual one, as `get_state`
    takes longer than all else that a call is guarded by. A normal number it holds back comes with
    them; bytes that once stood without one still do, since holding one back moves them on."""
    source = np.random.get_bit_generator()  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(source, np.random.MT19937):
        return np.random.get_state(legacy=False)
    words = ctypes.string_at(source.ctypes.state_address, _MT19937_BYTES)
    if words == _holding_nothing[0]:
        return words
    state: Any = np.random.get_state(legacy=False)
    if state["has_gauss"]:
        return words, state["gauss"]
    _holding_nothing[0] = words
    return words


_holding_nothing = [b""]
"""The last state of numpy's global generator that held no normal number back."""


def _changed(before: dict[str, Any]) -> list[str]:
    after = _global_states() if before else {}
    return [name for name in before if not _same(before[name], after[name])]


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return all(_same(left[key], right[key]) for key in left)
    if isinstance(left, np.ndarray):
        return np.array_equal(left, right)
    return bool(left == right)


@contextmanager
def lend_global_generators(generator: Generator) -> Iterator[None]:
    """Lend the global generators for a while, seeded from the state of `generator`.

    The state is read, and the generator moved on by a draw that nothing looks at: a seed is no
    decision of the subject, and exact evidence need not follow it.
    """
    state = hashlib.sha256(generator.get_state().cpu().numpy().tobytes()).digest()
    first, second, third = (int.from_bytes(state[i : i + 4]) for i in (0, 4, 8))
    torch.rand(1, generator=generator, device=generator.device)
    numpy_state = np.random.get_state(legacy=False)
    python_state = random.getstate()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=devices):
        try:
            torch.default_generator.manual_seed(first)
            for device in devices:
                torch.cuda.default_generators[device].manual_seed(first)
            np.random.seed(second)
            random.seed(third)
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)


def _explain(subject: Subject, error: BaseException) -> str:
    """The exception and the innermost frames, with paths short enough to hold on any machine."""
    frames = traceback.extract_tb(error.__traceback__)
    # The first two frames are the guard's own, and where randomness is steered every operation of
    # torch passes through some that say nothing about the subject.
    frames = frames[:2] + [
        frame
        for frame in frames[2:]
        if not PurePath(frame.filename).as_posix().endswith(_NOT_THEIRS)
    ]
    lines = [
        f"  {'/'.join(PurePath(frame.filename).parts[-2:])}:{frame.lineno} in {frame.name}"
        + (f": {frame.line}" if frame.line else "")
        for frame in frames[2:][-_FRAMES:]
    ]
    said = message_of(error)
    said = f": {said}" if said else ""
    text = "\n".join([f"subject {subject.name!r} raised {type(error).__name__}{said}", *lines])
    return printable(text)
