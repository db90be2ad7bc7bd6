"""What `specverify certify` leaves behind: files, the report, an exit code."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specverify.certification.verdict import EXIT_ERROR
from specverify.quoting import message_of

if TYPE_CHECKING:
    from specverify.certification.certificate import Certificate
    from specverify.subjects.protocols import Subject


def finish(
    certificate: "Certificate",
    subject: "Subject",
    folder: Path | None,
    out: Path | None,
    forms: Sequence[str],
) -> int:
    """Write what is to be written, print the report, and say how it ended."""
    # First of all, since printing may fail: a reader may leave, a subject close standard output.
    scripts = {} if folder is None else _write(certificate, subject, folder, forms)
    written = scripts is not None
    if not _report(certificate, out if written else None, scripts or {}, forms) or not written:
        return EXIT_ERROR
    return certificate.exit_code


def host_free(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line as it may be published: absolute paths lose what belongs to one machine.

    Paths below the current folder become relative to it, others keep their last part.
    """

    def shorten(match: re.Match[str]) -> str:
        path = Path(match.group())
        if path.is_relative_to(Path.cwd()):
            return path.relative_to(Path.cwd()).as_posix()
        return path.name

    return tuple(re.sub(r"(?:^|(?<=[=,]))/[^,]*", shorten, part) for part in argv)


def _write(
    certificate: "Certificate", subject: "Subject", directory: Path, forms: Sequence[str]
) -> dict[str, str] | None:
    """Write the certificate, its reports, and scripts for its counterexamples.

    Returns:
        File names of the scripts by case; None if something could not be written.
    """
    from specverify.reporting.formats import write_reports
    from specverify.reporting.json_file import write_certificate
    from specverify.reporting.script import write_scripts

    try:
        path = write_certificate(certificate, directory)
        write_reports(certificate, forms, directory)
        return write_scripts(certificate, subject, directory, path.name)
    except OSError as error:
        click.echo(
            f"Error: the certificate could not be written to {str(directory)!r}: "
            f"{error.strerror}; make room or choose another --out, and run again",
            err=True,
        )
        return None


def _report(
    certificate: "Certificate", out: Path | None, scripts: dict[str, str], forms: Sequence[str]
) -> bool:
    """Print the report, and where the certificate and its reports are if there are any."""
    from specverify.reporting.formats import report_name
    from specverify.reporting.json_file import certificate_name
    from specverify.reporting.terminal import print_certificate, report_console

    try:
        path = None if out is None else out / certificate_name(certificate)
        files = {} if out is None else {case: out / name for case, name in scripts.items()}
        print_certificate(certificate, report_console(), path=path, scripts=files)
        if path is not None:
            click.echo(f"certificate {path} · sha256 {certificate.digest()}")
            for form in forms:
                click.echo(f"{form} {path.parent / report_name(path.name, form)}")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        click.echo(
            f"Error: the verdict is {certificate.verdict}, but the report could not be printed: "
            f"{message_of(error)}; let the subject leave standard output open, or read the "
            "certificate that --out writes",
            err=True,
        )
        return False
    return True
