"""How often a certification is wrong: alarms on a right decoder, and mistakes that it misses."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from specverify.certification.calibration_library import Detection
from specverify.certification.calibration_null import BLOCK, SETTINGS, Array, NullRun
from specverify.certification.progress import ProgressEvent
from specverify.sampling.engines import Engine
from specverify.statistics.budget import combined

T = TypeVar("T")

ALPHAS = (0.1, 0.01, 0.001)
"""Thresholds at which null runs are looked at; that of a certification, 1e-6, is never reached."""

ONE_CASE, ALL_CASES = "whole run, one setting", f"whole run, {len(SETTINGS)} settings"

_LARGEST_LOG = 300.0
"""ln E is cut there, so that squares of E stay finite."""
_EVERY_TOKEN = "joint.every_token"


@dataclass(frozen=True)
class FalseAlarms:
    """How often one test, or the decision of a whole run, rejected a decoder that is right."""

    name: str
    decides: bool
    """False for what is only reported: its p-value holds for a fixed n, and roughly."""
    runs: int
    alarms: tuple[int, ...]
    """Runs with an alarm at each of `ALPHAS`."""
    structural: bool = False
    """Whether no statistics are involved, so that a single alarm is one too many."""
    mean_e: float | None = None
    """Mean of E after the last shard. An e-value has mean at most 1, which shows what alarms do
    not: one that is ten times too large may still raise few."""
    mean_e_error: float | None = None
    """Its standard error, as seen."""

    @property
    def rates(self) -> tuple[float, ...]:
        """Alarms by run."""
        return tuple(count / self.runs for count in self.alarms)

    @property
    def limits(self) -> tuple[float, ...]:
        """Rates up to which chance explains what was seen, see `upper_limit`."""
        return tuple(0.0 if self.structural else upper_limit(a, self.runs) for a in ALPHAS)

    @property
    def too_high(self) -> bool:
        """Whether any rate that must hold does not."""
        if not self.decides:
            return False
        pairs = zip(self.rates, self.limits, strict=True)
        return self.mean_too_high or any(rate > limit for rate, limit in pairs)

    @property
    def mean_too_high(self) -> bool:
        """Whether the mean of E is more than 3 standard errors above 1."""
        if self.mean_e is None or self.mean_e_error is None:
            return False
        return self.mean_e > 1 + 3 * self.mean_e_error


@dataclass(frozen=True)
class Calibration:
    """What was found, and from what."""

    seed: int
    false_alarms: tuple[FalseAlarms, ...] = ()
    detections: tuple[Detection, ...] = ()
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing is too high and nothing was missed."""
        return not any(row.too_high for row in self.false_alarms) and all(
            detection.caught for detection in self.detections
        )


def upper_limit(alpha: float, runs: int) -> float:
    """Largest rate that is no sign of a test that exceeds its alpha: alpha + 3 binomial sd.

    sd = sqrt(alpha (1 - alpha) / runs). A test that rejects with probability alpha exactly is above
    it with probability about 0.001; where less than one alarm is expected, at most 0.03.

    Args:
        alpha: of the test.
        runs: that were made.
    """
    return alpha + 3 * math.sqrt(alpha * (1 - alpha) / runs)


def gather(
    engine: Engine,
    work: Callable[[int], list[T]],
    count: int,
    progress: Callable[[ProgressEvent], None],
    what: str,
) -> tuple[list[T], bool]:
    """Let an engine do `count` pieces of work.

    Args:
        engine: runs them.
        work: what each piece gives, by its number.
        count: pieces.
        progress: told how many are done.
        what: they are, in a word or two.

    Returns:
        What they gave, in order of their numbers, and whether the user interrupted.
    """
    results: dict[int, list[T]] = {}
    interrupted = False
    try:
        with closing(engine.run(work, range(count))) as finished:
            for index, result in finished:
                results[index] = result
                progress(ProgressEvent(what, len(results), count, "done"))
    except KeyboardInterrupt:
        interrupted = True
    return [item for index in sorted(results) for item in results[index]], interrupted


def blocks(runs: int) -> int:
    """Blocks of `NullRuns` that hold so many runs, or a few more."""
    return -(-runs // BLOCK)


def false_alarms(runs: Sequence[NullRun]) -> tuple[FalseAlarms, ...]:
    """Count alarms over null runs.

    Every test is held against alpha by itself; a whole run as `certify` decides it: each test
    against its share of half of alpha, and all together against alpha. Any look may raise the
    alarm, those included at which a certification would have stopped before.

    Args:
        runs: in the order in which `NullRuns` gives them, so that settings alternate.
    """
    levels: dict[str, list[float]] = defaultdict(list)
    finals: dict[str, list[float]] = defaultdict(list)
    reported: dict[str, list[float]] = defaultdict(list)
    violated: dict[str, int] = defaultdict(int)
    for run in runs:
        for name, log_es in run.log_es.items():
            levels[name].append(_anytime(log_es))
            finals[name].append(math.exp(min(float(log_es[-1]), _LARGEST_LOG)))
        for name, p_value in run.reported.items():
            reported[name].append(p_value)
        for name in run.violations:
            violated[name] += 1
        levels[ONE_CASE].append(whole_run([run]))
    for first, second in _certifications(runs):
        levels[ALL_CASES].append(whole_run([first, second]))
    whole = [name for name in (ONE_CASE, ALL_CASES) if name in levels]
    names = [*sorted(name for name in levels if name not in whole), *whole]
    return (
        *(_with_mean(_row(name, levels[name], decides=True), finals[name]) for name in names),
        *(_structural(name, count, len(runs)) for name, count in sorted(violated.items())),
        *(_row(name, reported[name], decides=False) for name in sorted(reported)),
    )


def whole_run(cases: Sequence[NullRun]) -> float:
    """Smallest alpha at which a certification of these cases raises an alarm at any look.

    Half of alpha is shared by all tests; the other half is for their mean and their product.
    """
    if any(case.violations for case in cases):
        return 0.0
    planned = sum(case.tests for case in cases)
    shares = (_anytime(log_es) for case in cases for log_es in case.log_es.values())
    return min(1.0, 2 * planned * min(shares), _anytime(_together(cases, planned)))


def _together(cases: Sequence[NullRun], planned: int) -> list[float]:
    """Ln E of all together at every look; cases follow one another."""
    found: list[float] = []
    finished: list[float] = []
    products: list[float] = []
    for case in cases:
        product = case.log_es.get(_EVERY_TOKEN)
        values = np.array(list(case.log_es.values()))
        for look in range(values.shape[1]):
            own = [] if product is None else [float(product[look])]
            found.append(combined([*finished, *values[:, look]], [*products, *own], planned))
        finished += values[:, -1].tolist()
        products += [] if product is None else [float(product[-1])]
    return found


def _anytime(log_es: Iterable[float] | Array) -> float:
    """p-value of an e-process that was looked at more than once: 1 over its largest value."""
    return math.exp(-max(0.0, *map(float, log_es)))


def _certifications(runs: Sequence[NullRun]) -> list[tuple[NullRun, NullRun]]:
    """Neighbours that differ in their settings, each run once."""
    return [
        (first, second)
        for index, (first, second) in enumerate(pairwise(runs))
        if index % len(SETTINGS) == 0 and first.case != second.case
    ]


def _row(name: str, levels: Sequence[float], *, decides: bool) -> FalseAlarms:
    found = np.array(levels)
    alarms = tuple(int(np.count_nonzero(found <= alpha)) for alpha in ALPHAS)
    return FalseAlarms(name, decides, len(found), alarms)


def _with_mean(row: FalseAlarms, e_values: Sequence[float]) -> FalseAlarms:
    """Add the mean of E, where a row has e-values and more than one run."""
    if len(e_values) < 2:
        return row
    error = float(np.std(e_values, ddof=1)) / math.sqrt(len(e_values))
    return replace(row, mean_e=float(np.mean(e_values)), mean_e_error=error)


def _structural(name: str, count: int, runs: int) -> FalseAlarms:
    alarms = (count,) * len(ALPHAS)
    return FalseAlarms(name, decides=True, runs=runs, alarms=alarms, structural=True)
