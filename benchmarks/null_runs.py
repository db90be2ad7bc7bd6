"""False alarms of the decision: certifications of a right decoder, at thresholds that are reached.

Every test of a certification is held against alpha 0.1, 0.01 and 0.001 by itself, and whole runs of
one and of two settings are decided as `certify` decides them, at any look. Printed are rates over
alpha; a goal is alpha plus 3 binomial standard deviations, over alpha. The mean of E after the last
shard must be at most 1, and 3 standard errors: an e-value too large by a factor shows there first.

One block of runs in a few is made again, each run kept in a folder as `--resume` keeps it, ended
after a shard drawn at random and taken up again: its numbers must be those of the run that was not,
to the last bit.

Those runs look at every shard whatever was seen. Others are certified by `certify` itself, which
ends a case as soon as it is violated, or when its bounds are reached at one of the looks fixed
beforehand; right ones that end violated are held against alpha. They are fewer, since each takes a
quarter of a second, and alpha is at most 0.05, the largest that `certify` takes. A few of a wrong
decoder show that the other end is reached too.

Chi-squared and G of counts pooled by expectation are shown in certificates, and decide nothing;
their p-values are asymptotic. The worst of each is held against alpha plus 4 standard deviations.

python benchmarks/null_runs.py [--quick] [--jobs 2]
"""

import argparse
import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from unittest import mock

import numpy as np
from common import goal

from specverify.certification.calibration import (
    ALPHAS,
    FalseAlarms,
    blocks,
    false_alarms,
    gather,
    upper_limit,
)
from specverify.certification.calibration_null import (
    BLOCK,
    PAIR,
    ROWS,
    RUN_LENGTH,
    SETTINGS,
    NullRun,
    NullRuns,
)
from specverify.certification.certificate import Certificate
from specverify.certification.limits import LARGEST_ALPHA
from specverify.certification.progress import ProgressEvent
from specverify.certification.run import certify
from specverify.certification.shard import FEWEST_SHARDS
from specverify.fixtures.mutants import MUTANTS
from specverify.sampling.engines import Engine, InProcess
from specverify.sampling.processes import Processes
from specverify.subjects.reference import TOKEN

SEED = 7
RUNS, QUICK = 20_000, 2_000
REPORTED = 10
"""One pair of runs in so many computes what is only reported."""
RESUMED = 20
"""One block in so many is run again, ended and resumed."""
NEVER = 1 << 62
"""One run in so many is resumed where none should be: the first of all, which the blocks that are
made again leave out."""

CERTIFIED, QUICK_CERTIFIED = 1_000, 60
"""Certifications of a right decoder that may end early, at each alpha."""
EARLY_ALPHAS = (LARGEST_ALPHA, *ALPHAS[1:])
TOKENS = len(SETTINGS) * FEWEST_SHARDS * ROWS * RUN_LENGTH
TV_LIMIT = "specverify.properties.joint.TV_LIMIT", 0.1
"""What `preserved` asks of the first token. At 0.1 a case reaches it at some look of its few
shards; at the limit of the library a certification takes ten times as long, and ends no other way.
"""
WRONG, WRONG_RUNS = "always-accept", 5
POOLED = ("chi-squared", "G")
POOLED_ERROR = 4.0
"""Standard deviations of the binomial that the rate of a pooled test may lie above alpha."""
FEWEST_AT_BOUNDS = 0.2
"""Part of the cases that must end at their bounds, lest that end is not tried."""


def quiet(event: ProgressEvent) -> None:
    """Show nothing: the report has all of it."""


@dataclass(frozen=True)
class Resumed:
    """Blocks of null runs, all of them ended and resumed: work for an engine."""

    numbers: tuple[int, ...]

    def __call__(self, index: int) -> list[NullRun]:
        """The runs of a block, by its place in `numbers`."""
        return NullRuns(SEED, reported=REPORTED, resumed=1)(self.numbers[index])


@dataclass(frozen=True)
class Ended:
    """How a certification that may end early did end."""

    alpha: float
    wrong: bool
    """Whether of the wrong decoder."""
    violated: bool
    stopped: tuple[str, ...]
    """Of each case: violated, bounds reached, or neither; see `decoder_run.Stopped`."""


@dataclass(frozen=True)
class Certifications:
    """Certifications in blocks, `blocks_each` for each of `EARLY_ALPHAS`: work for an engine.

    One block more is of a wrong decoder.
    """

    seed: int
    blocks_each: int

    def __call__(self, block: int) -> list[Ended]:
        """The certifications of a block, each with a seed of its own."""
        which = block // self.blocks_each
        wrong = which == len(EARLY_ALPHAS)
        alpha = EARLY_ALPHAS[0] if wrong else EARLY_ALPHAS[which]
        first = (self.seed << 32) + block * BLOCK
        # The rule of the stop is that of the library, at a limit that few tokens reach.
        with mock.patch(*TV_LIMIT):
            return [
                _ended(alpha, seed, wrong=wrong)
                for seed in range(first, first + (WRONG_RUNS if wrong else BLOCK))
            ]


def _ended(alpha: float, seed: int, *, wrong: bool) -> Ended:
    made: Certificate = certify(
        MUTANTS[WRONG].subject if wrong else TOKEN,
        PAIR,
        settings=SETTINGS,
        seed=seed,
        alpha=alpha,
        tokens=TOKENS,
        run_length=RUN_LENGTH,
        exact=False,
        shrink=False,
    )
    if made.interrupted:
        raise KeyboardInterrupt
    if made.verdict == "error":
        raise SystemExit(f"a certification failed: {made.reason}")
    stopped = tuple(case.stopped for case in made.cases)
    return Ended(alpha, wrong, made.verdict == "violated", stopped)


def show_resumed(engine: Engine, made: Sequence[NullRun]) -> None:
    """Make some blocks again, resumed, and print how many runs came to other numbers."""
    count = len(made) // BLOCK
    # Blocks of even numbers have the runs of which p-values are computed too.
    numbers = tuple(range(min(RESUMED // 2, count - 1), count, RESUMED))
    again, _ = gather(engine, Resumed(numbers), len(numbers), quiet, "resumed runs")
    before = [run for number in numbers for run in made[number * BLOCK : (number + 1) * BLOCK]]
    differ = sum(not _same(one, other) for one, other in zip(before, again, strict=True))
    print(goal(f"runs that differ, of {len(again):,} resumed", differ, 0, at_least=False))


def _same(one: NullRun, other: NullRun) -> bool:
    """Whether all numbers agree: ln E of every test after each shard, and p-values."""
    return (
        (one.case, one.reported, one.violations) == (other.case, other.reported, other.violations)
        and one.log_es.keys() == other.log_es.keys()
        and all(np.array_equal(log_es, other.log_es[name]) for name, log_es in one.log_es.items())
    )


def show_deciding(rows: Iterable[FalseAlarms]) -> None:
    """Print goals of all that decides."""
    for row in rows:
        if row.mean_e is not None and row.mean_e_error is not None:
            limit = 1 + 3 * row.mean_e_error
            print(goal(f"{row.name}, mean E", row.mean_e, limit, at_least=False))
        for alpha, rate, limit in zip(ALPHAS, row.rates, row.limits, strict=True):
            name = f"{row.name}, alpha {alpha:g}"
            print(goal(name, rate / alpha, limit / alpha, at_least=False))


def show_early(ends: Sequence[Ended]) -> None:
    """Print goals of certifications that may end early."""
    for alpha in EARLY_ALPHAS:
        right = [end for end in ends if end.alpha == alpha and not end.wrong]
        if not right:
            continue
        violated = sum(end.violated for end in right)
        rate, limit = violated / len(right), upper_limit(alpha, len(right))
        stopped = Counter(how for end in right for how in end.stopped)
        print(
            goal(
                f"ended early, violated, alpha {alpha:g}",
                rate / alpha,
                limit / alpha,
                at_least=False,
            )
        )
        at_bounds = stopped["bounds reached"] / stopped.total()
        print(
            goal(
                f"part of cases ended at their bounds, alpha {alpha:g}", at_bounds, FEWEST_AT_BOUNDS
            )
        )
        print(
            f"      {len(right):,} certifications, {violated} violated; of {stopped.total():,} "
            f"cases {stopped['violated']} ended violated, {stopped['bounds reached']:,} at their "
            f"bounds, {stopped['']:,} with their last shard"
        )
    wrong = [end for end in ends if end.wrong]
    found = sum(end.violated and "violated" in end.stopped for end in wrong)
    print(goal(f"of {len(wrong)} of a wrong decoder, ended violated", found, len(wrong)))


def show_pooled(rows: Iterable[FalseAlarms]) -> None:
    """Print goals of the worst pooled tests, and the rates of all that decides nothing."""
    rows = list(rows)
    for test in POOLED:
        pooled = [row for row in rows if row.name.rpartition(", ")[2] == test]
        for place, alpha in enumerate(ALPHAS):
            error = {row.name: math.sqrt(alpha * (1 - alpha) / row.runs) for row in pooled}
            worst = max(pooled, key=lambda row: (row.rates[place] - alpha) / error[row.name])
            limit = 1 + POOLED_ERROR * error[worst.name] / alpha
            rate = worst.rates[place] / alpha
            print(goal(f"{worst.name}, alpha {alpha:g}", rate, limit, at_least=False))
    print()
    print("reported only, rates over alpha at " + ", ".join(f"{alpha:g}" for alpha in ALPHAS))
    for row in rows:
        ratios = "".join(f"{r / a:9.2f}" for r, a in zip(row.rates, ALPHAS, strict=True))
        print(f"{row.name:<52}{ratios}   {row.runs:,} runs")
    print()


def main() -> None:
    """Run, then print rates over alpha."""
    parser = argparse.ArgumentParser(
        description="false alarms of certifications of a right decoder"
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} runs, for a first look")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--runs", type=int, help=f"in place of {RUNS:,}")
    parser.add_argument("--certified", type=int, help=f"in place of {CERTIFIED:,}, at each alpha")
    arguments = parser.parse_args()
    runs = arguments.runs or (QUICK if arguments.quick else RUNS)
    certified = arguments.certified or (QUICK_CERTIFIED if arguments.quick else CERTIFIED)
    begin = time.perf_counter()
    with InProcess() if arguments.jobs == 1 else Processes(arguments.jobs) as engine:
        work = NullRuns(SEED, reported=REPORTED, resumed=NEVER)
        made, interrupted = gather(engine, work, blocks(runs), quiet, "null runs")
        seconds = time.perf_counter() - begin
        if not interrupted:
            show_resumed(engine, made)
            early = Certifications(SEED, blocks(certified))
            count = early.blocks_each * len(EARLY_ALPHAS) + 1
            ends, interrupted = gather(engine, early, count, quiet, "certifications")
            show_early(ends)
    rows = false_alarms(made[:runs])
    show_deciding(row for row in rows if row.decides)
    show_pooled(row for row in rows if not row.decides)
    each = seconds * arguments.jobs / max(1, len(made)) * 1e3
    note = ", INTERRUPTED" if interrupted else ""
    print(f"{len(made):,} runs in {seconds:.0f} s with {arguments.jobs} processes{note}")
    print(f"{each:.0f} ms of one process each; {time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
