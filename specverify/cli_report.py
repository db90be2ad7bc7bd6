"""`specverify report`: pages, summaries and test reports of stored certificates.

Only click is imported at load.
"""

from pathlib import Path

import click

from specverify.certification.verdict import EXIT_ERROR
from specverify.cli_options import Folder


@click.command()
@click.argument(
    "files", metavar="FILE...", type=click.Path(path_type=Path), nargs=-1, required=True
)
@click.option(
    "--format",
    "forms",
    metavar="FORM",
    multiple=True,
    default=("html",),
    show_default=True,
    help="html, markdown, badge or junit; several with commas, or repeat the option.",
)
@click.option(
    "--out",
    type=Folder(file_okay=False),
    metavar="DIR",
    help="Folder for the reports; that of each FILE when omitted.",
)
def report(files: tuple[Path, ...], forms: tuple[str, ...], out: Path | None) -> int:
    """Write the certificate in each FILE as a page, a summary, a badge or a test report.

    The exit code says whether they were written, not what they say: 0, or 4 where a FILE is no
    certificate.

    \b
    Examples:
      specverify report certificates/reference-toy-seed0.json
      specverify report certificates/*.json --format html,markdown,badge,junit --out reports
    """
    from specverify.certification.certificate import Certificate
    from specverify.reporting.formats import read_formats, write_reports
    from specverify.reporting.json_file import prepare_directory

    chosen = read_formats(forms)
    certificates = [Certificate.load(path) for path in files]
    if out is not None:
        prepare_directory(out)
    for path, certificate in zip(files, certificates, strict=True):
        folder = path.parent if out is None else out
        try:
            written = write_reports(certificate, chosen, folder, file=path.name)
        except OSError as error:
            click.echo(
                f"Error: reports cannot be written to {str(folder)!r}: {error.strerror}; choose "
                "another folder with --out",
                err=True,
            )
            return EXIT_ERROR
        for made in written:
            click.echo(str(made))
    return 0
