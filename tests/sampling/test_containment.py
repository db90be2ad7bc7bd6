"""Workers that the work ends: what they were at is lost, and the run goes on."""

import multiprocessing
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from specverify.errors import SubjectError, SubjectTimeout
from specverify.sampling import deadline
from specverify.sampling.prefix import in_order
from specverify.sampling.processes import Processes


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_lost_shard_costs_itself_only(work: ModuleType, tmp_path: Path, jobs: int) -> None:
    made = work.Contained(tmp_path / "log", (3, 5), work.exit_at_once)
    with Processes(jobs, contain=True) as engine:
        results = list(in_order(engine.run(made, range(8))))
    how = "ended itself with exit code 0, as os._exit(0) does"
    assert results == [0, 1, 2, f"3 {how}", 4, f"5 {how}", 6, 7]
    # Each was tried once: it would end the same way again.
    assert sorted(index for index, _ in work.noted(tmp_path / "log")) == list(range(8))


def test_the_last_shard_starts_no_other_worker(work: ModuleType, tmp_path: Path) -> None:
    made = work.Contained(tmp_path / "log", (1,), work.exit_at_once)
    with Processes(1, contain=True) as engine:
        assert len(list(engine.run(made, range(2)))) == 2
        assert multiprocessing.active_children() == []
        assert list(engine.run(work.square, range(3))) == [(0, 0), (1, 1), (2, 4)]


def test_a_crash_names_its_line(work: ModuleType, tmp_path: Path) -> None:
    made = work.Contained(tmp_path / "log", (0,), work.abort)
    with Processes(1, contain=True) as engine:
        ((_, said),) = engine.run(made, range(1))
    assert said.startswith("0 was killed by SIGABRT (exit code -6), in abort at sampling/work_for_")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_a_process_killed_from_outside_is_lost_too(work: ModuleType, tmp_path: Path) -> None:
    made = work.Contained(tmp_path / "log", (1,), work.kill)
    with Processes(1, contain=True) as engine:
        results = dict(engine.run(made, range(3)))
    assert results[1] == "1 was killed by SIGKILL (exit code -9); watch its memory"
    assert (results[0], results[2]) == (0, 2)


def test_a_call_that_cannot_be_interrupted_is_ended(work: ModuleType, tmp_path: Path) -> None:
    made = work.Contained(tmp_path / "log", (1,), work.block_the_timer)
    with Processes(1, contain=True) as engine:
        results = dict(engine.run(made, range(3)))
    assert "a call ran past its time limit of -4.5 s and could not be interrupted" in results[1]
    assert (results[0], results[2]) == (0, 2)


def test_it_is_ended_without_containment_too(work: ModuleType, tmp_path: Path) -> None:
    made = work.Contained(tmp_path / "log", (0,), work.block_the_timer)
    with pytest.raises(SubjectTimeout, match="worker process of shard 0 was killed: a call ran"):
        list(Processes(1).run(made, range(2)))


def test_work_that_cannot_say_what_was_lost_is_not_contained(work: ModuleType) -> None:
    with pytest.raises(SubjectError, match="the worker process of shard 3 ended itself"):
        list(Processes(1, contain=True).run(partial(work.end, work.exit_at_once), range(9)))


def test_workers_leave_standard_output_alone(
    work: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = work.Contained(tmp_path / "log", (0,), work.print_everywhere)
    with Processes(1) as engine:
        assert list(engine.run(made, range(1))) == [(0, 0)]
    out, err = capfd.readouterr()
    assert out == ""
    assert {"by the interpreter", "by the system"} <= set(err.splitlines())


class TestDeadline:
    @pytest.fixture
    def cell(self) -> Iterator[list[float]]:
        cell = [0.0, 0.0]
        deadline.share(cell)
        yield cell
        deadline.share([0.0, 0.0])

    def test_it_stands_for_the_call_under_way(self, cell: list[float]) -> None:
        with deadline.told(60.0):
            outer = list(cell)
            with deadline.told(-deadline.SLACK - 1):
                assert deadline.overdue(cell) == -deadline.SLACK - 1
            assert list(cell) == outer
            assert deadline.overdue(cell) is None
        assert cell == [0.0, 0.0]

    def test_more_time_is_given_to_a_call_only(self, cell: list[float]) -> None:
        deadline.extend(5.0)
        assert cell == [0.0, 0.0]
        with deadline.told(-deadline.SLACK - 1):
            deadline.extend(5.0)
            assert deadline.overdue(cell) is None
