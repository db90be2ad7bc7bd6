"""`specverify calibrate`: how often specverify itself is wrong, measured here.

Only click is imported at load.
"""

from typing import TYPE_CHECKING, Literal

import click

from specverify.certification.limits import LARGEST_SEED
from specverify.certification.verdict import EXIT_INTERRUPTED
from specverify.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from specverify.certification.calibration import Calibration
    from specverify.certification.progress import ProgressEvent
    from specverify.sampling.engines import Engine

Only = Literal["null", "library"]

RUNS, SEEDS = 500, 1
FEWEST = 20
"""Null runs below which a rate of 0.1 could not be told from 0.5."""

MOST = 10**7
"""Certifications of either kind: months of work."""


@click.command()
@click.option(
    "--runs",
    type=int,
    metavar="N",
    help=f"Certifications of a right decoder.  [default: {RUNS}]",
)
@click.option(
    "--seeds",
    type=int,
    metavar="N",
    help=f"Certifications of each mutant.  [default: {SEEDS}]",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "-j",
    "--jobs",
    type=int,
    metavar="N",
    default=1,
    show_default=True,
    help="Processes; the numbers do not depend on it.",
)
@click.option(
    "--only",
    type=click.Choice(["null", "library"]),
    help="Leave the other half out.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def calibrate(
    runs: int | None,
    seeds: int | None,
    seed: int,
    jobs: int,
    only: Only | None,
    *,
    as_json: bool,
) -> int:
    """Measure how often a certification is wrong, on this machine.

    null: a decoder that is right is certified many times on a tiny pair, at alpha 0.1, 0.01 and
    0.001; no test, and no whole run, may raise more alarms than that. library: every mutant of the
    catalogue is certified at alpha 1e-6 and must be caught within its tokens.

    \b
    Exit codes: 0 all is well, 1 something is too high or missed, 130 interrupted.

    \b
    Examples:
      specverify calibrate --jobs 2
      specverify calibrate --only null --runs 20000 --jobs 8
      specverify calibrate --only library --seeds 3 --json
    """
    _check(runs, seeds, seed, jobs, only)

    from specverify.reporting.calibration_table import print_calibration, to_json
    from specverify.reporting.terminal import progress_bar, progress_console, report_console
    from specverify.sampling.engines import InProcess
    from specverify.sampling.processes import Processes

    engine = InProcess() if jobs == 1 else Processes(jobs)
    with engine, progress_bar(progress_console()) as progress:
        found = _calibrate(runs or RUNS, seeds or SEEDS, seed, only, engine, progress)
    if as_json:
        click.echo(to_json(found))
    else:
        print_calibration(found, report_console())
    if found.interrupted:
        return EXIT_INTERRUPTED
    return 0 if found.ok else 1


def _calibrate(
    runs: int,
    seeds: int,
    seed: int,
    only: Only | None,
    engine: "Engine",
    progress: "Callable[[ProgressEvent], None]",
) -> "Calibration":
    from specverify.certification.calibration import Calibration, blocks, false_alarms, gather
    from specverify.certification.calibration_library import Detections
    from specverify.certification.calibration_null import NullRuns

    rows, detections, interrupted = (), [], False
    if only != "library":
        made, interrupted = gather(engine, NullRuns(seed), blocks(runs), progress, "null runs")
        rows = false_alarms(made[:runs])
    if only != "null" and not interrupted:
        work = Detections(seed, seeds)
        detections, interrupted = gather(engine, work, work.count, progress, "mutants")
    return Calibration(seed, rows, tuple(detections), interrupted)


def _check(runs: int | None, seeds: int | None, seed: int, jobs: int, only: Only | None) -> None:
    if runs is not None and only == "library":
        raise UsageError(f"--runs {runs} counts null runs, which --only library leaves out")
    if seeds is not None and only == "null":
        raise UsageError(
            f"--seeds {seeds} counts certifications of mutants, which --only null leaves out"
        )
    if runs is not None and runs < FEWEST:
        raise UsageError(
            f"--runs {runs} is too few to see a rate of 0.1; give at least {FEWEST}, and 1,000 or "
            "more to see one of 0.001"
        )
    if seeds is not None and seeds < 1:
        raise UsageError(f"--seeds must be at least 1, got {seeds}")
    if seed < 0:
        raise UsageError(f"--seed is a whole number of at least 0, got {seed}")
    if seed + (seeds or SEEDS) - 1 > LARGEST_SEED:
        raise UsageError(
            f"--seed is at most 2**63 - 1 ({LARGEST_SEED}), the last of --seeds too; got {seed}"
        )
    for name, value in (("--runs", runs), ("--seeds", seeds)):
        if value is not None and value > MOST:
            raise UsageError(f"{name} is at most {MOST:,}, got {value}")
    if jobs < 1:
        raise UsageError(f"--jobs is a number of processes, at least 1, got {jobs}")
