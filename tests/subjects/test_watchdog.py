"""The time limit: it interrupts, cannot be swallowed, and leaves no trace."""

import contextlib
import importlib
import math
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from specverify.errors import SubjectTimeout, UsageError
from specverify.subjects import watchdog
from specverify.subjects.watchdog import LONGEST, time_limit

LIMIT = 0.05


def sleeps() -> None:
    time.sleep(30)


def loops() -> None:
    while True:
        sum(range(100))


def swallows_exceptions() -> None:
    while True:
        try:
            time.sleep(30)
        except Exception:
            continue


def swallows_everything_once() -> None:
    try:
        time.sleep(30)
    except BaseException:
        loops()


def swallows_everything_forever() -> None:
    while True:
        try:
            time.sleep(30)
        except:  # noqa: E722
            continue


def swallows_in_the_caller_forever() -> None:
    while True:
        try:
            sleeps()
        except BaseException:
            continue


def translates_the_interruption() -> None:
    try:
        time.sleep(30)
    except BaseException as error:
        raise RuntimeError("worker died") from error


def returns_after_swallowing() -> None:
    try:
        time.sleep(30)
    except BaseException:
        return


@pytest.mark.parametrize(
    "hangs",
    [
        sleeps,
        loops,
        swallows_exceptions,
        swallows_everything_once,
        swallows_everything_forever,
        swallows_in_the_caller_forever,
        translates_the_interruption,
        returns_after_swallowing,
    ],
)
def test_a_hanging_block_is_ended(hangs: Callable[[], None]) -> None:
    begin = time.monotonic()
    with pytest.raises(SubjectTimeout, match=r"limit of 0\.05 s.*--time-limit"), time_limit(LIMIT):
        hangs()
    assert time.monotonic() - begin < 5


def test_a_quick_block_passes_and_is_not_interrupted_later() -> None:
    with time_limit(LIMIT):
        value = sum(range(10))
    time.sleep(2 * LIMIT)
    assert value == 45


def test_what_a_quick_block_raises_comes_through() -> None:
    with pytest.raises(ZeroDivisionError), time_limit(5):
        _ = 1 / 0


def test_control_c_comes_through_even_after_the_limit() -> None:
    def interrupted() -> None:
        try:
            time.sleep(30)
        except BaseException:
            raise KeyboardInterrupt from None

    with pytest.raises(KeyboardInterrupt), time_limit(LIMIT):
        interrupted()


def test_handler_timer_and_tracer_are_restored() -> None:
    def mine(*_: object) -> None: ...

    tracer = sys.gettrace()
    before = signal.signal(signal.SIGALRM, mine)
    try:
        with pytest.raises(SubjectTimeout), time_limit(LIMIT):
            swallows_everything_forever()
        assert signal.getsignal(signal.SIGALRM) is mine
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        assert sys.gettrace() is tracer
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def slow_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Makes a module of the given source, found by the name that is returned."""

    def make(source: str) -> str:
        name = f"slow_module_{tmp_path.name}".replace("-", "_")
        (tmp_path / f"{name}.py").write_text(source)
        importlib.invalidate_caches()
        return name

    monkeypatch.syspath_prepend(tmp_path)
    return make


def test_an_import_is_let_finish(slow_module: Callable[[str], str]) -> None:
    """Cut off, it leaves a package whose submodules are there and whose names are not."""
    name = slow_module("import time\nfor _ in range(60): time.sleep(0.01)\nvalue = 1\n")
    reached: list[int] = []

    def block() -> None:
        reached.append(importlib.import_module(name).value)
        loops()

    with pytest.raises(SubjectTimeout), time_limit(LIMIT):
        block()
    assert reached == [1]
    assert sys.modules.pop(name).value == 1


def test_an_import_that_never_ends_is_ended(
    slow_module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "_IMPORT_GRACE", 0.5)
    name = slow_module("import time\ntime.sleep(30)\n")
    begin = time.monotonic()
    with pytest.raises(SubjectTimeout), time_limit(LIMIT):
        importlib.import_module(name)
    assert 0.5 < time.monotonic() - begin < 10


def test_an_import_around_the_limit_postpones_nothing(slow_module: Callable[[str], str]) -> None:
    name = slow_module(
        "import time\nfrom specverify.subjects.watchdog import time_limit\n"
        "with time_limit(0.05): time.sleep(30)\n"
    )
    begin = time.monotonic()
    with pytest.raises(SubjectTimeout):
        importlib.import_module(name)
    assert time.monotonic() - begin < 5


def test_limits_nest() -> None:
    begin = time.monotonic()

    def inner_then_more() -> None:
        with pytest.raises(SubjectTimeout, match=r"0\.05 s"), time_limit(LIMIT):
            loops()
        loops()

    with pytest.raises(SubjectTimeout, match=r"0\.2 s"), time_limit(0.2):
        inner_then_more()
    assert time.monotonic() - begin < 5


def test_an_alarm_in_the_guards_own_frames_is_kept_for_the_end() -> None:
    """Raised there, it would leave the guard as something other than a `SubjectTimeout`."""
    frame = mock.Mock(**{"f_code.co_filename": contextlib.__file__})

    def alarm() -> None:
        handler = signal.getsignal(signal.SIGALRM)
        assert callable(handler)
        assert handler(signal.SIGALRM, frame) is None

    with pytest.raises(SubjectTimeout), time_limit(30):
        alarm()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def in_a_thread(block: Callable[[], None]) -> list[BaseException]:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            with time_limit(LIMIT):
                block()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised


def test_outside_the_main_thread_the_limit_is_checked_at_the_end() -> None:
    (late,) = in_a_thread(lambda: time.sleep(3 * LIMIT))
    assert isinstance(late, SubjectTimeout)

    def late_failure() -> None:
        time.sleep(3 * LIMIT)
        raise ZeroDivisionError

    (failed,) = in_a_thread(late_failure)
    assert isinstance(failed, SubjectTimeout)
    assert isinstance(failed.__cause__, ZeroDivisionError)
    assert in_a_thread(lambda: None) == []


def test_without_sigalrm_the_limit_is_checked_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signal, "SIGALRM")
    with pytest.raises(SubjectTimeout), time_limit(LIMIT):
        time.sleep(3 * LIMIT)


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize(
    "disarm",
    [
        lambda: signal.setitimer(signal.ITIMER_REAL, 0),
        lambda: signal.signal(signal.SIGALRM, signal.SIG_IGN),
    ],
)
def test_a_block_that_switches_the_alarm_off_is_late_all_the_same(
    disarm: Callable[[], object], raises: bool
) -> None:
    def block() -> None:
        disarm()
        time.sleep(3 * LIMIT)
        if raises:
            raise ZeroDivisionError

    with pytest.raises(SubjectTimeout), time_limit(LIMIT):
        block()
    with time_limit(30):
        disarm()


def test_the_longest_limit_is_one_the_timer_takes() -> None:
    with time_limit(LONGEST):
        left, _ = signal.getitimer(signal.ITIMER_REAL)
    assert left > LONGEST - 60


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan, 2 * LONGEST, 1e300])
def test_an_impossible_limit_is_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match="positive number of seconds"), time_limit(seconds):
        pytest.fail("the block must not run")
