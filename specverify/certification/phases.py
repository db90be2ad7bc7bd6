"""The parts of a run, each an iterator of finished cases: sampled, computed, probed."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from specverify.certification.certificate import CaseRecord
from specverify.certification.decoder_run import Sampling, run_decoder_case
from specverify.certification.isolated import CaseWork, Phase, Result
from specverify.certification.plan import Plan
from specverify.certification.probes.run import Probe
from specverify.certification.progress import ProgressEvent
from specverify.certification.registry import Property
from specverify.errors import CannotSteer, OutsideRandomness
from specverify.sampling.engines import Engine, InProcess
from specverify.sampling.prefix import in_order
from specverify.statistics.budget import Budget
from specverify.subjects.protocols import Subject
from specverify.subjects.watchdog import RAN_PAST

_REFUSED = 3
"""Exact cases refused from the start after which a subject counts as one that cannot be steered."""

_STUCK = 3
"""Probes in a row that ran past the time limit, after which a subject counts as one that hangs."""
_NOT_TRIED = f"not tried: the subject {RAN_PAST} in {_STUCK} cases in a row"

Progress = Callable[[ProgressEvent], None]
Records = Iterator[tuple[CaseRecord, bool]]
"""Finished cases, and whether the user interrupted during one."""


@dataclass
class Run:
    """What all parts of a run share, and what they leave unanswered."""

    subject: Subject
    budget: Budget
    """Each test's share of the false alarms."""
    alpha: float
    """Of the whole run; bounds fail with this probability."""
    seed: int
    time_limit: float
    report: Progress
    engine: Engine = field(default_factory=InProcess)
    """Carries out what is not sampled."""
    refusals: dict[str, CannotSteer] = field(default_factory=dict)
    """Why a case could not be computed."""
    unasked: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Property that a probed case could not ask, and why."""

    def work(
        self, phase: Phase, properties: Sequence[Property], presets: Sequence[str] = ()
    ) -> CaseWork:
        """The cases of a phase; see `CaseWork`."""
        return CaseWork(
            phase, self.subject, properties, self.budget, self.seed, self.time_limit, presets
        )


@contextmanager
def single_threaded() -> Iterator[None]:
    """Run torch on one thread, so that float sums do not depend on the number of cores.

    Small batches are also faster that way: the threads of a pool spend their time waiting.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def global_generators_kept() -> Iterator[None]:
    """Leave the global generators of torch, numpy and Python as they were found.

    Only a subject draws from them, or seeds them; that it does is told by every call.
    """
    numpy_state, python_state = np.random.get_state(legacy=False), random.getstate()
    with torch.random.fork_rng(devices=()):
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)


def decoder_records(
    run: Run, plan: Plan, properties: Sequence[Property], sampling: Sampling
) -> Records:
    """Records of a decoder's or a rule's runs on the pair, one for each settings."""
    for planned in plan.cases if properties else ():
        yield run_decoder_case(
            run.subject,
            planned,
            properties,
            run.budget,
            run.seed,
            run.report,
            alpha=run.alpha,
            sampling=sampling,
        )


def transform_records(run: Run, properties: Sequence[Property]) -> Records:
    """Records of a transform's comparisons with its reference."""
    for done, case, record in _carried_out(run, run.work("transform", properties)):
        assert isinstance(record, CaseRecord)
        yield record, False
        run.report(ProgressEvent(case.id, *done, "cases"))


def exact_records(run: Run, presets: Sequence[str], properties: Sequence[Property]) -> Records:
    """Records of the cases whose distribution is computed.

    The first case of a rule is one of many decisions, so that hidden randomness shows there. When
    the first `_REFUSED` are refused, the others are not tried: each may take its time limit.
    """
    work = run.work("exact", properties, presets)
    for done, case, record in _carried_out(run, work):
        if isinstance(record, OutsideRandomness):
            run.refusals |= dict.fromkeys((case.id for case in work.cases), record)
            return
        if isinstance(record, CannotSteer):
            run.refusals[case.id] = record
            if len(run.refusals) == done[0] == _REFUSED:
                run.refusals |= dict.fromkeys((case.id for case in work.cases[_REFUSED:]), record)
                return
        else:
            assert isinstance(record, CaseRecord)
            yield record, False
        run.report(ProgressEvent("exact", *done, "cases"))


def probe_records(run: Run, probes: Sequence[Probe]) -> Records:
    """Records of the cases that properties make.

    When `_STUCK` in a row run past the time limit, the others are not tried: each may take as long.
    """
    properties = list(dict.fromkeys(probe.asked for probe in probes))
    work, stuck = run.work("probed", properties), 0
    for done, probe, record in _carried_out(run, work):
        if isinstance(record, str):
            run.unasked[probe.id] = probe.asked.id, record
        else:
            assert isinstance(record, CaseRecord)
            yield record, False
            stuck = stuck + 1 if record.verdict == "error" and RAN_PAST in record.reason else 0
        if stuck == _STUCK:
            left = work.cases[done[0] :]
            run.unasked |= {probe.id: (probe.asked.id, _NOT_TRIED) for probe in left}
            return
        run.report(ProgressEvent("probes", *done, "cases"))


def _carried_out(run: Run, work: CaseWork) -> Iterator[tuple[tuple[int, int], Any, Result]]:
    """Cases in their order: how many of how many are done, the case, and what came of it."""
    total = len(work.cases)
    if not total:
        return
    with closing(in_order(run.engine.run(work, range(total)))) as results:
        for number, result in enumerate(results):
            yield (number + 1, total), work.cases[number], result


def collect(records: Records) -> tuple[list[CaseRecord], bool]:
    """Run the cases in order until all are done or the user interrupts."""
    done: list[CaseRecord] = []
    try:
        for record, interrupted in records:
            done.append(record)
            if interrupted:
                return done, True
    except KeyboardInterrupt:
        return done, True
    return done, False
