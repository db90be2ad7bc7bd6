"""`specverify check-certificate`: a certificate held against its own numbers.

Only click is imported at load.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from specverify.certification.verdict import EXIT_USAGE
from specverify.errors import UsageError

if TYPE_CHECKING:
    from specverify.certification.certificate import Certificate
    from specverify.certification.rechecked.recheck import Rechecked

_SHOWN = 20
"""Disagreements that are listed."""


@click.command("check-certificate")
@click.argument(
    "files", metavar="FILE...", type=click.Path(path_type=Path), nargs=-1, required=True
)
@click.option(
    "-q", "--quiet", is_flag=True, help="Leave out what was recomputed and what cannot be."
)
def check_certificate(files: tuple[Path, ...], *, quiet: bool) -> int:
    """Recompute what the numbers in each FILE decide, offline: neither models nor subject are run.

    Digest, budget, p-values, decisions, distances, bounds and verdicts are computed anew from the
    statistics, counts and probabilities that a certificate holds.

    \b
    Exit codes:
      0  consistent, whatever the verdict
      1  something does not agree
      4  not a certificate

    \b
    Example:
      specverify check-certificate certificates/reference-toy-seed0.json
    """
    from specverify.certification.rechecked.recheck import recheck_file

    code = 0
    for path in files:
        try:
            certificate, found = recheck_file(path)
        except UsageError as error:
            click.echo(f"Error: {error}", err=True)
            code = EXIT_USAGE
            continue
        _print(path, certificate, found, quiet=quiet)
        if found.disagreements and code == 0:
            code = 1
    return code


def _print(path: Path, certificate: "Certificate", found: "Rechecked", *, quiet: bool) -> None:
    number = len(found.disagreements)
    if not number:
        total = sum(count for _, count in found.compared)
        verdict = f"verdict {certificate.verdict}, exit code {certificate.exit_code}"
        click.echo(f"{path}: consistent, {total:,} comparisons; {verdict}")
    else:
        noun = "field does" if number == 1 else "fields do"
        click.echo(f"{path}: {number} {noun} not agree with the others")
    for entry in found.disagreements[:_SHOWN]:
        click.echo(f"  {entry.field}: states {entry.stated}, recomputed {entry.recomputed}")
    if number > _SHOWN:
        click.echo(f"  and {number - _SHOWN} more")
    if quiet:
        return
    click.echo("  recomputed:")
    for what, count in found.compared:
        click.echo(f"    {count:>7,}  {what}")
    click.echo("  cannot be recomputed:")
    for what, why in found.unknown:
        click.echo(f"    {what}: {why}")
