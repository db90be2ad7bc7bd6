"""Shards of other processes, in another order, or of a run that was killed: one certificate."""

import os
import shutil
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
from specverify.sampling.store import ShardStore
from specverify.settings import SamplingSettings

TOKENS = 40_000
SHARDS = 8
"""That many tokens take."""
certified = partial(
    certify, "reference", "toy", settings={"plain": SamplingSettings()}, tokens=TOKENS, exact=False
)


@pytest.fixture(scope="module")
def digest() -> str:
    """Of an uninterrupted run in one process."""
    certificate = certified()
    assert certificate.cases[0].shards == SHARDS
    return certificate.digest()


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Shards that a store was given, in whatever process they were run."""
    indices, save = [], ShardStore.save

    def noting(store: ShardStore, case: str, index: int, state: Any) -> None:
        indices.append(index)
        save(store, case, index, state)

    monkeypatch.setattr(ShardStore, "save", noting)
    return indices


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
import multiprocessing, os, signal, sys
from specverify.certification.run import certify
from specverify.sampling.store import ShardStore
from specverify.settings import SamplingSettings

folder = sys.argv[1]
tokens, jobs, finished, torn = map(int, sys.argv[2:])
save, saved = ShardStore.save, []

def die(*_):
    print(len(multiprocessing.active_children()), flush=True)
    os.killpg(os.getpid(), signal.SIGKILL)

def tear(descriptor):
    os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
    die()

def save_or_die(*shard):
    if len(saved) == finished and torn:
        os.fsync = tear
    elif len(saved) == finished:
        die()
    save(*shard)
    saved.append(shard)

ShardStore.save, ShardStore.discard = save_or_die, die
certify("reference", "toy", settings={"plain": SamplingSettings()}, tokens=tokens, exact=False,
        jobs=jobs, resume=folder)
"""
"""Dies with its whole process group at the save after so many finished shards; where there is no
such save, when all are finished and the folder would be deleted. `torn`: it dies in the middle of
that save, as half of the file is written."""


def kill(folder: Path, *, jobs: int = 1, finished: int, torn: bool = False) -> None:
    """Leave the folder of a run of `certified` that was killed."""
    numbers = map(str, (TOKENS, jobs, finished, int(torn)))
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder), *numbers],
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
        start_new_session=True,  # a group of its own, or this process would be killed too
    )
    assert killed.returncode == -signal.SIGKILL
    assert int(killed.stdout) == (jobs if jobs > 1 else 0), "workers that were killed with it"
    assert len(list(folder.rglob("*.shard"))) == finished
    assert len(list(folder.rglob("*.shard.tmp"))) == torn
    assert (folder / "lock").exists(), "nothing was tidied up"


@pytest.mark.slow
@pytest.mark.parametrize("finished", [0, 1, SHARDS // 2, SHARDS - 1, SHARDS])
def test_a_run_killed_between_two_shards_goes_on(finished, digest, tmp_path):
    folder, engine = tmp_path / "shards", Backwards()
    kill(folder, finished=finished)
    resumed = certified(engine=engine, resume=folder)
    assert resumed.digest() == digest
    assert len(engine.ran) == SHARDS - finished
    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize("finished", [0, SHARDS // 2])
def test_so_does_one_killed_while_it_wrote_a_shard(finished, digest, tmp_path):
    folder, engine = tmp_path / "shards", Backwards()
    kill(folder, finished=finished, torn=True)
    resumed = certified(engine=engine, resume=folder)
    assert resumed.digest() == digest
    assert len(engine.ran) == SHARDS - finished
    assert not folder.exists()


@pytest.mark.slow
def test_so_does_one_killed_with_its_workers_in_any_number_of_processes(digest, saved, tmp_path):
    kill(tmp_path / "1", jobs=2, finished=3)
    shutil.copytree(tmp_path / "1", tmp_path / "2")
    for jobs in (1, 2):
        folder = tmp_path / str(jobs)
        kept = {int(path.stem) for path in folder.rglob("*.shard")}
        saved.clear()
        assert certified(jobs=jobs, resume=folder).digest() == digest
        assert sorted(saved) == sorted(set(range(SHARDS)) - kept)
        assert not folder.exists()


def test_a_shard_that_lost_its_end_is_run_again(digest, tmp_path):
    """As in a power cut, on a file system that had not kept what it said it had."""
    folder, engine = tmp_path / "shards", Backwards()
    certified(engine=Interrupted(), resume=folder)
    first, second, _ = sorted(folder.rglob("*.shard"))
    os.truncate(first, 0)
    os.truncate(second, second.stat().st_size - 1)
    assert certified(engine=engine, resume=folder).digest() == digest
    assert sorted(engine.ran) == [0, 1, *range(3, SHARDS)]


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
