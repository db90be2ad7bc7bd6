"""Shards of other processes, in another order, or of a run that was killed: one certificate."""

import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from specverify.certification.run import certify
from specverify.errors import UsageError
from specverify.sampling.engines import Engine
from specverify.settings import SamplingSettings

TOKENS = 40_000
certified = partial(
    certify, "reference", "toy", settings={"plain": SamplingSettings()}, tokens=TOKENS, exact=False
)


@pytest.fixture(scope="module")
def digest() -> str:
    """Of an uninterrupted run in one process."""
    return certified().digest()


class Backwards(Engine):
    """Finishes the last shard first, and counts those it ran."""

    def __init__(self) -> None:
        self.ran: list[int] = []

    def run(
        self, work: Callable[[int], Any], indices: Sequence[int]
    ) -> Generator[tuple[int, Any], None, None]:
        for index in reversed(indices):
            self.ran.append(index)
            yield index, work(index)


class Interrupted(Backwards):
    """Runs a few shards in order, then the user presses Ctrl-C."""

    def run(
        self, work: Callable[[int], Any], indices: Sequence[int]
    ) -> Generator[tuple[int, Any], None, None]:
        for index in indices[:3]:
            self.ran.append(index)
            yield index, work(index)
        raise KeyboardInterrupt


def test_the_order_in_which_shards_are_finished_does_not_matter(digest):
    assert certified(engine=Backwards()).digest() == digest


@pytest.mark.slow
def test_nor_the_number_of_processes(digest):
    assert certified(jobs=2).digest() == digest


def test_an_interrupted_run_goes_on_from_its_finished_shards(digest, tmp_path):
    folder = tmp_path / "shards"
    first, second = Interrupted(), Backwards()
    stopped = certified(engine=first, resume=folder)
    assert stopped.interrupted
    assert stopped.cases[0].shards == 3
    resumed = certified(engine=second, resume=folder)
    assert resumed.digest() == digest
    assert set(first.ran).isdisjoint(second.ran)
    assert len(first.ran) + len(second.ran) == resumed.cases[0].shards
    assert not folder.exists(), "a finished run leaves nothing to resume"


KILLED = """
import os, signal, sys
from specverify.certification.run import certify
from specverify.settings import SamplingSettings

def progress(event):
    if event.done >= event.total // 2:
        os.kill(os.getpid(), signal.SIGKILL)

certify("reference", "toy", settings={"plain": SamplingSettings()}, tokens=int(sys.argv[2]),
        exact=False, resume=sys.argv[1], progress=progress)
"""


@pytest.mark.slow
def test_a_run_killed_in_the_middle_goes_on_too(digest, tmp_path):
    folder = tmp_path / "shards"
    command = [sys.executable, "-c", KILLED, str(folder), str(TOKENS)]
    killed = subprocess.run(command, timeout=300, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(folder.rglob("*.shard"))) > 2
    engine = Backwards()
    resumed = certified(engine=engine, resume=folder)
    assert resumed.digest() == digest
    assert 0 < len(engine.ran) < resumed.cases[0].shards


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, r"seed is 0 there and 1 here"),
        ({"tokens": 2 * TOKENS}, r"cases\[0\]\.runs is 6668 there and"),
        ({"num_draft_tokens": 3}, r"num_draft_tokens is 4 there and 3 here"),
    ],
)
def test_shards_of_another_run_are_refused(change, message, tmp_path):
    certified(engine=Interrupted(), resume=tmp_path / "shards")
    with pytest.raises(UsageError, match=message):
        certified(resume=tmp_path / "shards", **change)


def test_a_folder_of_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match=r"other files \('thesis.tex'\)"):
        certified(resume=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_subject_that_no_other_process_can_have_is_refused(decoder, pair):
    subject = decoder(lambda *arguments: None)
    with pytest.raises(UsageError, match=r"cannot be sent to worker processes.*jobs"):
        certify(subject, pair, settings={"plain": SamplingSettings()}, tokens=400, jobs=2)


def test_a_shard_that_failed_is_tried_again(decoder, pair, tmp_path):
    """A crash may be the machine's fault; finished shards before it stay."""
    from specverify.subjects.reference import TOKEN

    calls = []

    def failing_once(*arguments):
        calls.append(1)
        if len(calls) == 5:
            raise RuntimeError("out of memory")
        return TOKEN.call(*arguments)

    run = partial(
        certify,
        decoder(failing_once),
        pair,
        settings={"plain": SamplingSettings()},
        tokens=8_000,
        exact=False,
        resume=tmp_path / "shards",
    )
    failed = run()
    assert (failed.verdict, failed.cases[0].shards) == ("error", 5)
    assert Path(tmp_path / "shards").exists(), "an error keeps what there is"
    assert run().cases[0].runs == failed.cases[0].planned_runs
