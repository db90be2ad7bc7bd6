"""The console script: an end that nobody reported is an error, whatever its exit code."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from specverify.certification.certificate import Certificate

SAMPLE_FILE = Path(__file__).parent / "certification" / "sample_certificate.json"
SAMPLE = Certificate.load(SAMPLE_FILE)
RUN = "specverify.certification.run"

SCRIPT = """
import ctypes, os, resource, signal, sys, time
from specverify import supervision

def main():
    DO
    return CODE

supervision.main = main
sys.exit(supervision.run())
"""


def start(do: str, code: int = 0) -> subprocess.Popen[str]:
    """The console script, with a command line that does the given statement."""
    script = textwrap.dedent(SCRIPT).replace("DO", do).replace("CODE", str(code))
    return subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(do: str, code: int = 0) -> tuple[int, str]:
    process = start(do, code)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 130, 141])
def test_a_reported_code_is_the_exit_code(code: int) -> None:
    assert run("pass", code) == (code, "")


@pytest.mark.parametrize(
    ("do", "how"),
    [
        ("os._exit(0)", "ended itself with exit code 0, as os._exit(0) does"),
        ("os._exit(1)", "ended itself with exit code 1"),
        ("sys.exit(0)", "ended itself with exit code 0"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "was killed by SIGTERM"),
        ("resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.abort()", "killed by SIGABRT"),
        ("resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); ctypes.string_at(0)", "SIGSEGV"),
    ],
)
def test_any_other_end_is_an_error(do: str, how: str) -> None:
    code, err = run(do)
    assert code == 3
    assert err.startswith("Error: the process that ran the subject ")
    assert how in err
    assert "no certificate was written" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "do",
    [
        "os.closerange(3, 256)",
        "os.fork() or sys.exit(5)",
        "import atexit; atexit.register(os._exit, 0)",
        "os.wait() if os.fork() else os._exit(0)",
    ],
)
def test_what_a_right_subject_may_do(do: str) -> None:
    assert run(do, 1)[0] == 1


@pytest.mark.parametrize(
    "do",
    [
        "import threading; threading.Thread(target=time.sleep, args=(300,)).start()",
        "import multiprocessing as m; "
        "m.get_context('fork').Process(target=time.sleep, args=(300,)).start()",
        "import threading; sys.stdout = None; "
        "threading.Thread(target=time.sleep, args=(300,)).start()",
    ],
    ids=["thread", "process", "no output"],
)
def test_what_a_subject_leaves_running_is_not_waited_for(do: str) -> None:
    process = start(f"print('report'); {do}", 1)
    begin = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (1, "report\n", "")
    assert time.monotonic() - begin < 30


def test_a_signal_that_ends_the_child_is_an_interrupt() -> None:
    process = start("sys.stderr.write('started\\n'); sys.stderr.flush(); time.sleep(60)")
    assert process.stderr is not None
    assert process.stderr.readline() == "started\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "Interrupted; no certificate was written.\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_the_child_ends_with_its_parent() -> None:
    process = start("sys.stderr.write(f'{os.getpid()}\\n'); sys.stderr.flush(); time.sleep(60)")
    assert process.stderr is not None
    process.stderr.readline()
    process.kill()
    begin = time.monotonic()
    process.communicate(timeout=30)  # waits until the child, too, has closed its output
    assert time.monotonic() - begin < 20


def test_without_fork_it_runs_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    from specverify import supervision

    monkeypatch.delattr(os, "fork")
    monkeypatch.setattr(supervision, "main", lambda: 2)
    assert supervision.run() == 2


FAKE = f"""
import os, signal, sys, time, types
from specverify.certification.certificate import Certificate

def certify(*_, **__):
    try:
        print("started", file=sys.stderr, flush=True)
        DO
    except KeyboardInterrupt:
        return sample.model_copy(update={{"interrupted": True}})
    return sample

sample = Certificate.load({str(SAMPLE_FILE)!r})
sys.modules[{RUN!r}] = types.SimpleNamespace(certify=certify)
from specverify.supervision import run
sys.exit(run())
"""


def start_certify(do: str, *argv: str, **options: Any) -> subprocess.Popen[str]:
    """The console script, with a certification that does the given statement."""
    code = textwrap.dedent(FAKE).replace("DO", do)
    return subprocess.Popen(
        [sys.executable, "-c", code, *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.parametrize("group", [False, True], ids=["process", "group"])
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_during_a_run_writes_what_was_computed(
    tmp_path: Path, sent: signal.Signals, group: bool
) -> None:
    """Also where it arrives several times, as Ctrl-C of a terminal does."""
    argv = ["certify", "reference", "--out", str(tmp_path)]
    process = start_certify("time.sleep(60)", *argv, start_new_session=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "started\n"
    if group:
        os.killpg(process.pid, sent)
    else:
        process.send_signal(sent)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "(interrupted" in out
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text())["interrupted"] is True


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    process = start_certify(
        "os.kill(os.getppid(), signal.SIGHUP); os.kill(os.getpid(), signal.SIGHUP); time.sleep(1)",
        *("certify", "reference"),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    process.communicate(timeout=120)
    assert process.returncode == 1


def test_a_reader_that_leaves_is_no_violation_and_loses_nothing(tmp_path: Path) -> None:
    process = start_certify("pass", "certify", "reference", "--out", str(tmp_path))
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    assert process.wait(timeout=120) == 141
    assert "Traceback" not in err
    assert "Exception ignored" not in err
    (path,) = tmp_path.iterdir()
    assert Certificate.load(path) == SAMPLE


def test_a_subject_that_closes_standard_output_loses_nothing(tmp_path: Path) -> None:
    do = "sys.stdout.close()"
    process = start_certify(do, "certify", "reference", "--out", str(tmp_path))
    _, err = process.communicate(timeout=120)
    assert process.returncode == 3
    assert err.count("Error: ") == 1
    assert "the verdict is violated, but the report could not be printed" in err
    (path,) = tmp_path.iterdir()
    assert Certificate.load(path) == SAMPLE


@pytest.mark.parametrize(
    "do",
    [
        "sys.stdout = None",
        "sys.stdout = sys.stderr = None",
        "import io; sys.stdout = io.StringIO()",
        "import io; sys.stdout = io.TextIOWrapper(sys.stdout.buffer); print('mine')",
        "import io; sys.stdout = io.TextIOWrapper(sys.stdout.detach())",
        "os.close(1)",
        "print('mine'); os.write(1, b'mine'); os.system('echo mine')",
        "import ctypes; ctypes.CDLL(None).puts(b'mine')",
    ],
)
def test_a_subject_that_replaces_standard_output_hides_no_report(do: str) -> None:
    process = start_certify(do, "certify", "reference")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    assert "VIOLATED" in out
    assert "mine" not in out


@pytest.mark.parametrize("do", ["sys.stdout = None; sys.stderr = None; 1 / 0"])
def test_a_subject_that_takes_the_streams_away_hides_no_error(do: str) -> None:
    process = start_certify(do, "certify", "reference")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 3
    assert "ZeroDivisionError" in err


def test_a_subject_that_ends_its_process_does_not_pass(tmp_path: Path) -> None:
    process = start_certify("os._exit(0)", "certify", "reference", "--out", str(tmp_path))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 3
    assert out == ""
    assert "as os._exit(0) does" in err
    assert list(tmp_path.iterdir()) == []
