"""`specverify properties`: what is claimed of a subject, and why.

Only click is imported at load.
"""

from pathlib import Path

import click

from specverify.cli_options import Folder
from specverify.errors import UsageError


@click.command()
@click.argument("pattern", default="*")
@click.option(
    "--write",
    type=Folder(),
    metavar="DIR",
    help="Write one Markdown page a chapter in place of printing.",
)
def properties(pattern: str, write: Path | None) -> None:
    """List the properties that are checked, those whose id matches PATTERN.

    \b
    Examples:
      specverify properties
      specverify properties 'stopping.*'
    """
    import fnmatch

    from specverify.reporting.property_pages import by_chapter, page

    if write is not None:
        write.mkdir(parents=True, exist_ok=True)
        for chapter, found in by_chapter().items():
            (write / f"{chapter}.md").write_text(page(chapter, found), encoding="utf-8")
        return
    chosen = [
        property
        for found in by_chapter().values()
        for property in found
        if fnmatch.fnmatchcase(property.id, pattern)
    ]
    if not chosen:
        raise UsageError(f"no property matches {pattern!r}; without a pattern all are listed")
    width = max(len(property.id) for property in chosen)
    for property in chosen:
        kinds = "/".join(sorted(property.kinds))
        click.echo(f"{property.id:<{width}}  {kinds:<12}  {property.evidence:<7}  {property.claim}")
