"""Worker processes: the results of one process, and nothing left behind however it ends."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from specverify.errors import SubjectError, SubjectTimeout, UsageError
from specverify.sampling.engines import InProcess
from specverify.sampling.prefix import in_order
from specverify.sampling.processes import Processes, WorkerTraceback

HERE = Path(__file__).parent


def runs(process: int) -> bool:
    """Whether a process is there and has not ended; one that nobody has waited for has."""
    if not Path("/proc/self/stat").exists():
        return os.system(f"kill -0 {process} 2>{os.devnull}") == 0
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def until(condition: Callable[[], object], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_results_equal_those_of_one_process_whatever_the_order(work: ModuleType) -> None:
    alone = list(in_order(InProcess().run(work.state, range(9))))
    with Processes(2) as engine:
        together = list(in_order(engine.run(work.state, range(9))))
        late_first = list(engine.run(work.reversed_square, range(6)))
        assert [pickle.dumps(state) for state in together] == [pickle.dumps(s) for s in alone]
        assert sorted(late_first) == [(i, i * i) for i in range(6)]
        assert late_first != sorted(late_first)


def test_workers_serve_run_after_run_and_start_when_needed(work: ModuleType) -> None:
    with Processes(2) as engine:
        assert multiprocessing.active_children() == []
        assert list(engine.run(work.square, [])) == []
        assert multiprocessing.active_children() == []
        ((_, only),) = engine.run(work.process_of, [5])
        assert [child.pid for child in multiprocessing.active_children()] == [only]
        assert sorted(engine.run(work.square, range(5))) == [(i, i * i) for i in range(5)]
        two = {child.pid for child in multiprocessing.active_children()}
        assert len(two) == 2
        again = {process for _, process in engine.run(work.process_of, range(8))}
        assert only in two
        assert again <= two
        assert os.getpid() not in two


def test_work_is_pickled_once_for_all_workers_and_shards(work: ModuleType) -> None:
    work.CountsPickles.pickled = 0
    with Processes(2) as engine:
        assert len(list(engine.run(work.CountsPickles(), range(10)))) == 10
    assert work.CountsPickles.pickled == 1


def test_workers_have_one_thread_and_this_process_keeps_its_own(
    work: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = "threads = 64\ndef set_num_threads(n):\n    global threads\n    threads = n\n"
    (tmp_path / "torch.py").write_text(fake)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    with Processes(1) as engine:
        assert list(engine.run(work.threads, [0])) == [(0, ["1", "1"])]
        assert list(engine.run(work.NeedsTorch(), [0])) == [(0, 1)]
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ


def test_a_subject_may_have_processes_of_its_own(work: ModuleType) -> None:
    with Processes(1) as engine:
        assert list(engine.run(work.has_a_child, [0])) == [(0, -signal.SIGTERM)]


def test_an_early_stop_wastes_little_and_leaves_no_worker(work: ModuleType, tmp_path: Path) -> None:
    log = tmp_path / "log"
    engine = Processes(2)
    results = engine.run(partial(work.logged_square, log, 0.05), range(1000))
    for _ in range(3):
        next(results)
    begin = time.monotonic()
    results.close()
    assert time.monotonic() - begin < 2
    assert multiprocessing.active_children() == []
    begun = work.noted(log)
    assert len(begun) <= 3 + 2 * 2
    assert not any(runs(process) for _, process in begun)
    # The engine starts again when it is used again.
    assert sorted(engine.run(work.square, range(3))) == [(0, 0), (1, 1), (2, 4)]
    engine.close()


def test_no_more_than_two_shards_a_worker_are_handed_out(work: ModuleType, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Processes(2) as engine:
        results = engine.run(partial(work.logged_square, log, 0.0), range(1000))
        next(results)
        assert until(lambda: len(work.noted(log)) == 5)
        time.sleep(0.2)
        assert len(work.noted(log)) == 5  # one was consumed, and its worker got the next


def test_a_slow_consumer_gets_the_oldest_shards_first(work: ModuleType) -> None:
    with Processes(2) as engine:
        list(engine.run(work.square, range(2)))  # both have started
        order = []
        for index, _ in engine.run(work.square, range(20)):
            order.append(index)
            time.sleep(0.01)
    assert all(abs(place - index) <= 4 for place, index in enumerate(order)), order


def test_work_that_refuses_to_end_is_killed(
    work: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specverify.sampling.processes._GRACE", 0.3)
    log = tmp_path / "log"
    engine = Processes(1)
    results = engine.run(partial(work.stubborn, log), range(3))
    assert next(results) == (0, 0)
    assert until(lambda: len(work.noted(log)) == 2)
    results.close()
    assert not any(runs(process) for _, process in work.noted(log))


def test_an_abandoned_run_and_engine_leave_no_worker(work: ModuleType) -> None:
    results = Processes(2).run(work.process_of, range(100))
    _, process = next(results)
    del results
    assert not runs(process)


@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [
        ("value", ValueError, "^three is too many$"),
        ("timeout", SubjectTimeout, "^a call ran past its time limit of 2 s$"),
        ("needy", SubjectError, "^Needy: this and that$"),
    ],
)
def test_what_the_work_raises_is_raised_with_its_traceback(
    work: ModuleType, kind: str, error: type[Exception], said: str
) -> None:
    engine = Processes(1)
    with pytest.raises(error, match=said) as caught:
        list(engine.run(partial(work.fail, kind), range(9)))
    assert type(caught.value) is error
    cause = caught.value.__cause__
    assert isinstance(cause, WorkerTraceback)
    assert "work_for_processes.py" in str(cause)
    assert "in fail" in str(cause)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("exit_at_once", "the worker process of shard 3 ended itself with exit code 0"),
        ("abort", r"the worker process of shard 3 was killed by SIGABRT \(exit code -6\)"),
        ("leave_a_child_behind", "the worker process of shard 3 ended itself with exit code 7"),
    ],
)
def test_a_worker_that_ends_is_an_error_that_names_the_shard(
    work: ModuleType, how: str, said: str
) -> None:
    results = Processes(1).run(partial(work.end, getattr(work, how)), range(9))
    assert [next(results) for _ in range(3)] == [(0, 0), (1, 1), (2, 2)]
    begin = time.monotonic()
    with pytest.raises(SubjectError, match=said + r".*run with one job \(--jobs 1"):
        next(results)
    assert time.monotonic() - begin < 5  # the child left behind holds the pipe open for longer


def test_a_worker_that_ended_between_runs_is_replaced(work: ModuleType) -> None:
    with Processes(1) as engine:
        ((_, process),) = engine.run(work.process_of, [0])
        for _ in range(3):
            os.kill(process, signal.SIGKILL)  # not waited for: the end of a process takes a while
            ((_, other),) = engine.run(work.process_of, [0])
            assert other != process
            process = other


def test_an_interrupt_that_also_ended_the_worker_is_an_interrupt(work: ModuleType) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    results = Processes(1).run(partial(work.end, work.terminate), range(9))
    assert [next(results)[0] for _ in range(3)] == [0, 1, 2]
    kept = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)  # the worker has ended by then
    try:
        with pytest.raises(KeyboardInterrupt):
            next(results)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, kept)


def test_workers_ignore_what_a_terminal_sends(work: ModuleType, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Processes(1) as engine:
        results = engine.run(partial(work.logged_square, log, 0.2), range(3))
        assert next(results) == (0, 0)
        for number in (signal.SIGINT, signal.SIGHUP):
            os.kill(work.noted(log)[0][1], number)
        assert list(results) == [(1, 1), (2, 4)]


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (lambda index: index, "the work '<lambda>' cannot be sent .*attribute lookup"),
        (partial(pow, open(os.devnull)), "the work 'pow' cannot be sent .*TextIOWrapper"),  # noqa: SIM115
    ],
)
def test_work_that_cannot_be_pickled_is_refused_before_anything_starts(of: Any, why: str) -> None:
    with pytest.raises(UsageError, match=f"{why}.*package.module:object, or use one job"):
        Processes(2).run(of, range(3))
    assert multiprocessing.active_children() == []


def test_work_that_cannot_be_loaded_is_named(work: ModuleType) -> None:
    with pytest.raises(
        UsageError, match=r"cannot be loaded .* ValueError: no such model here; def"
    ):
        next(Processes(2).run(work.CannotBeLoaded(), range(3)))


def test_a_result_that_cannot_be_sent_is_an_error(work: ModuleType) -> None:
    with pytest.raises((AttributeError, pickle.PicklingError), match="<lambda>"):
        next(Processes(1).run(work.unpicklable_result, range(3)))


def test_an_engine_runs_one_case_at_a_time(work: ModuleType) -> None:
    with Processes(1) as engine:
        first = engine.run(work.square, range(9))
        next(first)
        with pytest.raises(UsageError, match="an earlier run of this engine is still open"):
            next(engine.run(work.square, range(9)))
        first.close()
        assert len(list(engine.run(work.square, range(3)))) == 3


def test_a_run_whose_engine_was_closed_is_an_error_not_an_end(work: ModuleType) -> None:
    engine = Processes(1)
    results = engine.run(work.square, range(9))
    next(results)
    engine.close()
    with pytest.raises(UsageError, match="the engine was closed while a run of it was open"):
        list(results)


@pytest.mark.parametrize("jobs", [0, -1, 1.5, True, "2"])
def test_jobs_must_be_a_positive_whole_number(jobs: Any) -> None:
    with pytest.raises(UsageError, match="jobs is"):
        Processes(jobs)


SCRIPT = """
import os, signal, sys, time
from functools import partial

sys.path.insert(0, HERE)
import work_for_processes as work
from specverify.sampling.processes import Processes

def interrupt(*_):
    raise KeyboardInterrupt

def main():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        with Processes(2) as engine:
            results = engine.run(partial(work.stuck_after_three, LOG), range(100))
            for _ in range(4):
                next(results)
            print("go", flush=True)
            next(results)
    except KeyboardInterrupt:
        sys.exit(130)

MAIN
"""
GUARDED = 'if __name__ == "__main__":\n    main()'


def start(tmp_path: Path, main: str = GUARDED) -> tuple[subprocess.Popen[str], Path]:
    script, log = tmp_path / "script.py", tmp_path / "log"
    text = textwrap.dedent(SCRIPT).replace("HERE", repr(str(HERE))).replace("LOG", repr(str(log)))
    script.write_text(text.replace("MAIN", main))
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return process, log


@pytest.mark.parametrize(
    ("number", "whole_group"),
    [
        (signal.SIGINT, True),  # Ctrl-C in a terminal
        (signal.SIGTERM, True),  # a batch system
        (signal.SIGTERM, False),  # what supervision passes on
        (signal.SIGHUP, True),  # a terminal that is closed
    ],
)
def test_an_interrupt_ends_all_quietly(
    tmp_path: Path, work: ModuleType, number: int, whole_group: bool
) -> None:
    process, log = start(tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "go\n"
    (os.killpg if whole_group else os.kill)(process.pid, number)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "")
    workers = {pid for _, pid in work.noted(log)}
    assert len(workers) == 2
    assert not any(map(runs, workers))


def test_workers_end_when_their_parent_is_killed(tmp_path: Path, work: ModuleType) -> None:
    process, log = start(tmp_path)
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.communicate(timeout=20)
    workers = {pid for _, pid in work.noted(log)}
    assert len(workers) == 2
    assert until(lambda: not any(map(runs, workers)))


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    process, _ = start(tmp_path, "main()")
    _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "SubjectError: a worker process ended itself with exit code 1 while it started" in err
    assert 'if __name__ == "__main__":' in err
