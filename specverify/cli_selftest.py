"""`specverify selftest`: the suite tried on every mutant and look-alike it knows.

Only click is imported at load.
"""

import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specverify.certification.verdict import EXIT_INTERRUPTED
from specverify.errors import UsageError

if TYPE_CHECKING:
    from specverify.certification.kill_table import ControlRecord, KillTable
    from specverify.certification.selftest import Control


@click.command()
@click.option(
    "--only",
    "patterns",
    metavar="PATTERN",
    multiple=True,
    help="Mutants and look-alikes by id or pattern, such as 'cache-*'. May be repeated.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    show_default=True,
    help="Processes; the table does not depend on it.",
)
@click.option(
    "--thorough",
    is_flag=True,
    help="Try each on all cases of all properties: hours instead of minutes.",
)
@click.option(
    "--brief",
    is_flag=True,
    help="Try mutants on nothing but what they are there for: no table of what is caught alone.",
)
@click.option(
    "--compare",
    is_flag=True,
    help="Fail too where the table differs from the one in the package.",
)
@click.option(
    "--write",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the table as JSON too. With --only, or after Ctrl-C, what FILE has of the others "
    "is kept, so that a table can be made in pieces.",
)
def selftest(
    *,
    patterns: tuple[str, ...],
    seed: int,
    jobs: int,
    thorough: bool,
    brief: bool,
    compare: bool,
    write: Path | None,
) -> int:
    """Try the suite on what is known: mutants must be caught, look-alikes must not be accused.

    Prints the kill table: which property catches which mutant, by which kind of evidence, after how
    many tokens or runs. Each is tried on all cases of the properties that it is there for, and on
    one case of every other.

    \b
    Exit codes: 0 all is well, 1 a mutant survives or a look-alike is accused, a property catches
    nothing alone and does not say why it is there, or --compare finds a difference; 130
    interrupted.

    \b
    Examples:
      specverify selftest --jobs 2
      specverify selftest --only 'residual-*' --only '*-rule'
    """
    if brief and (thorough or write is not None):
        other = "--thorough" if thorough else "--write"
        raise UsageError(
            f"--brief and {other} exclude each other: brief leaves out what a table has to say"
        )
    from specverify.certification.selftest import Extent, controls, run_selftest, table_of
    from specverify.reporting.kill_table import print_kill_table
    from specverify.reporting.terminal import progress_bar, progress_console, report_console
    from specverify.sampling.engines import InProcess
    from specverify.sampling.processes import Processes

    def wanted(control: "Control") -> bool:
        named = any(fnmatch.fnmatchcase(control.id, p) for p in patterns)
        return named or (not patterns and (thorough or not control.slow))

    total = sum(map(wanted, controls()))
    if not total:
        raise UsageError(
            f"no mutant or look-alike is named {', '.join(patterns)}; without --only all of them "
            "are tried"
        )
    extent: Extent = "thorough" if thorough else "brief" if brief else "usual"
    finished: list[ControlRecord] = []
    try:
        with progress_bar(progress_console()) as progress:
            from specverify.certification.progress import ProgressEvent

            def done(record: "ControlRecord") -> None:
                finished.append(record)
                progress(ProgressEvent("selftest", len(finished), total, record.id))

            with InProcess() if jobs == 1 else Processes(jobs) as engine:
                table = run_selftest(engine, only=wanted, seed=seed, extent=extent, done=done)
    except KeyboardInterrupt:
        click.echo(f"Interrupted after {len(finished)} of {total}.", err=True)
        if write is not None and finished:
            _write(table_of(finished, seed=seed, thorough=thorough), write, piece=True)
        return EXIT_INTERRUPTED
    whole = not patterns and not brief
    print_kill_table(table, report_console(), whole=whole)
    if write is not None:
        _write(table, write, piece=bool(patterns))
    idle = table.idle() if whole else []
    changed = _changes(table, brief=brief) if compare else []
    for change in changed:
        click.echo(f"otherwise than in the package: {change}")
    return 1 if table.wrong or idle or changed else 0


def _changes(table: "KillTable", *, brief: bool) -> list[str]:
    from specverify.certification.kill_table import differences, kill_table

    known = kill_table()
    if known is None:
        return ["its table is of another property set; write it anew with --write"]
    return differences(table, known, fewer=brief)


def _write(table: "KillTable", path: Path, *, piece: bool) -> None:
    from specverify.certification.kill_table import KillTable, joined
    from specverify.certification.selftest import controls

    try:
        if piece and path.is_file():
            earlier = KillTable.model_validate_json(path.read_text(encoding="utf-8"))
            table = joined(earlier, table, [control.id for control in controls()])
        path.write_text(table.model_dump_json(indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write the table to {str(path)!r}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(
            f"{str(path)!r} is no kill table that could be added to: {error}; name another file"
        ) from None
