"""False alarms of the decision: certifications of a right decoder, at thresholds that are reached.

Every test of a certification is held against alpha 0.1, 0.01 and 0.001 by itself, and whole runs of
one and of two settings are decided as `certify` decides them, at any look. Printed are rates over
alpha; a goal is alpha plus 3 binomial standard deviations, over alpha. The mean of E after the last
shard must be at most 1, and 3 standard errors: an e-value too large by a factor shows there first.

One run in a few is kept in a folder as `--resume` keeps it, ended after a shard drawn at random and
taken up again: its numbers must be those of the run that was not.

Chi-squared and G of counts pooled by expectation are printed as well, without a goal: they are
shown in certificates, and decide nothing.

python benchmarks/null_runs.py [--quick] [--jobs 2]
"""

import argparse
import time

from common import goal

from specverify.certification.calibration import ALPHAS, blocks, false_alarms, gather
from specverify.certification.calibration_null import NullRuns
from specverify.certification.progress import ProgressEvent
from specverify.sampling.engines import InProcess
from specverify.sampling.processes import Processes

SEED = 7
RUNS, QUICK = 20_000, 2_000
REPORTED = 10
"""One pair of runs in so many computes what is only reported."""
RESUMED = 20
"""One block in so many is run again, ended and resumed."""


def quiet(event: ProgressEvent) -> None:
    """Show nothing: the report has all of it."""


def main() -> None:
    """Run, then print rates over alpha."""
    parser = argparse.ArgumentParser(
        description="false alarms of certifications of a right decoder"
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} runs, for a first look")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--runs", type=int, help=f"in place of {RUNS:,}")
    arguments = parser.parse_args()
    runs = arguments.runs or (QUICK if arguments.quick else RUNS)
    begin = time.perf_counter()
    with InProcess() if arguments.jobs == 1 else Processes(arguments.jobs) as engine:
        work = NullRuns(SEED, reported=REPORTED)
        made, interrupted = gather(engine, work, blocks(runs), quiet, "null runs")
    seconds = time.perf_counter() - begin
    rows = false_alarms(made[:runs])
    for row in rows:
        if row.decides:
            if row.mean_e is not None and row.mean_e_error is not None:
                limit = 1 + 3 * row.mean_e_error
                print(goal(f"{row.name}, mean E", row.mean_e, limit, at_least=False))
            for alpha, rate, limit in zip(ALPHAS, row.rates, row.limits, strict=True):
                name = f"{row.name}, alpha {alpha:g}"
                print(goal(name, rate / alpha, limit / alpha, at_least=False))
    print()
    print("reported only, rates over alpha at " + ", ".join(f"{alpha:g}" for alpha in ALPHAS))
    for row in rows:
        if not row.decides:
            ratios = "".join(f"{r / a:9.2f}" for r, a in zip(row.rates, ALPHAS, strict=True))
            print(f"{row.name:<52}{ratios}   {row.runs:,} runs")
    print()
    each = seconds * arguments.jobs / max(1, len(made)) * 1e3
    note = ", INTERRUPTED" if interrupted else ""
    print(f"{len(made):,} runs in {seconds:.0f} s with {arguments.jobs} processes{note}")
    print(f"{each:.0f} ms of one process each")


if __name__ == "__main__":
    main()
