"""Standard output is kept for the report, by whatever means others write to it."""

import ctypes
import os
import subprocess
import sys

import pytest

from specverify.cli_streams import Streams

SAYS = """
import ctypes, os, subprocess, sys
from specverify.cli_streams import Streams

streams = Streams()
sys.stdout.write("before, ")
with streams.kept_for_the_report():
    sys.stdout.write("mine ")
    os.write(1, b"mine ")
    ctypes.CDLL(None).printf(b"mine ")
    subprocess.run([sys.executable, "-c", "print('mine')"], check=True)
    DO
streams.restore()
sys.stdout.write("report")
"""


def run(do: str = "pass", **options: object) -> tuple[str, str]:
    process = subprocess.run(
        [sys.executable, "-c", SAYS.replace("DO", do)],
        capture_output=True,
        text=True,
        check=True,
        **options,  # pyright: ignore[reportArgumentType, reportCallIssue]
    )
    return process.stdout, process.stderr


@pytest.mark.parametrize(
    "do",
    [
        "pass",
        "os.close(1)",
        "os.closerange(3, 256)",
        "import io; sys.stdout = io.StringIO()",
        "os.dup2(os.open(os.devnull, os.O_WRONLY), 1)",
    ],
)
def test_only_the_report_comes_out(do: str) -> None:
    out, err = run(do)
    assert out == "before, report"
    assert err.split() == ["mine"] * 4


def test_without_standard_error_nothing_is_lost() -> None:
    out, _ = run("pass", preexec_fn=lambda: os.close(2))
    assert out.endswith("report")


def test_one_after_the_other(capfd: pytest.CaptureFixture[str]) -> None:
    streams = Streams()

    def fails() -> None:
        with streams.kept_for_the_report():
            ctypes.CDLL(None).printf(b"mine ")
            raise ValueError("no")

    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            fails()
        os.write(1, b"report ")
    out, err = capfd.readouterr()
    assert (out, err) == ("report " * 3, "mine " * 3)
