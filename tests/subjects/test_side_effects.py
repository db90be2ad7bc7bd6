"""What a call does beside its task is sent elsewhere, or told."""

import io
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from specverify.subjects.guard import run_guarded
from specverify.subjects.protocols import Subject
from specverify.subjects.side_effects import GOES_ON, PRINTS, lifted

log = logging.getLogger("a subject's")
STOP = threading.Event()


@pytest.fixture(autouse=True)
def _threads_end() -> Iterator[None]:
    STOP.clear()
    yield
    STOP.set()


def findings(call: Callable[[], Any], name: str = "mine") -> tuple[str, ...]:
    return run_guarded(Subject(name, "decoder", call), call).findings


def stays() -> threading.Thread:
    thread = threading.Thread(target=STOP.wait, daemon=True)
    thread.start()
    return thread


def ends_soon() -> None:
    threading.Thread(target=time.sleep, args=(0.01,)).start()


def joined() -> None:
    thread = threading.Thread(target=time.sleep, args=(0.01,))
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    "say",
    [
        lambda: sys.stdout.write("said\n"),
        lambda: sys.stdout.writelines(["sa", "id\n"]),
        lambda: sys.stdout.buffer.write(b"said\n"),
        lambda: io.TextIOWrapper(sys.stdout.buffer, write_through=True).write("said\n"),
    ],
)
def test_what_is_printed_goes_to_standard_error(
    say: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert findings(say) == (PRINTS,)
    assert capsys.readouterr() == ("", "said\n")


@pytest.mark.parametrize(
    "say",
    [
        lambda: sys.stderr.write("said\n"),
        lambda: logging.StreamHandler().emit(log.makeRecord("", 20, "", 1, "said", (), None)),
    ],
)
def test_standard_error_and_logs_are_nobodys_business(
    say: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert findings(say) == ()
    assert capsys.readouterr() == ("", "said\n")


def test_what_looks_like_printing_is_none() -> None:
    def call() -> None:
        sys.stdout.flush()
        sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
        assert sys.stdout.writable()
        assert not sys.stdout.isatty()
        assert sys.stdout.encoding == "utf-8"

    assert findings(call) == ()


def test_standard_output_is_put_back_whatever_replaced_it(monkeypatch: Any) -> None:
    before = sys.stdout

    def replaces() -> None:
        sys.stdout = io.StringIO()
        sys.stdout.write("to nobody\n")

    assert findings(replaces) == ()
    assert sys.stdout is before

    def closes() -> None:
        sys.stdout.close()
        raise ValueError("as it is closed")

    with pytest.raises(Exception, match="as it is closed"):
        findings(closes)
    assert sys.stdout is before
    assert not before.closed
    monkeypatch.setattr(sys, "stderr", None)
    assert findings(lambda: sys.stdout.write("to nobody\n")) == (PRINTS,)


def test_standard_error_can_be_handed_to_programs(capfd: pytest.CaptureFixture[str]) -> None:
    def call() -> None:
        os.write(sys.stdout.fileno(), b"by a program\n")

    assert findings(call) == ()
    assert capfd.readouterr() == ("", "by a program\n")


@pytest.mark.parametrize("call", [joined, ends_soon])
def test_threads_that_end_are_none_of_our_business(call: Callable[[], Any]) -> None:
    assert findings(call) == ()


def test_threads_that_go_on_are_told_and_not_waited_for_again() -> None:
    assert findings(stays, "stays") == (GOES_ON,)
    begin = time.monotonic()
    for _ in range(20):
        assert findings(stays, "stays") == (GOES_ON,)
    assert time.monotonic() - begin < 1.0
    assert findings(lambda: None, "stays") == ()


def test_another_subject_of_that_name_is_waited_for() -> None:
    assert findings(stays, "namesake") == (GOES_ON,)
    assert findings(ends_soon, "namesake") == ()


@dataclass(frozen=True)
class Case:
    id: str
    findings: tuple[str, ...]

    def model_copy(self, *, update: dict[str, Any]) -> "Case":
        return replace(self, **update)


def test_remarks_are_lifted_out_of_the_cases() -> None:
    cases = [Case("a", ("odd", GOES_ON)), Case("b", ("odd",)), Case("c", (GOES_ON, PRINTS))]
    plain, remarks = lifted(cases)
    assert plain == [Case("a", ("odd",)), Case("b", ("odd",)), Case("c", ())]
    assert remarks == (PRINTS, GOES_ON)
    assert lifted(plain) == (plain, ())
