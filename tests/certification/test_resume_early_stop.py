"""A store with shards beyond the one that ends a case: the case ends there all the same."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from specverify.certification.certificate import Certificate
from specverify.certification.progress import ProgressEvent
from specverify.certification.run import certify
from specverify.fixtures.mutants.rule_calls import RULE_MUTANTS
from specverify.sampling.store import ShardStore
from specverify.settings import SamplingSettings

SETTINGS = {"plain": SamplingSettings(), "cold": SamplingSettings(temperature=0.7)}
"""Two cases: the second is sampled after the first has ended early."""
LAST = "cold"

COIN_REUSED = next(
    mutant.subject for mutant in RULE_MUTANTS if mutant.id == "coin-reused-for-correction"
)
"""A small mistake, which takes some shards to show, of a rule that can be pickled."""

RUNS: dict[str, Callable[..., Certificate]] = {
    "violated": partial(certify, COIN_REUSED, "toy", settings=SETTINGS, tokens=10_000, exact=False),
    "bounds reached": partial(
        certify, "reference", "toy", settings=SETTINGS, tokens=80_000, exact=False
    ),
}

KEPT: dict[str, Callable[[int, int], bool]] = {
    "none": lambda index, stop: False,
    "beyond": lambda index, stop: index >= stop,
    "every other": lambda index, stop: index % 2 == 1,
    "all but the last": lambda index, stop: index != stop - 1,
    "all": lambda index, stop: True,
}
"""Whether a finished shard is in the store, given how many are judged before the case ends."""


@pytest.fixture(scope="module", autouse=True)
def reachable_bounds() -> Iterator[None]:
    """Bounds that some, not all, of the shards reach."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specverify.properties.joint.TV_LIMIT", 0.09)
        yield


@dataclass
class Whole:
    """A run that nobody interrupted, and all shards of it, those that it did without too."""

    run: Callable[..., Certificate]
    certificate: Certificate
    folder: Path

    @property
    def stops(self) -> dict[str, int]:
        """Shards judged, by case."""
        return {case.id: case.shards for case in self.certificate.cases}


@pytest.fixture(scope="module")
def wholes(reachable_bounds: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Whole]:
    return {name: whole(run, tmp_path_factory.mktemp("whole")) for name, run in RUNS.items()}


def whole(run: Callable[..., Certificate], folder: Path) -> Whole:
    def interrupting(event: ProgressEvent) -> None:
        if event.case == LAST and event.done == event.total:
            raise KeyboardInterrupt  # a run that came to its end would delete its shards

    ended = run(resume=folder, stop_early=False, progress=interrupting)
    assert ended.interrupted
    made = Whole(run, run(), folder)
    for case in ended.cases:
        assert len(shards(folder, case.id)) == case.shards
        assert 1 < made.stops[case.id] < case.shards, "some before it and some beyond"
    return made


def shards(folder: Path, case: str) -> dict[int, Path]:
    return {int(path.stem): path for path in folder.glob(f"{case}-*/*.shard")}


def half_written(shard: Path) -> None:
    """What a kill in the middle of its write leaves of a shard."""
    os.truncate(shard, shard.stat().st_size // 2)
    shard.rename(shard.with_name(shard.name + ".tmp"))


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[int]]:
    """Shards that were run beside a store, by case."""
    indices: dict[str, set[int]] = {case: set() for case in SETTINGS}
    save = ShardStore.save

    def noting(store: ShardStore, case: str, index: int, state: Any) -> None:
        indices[case].add(index)
        save(store, case, index, state)

    monkeypatch.setattr(ShardStore, "save", noting)
    return indices


@pytest.mark.parametrize("stopped", RUNS)
def test_a_run_that_ends_early_does_so_in_all_its_cases(stopped, wholes):
    """Else the tests below say nothing."""
    assert [case.stopped for case in wholes[stopped].certificate.cases] == [stopped] * 2


IN_TWO_PROCESSES = ("beyond", "every other", "all")


@pytest.mark.parametrize("stopped", RUNS)
@pytest.mark.parametrize(
    ("kept", "jobs"),
    [
        *((kept, 1) for kept in KEPT),
        *(pytest.param(kept, 2, marks=pytest.mark.slow) for kept in IN_TWO_PROCESSES),
    ],
)
def test_it_ends_at_the_same_shard_whatever_was_finished(
    stopped, kept, jobs, wholes, saved, tmp_path
):
    whole, folder = wholes[stopped], tmp_path / "shards"
    shutil.copytree(whole.folder, folder)
    found: dict[str, set[int]] = {}
    for case, stop in whole.stops.items():
        finished = shards(folder, case)
        found[case] = {index for index in finished if KEPT[kept](index, stop)}
        for index in finished.keys() - found[case]:
            half_written(finished[index])
    resumed = whole.run(resume=folder, jobs=jobs)
    assert resumed.digest() == whole.certificate.digest()
    assert not folder.exists(), "half a shard beyond the last is left"
    for case, stop in whole.stops.items():
        needed = set(range(stop)) - found[case]
        assert needed <= saved[case]
        assert saved[case].isdisjoint(found[case]), "a finished shard was run again"
        if jobs == 1:
            assert saved[case] == needed, "no shard was run that nobody asked for"
