"""The forms a certificate can be written in beside JSON, one writer a file."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from specverify.certification.certificate import Certificate
from specverify.errors import UsageError
from specverify.lookup import did_you_mean
from specverify.reporting.json_file import certificate_name

SUFFIXES = {"html": ".html", "markdown": ".md", "badge": ".badge.json", "junit": ".junit.xml"}
"""Endings of the files, by form."""


def read_formats(texts: Iterable[str]) -> tuple[str, ...]:
    """The forms that are asked for, each once, from names and lists of names with commas.

    Raises:
        UsageError: there is no such form, or what it is made with is not installed.
    """
    chosen: list[str] = []
    for name in (part.strip() for text in texts for part in text.split(",")):
        if name not in SUFFIXES:
            raise UsageError(
                f"no report {name!r}{did_you_mean(name, SUFFIXES)}; the forms are "
                f"{', '.join(SUFFIXES)}"
            )
        if name not in chosen:
            chosen.append(name)
    if "html" in chosen:
        check_extra()
    return tuple(chosen)


def check_extra() -> None:
    """Refuse HTML where it cannot be made.

    Raises:
        UsageError: the extra is not installed.
    """
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"HTML reports need {error.name}, which is not installed; "
            "pip install 'specverify[report]'"
        ) from None


def report_name(file: str, form: str) -> str:
    """File name of a report, from that of the certificate."""
    return file.removesuffix(".json") + SUFFIXES[form]


def report_text(certificate: Certificate, form: str, *, file: str) -> str:
    """A certificate in one of the forms.

    Args:
        certificate: what to write.
        form: of `SUFFIXES`.
        file: name of the certificate's own file, for the commands that are shown.
    """
    if form == "html":
        from specverify.reporting.html import html_page

        return html_page(certificate, file=file)
    if form == "markdown":
        from specverify.reporting.markdown import markdown_summary

        return markdown_summary(certificate, file=file)
    if form == "junit":
        from specverify.reporting.junit import junit_xml

        return junit_xml(certificate, file=file)
    from specverify.reporting.badge import badge_json

    return badge_json(certificate)


def write_reports(
    certificate: Certificate, forms: Sequence[str], directory: Path, *, file: str | None = None
) -> list[Path]:
    """Write a certificate in several forms, replacing those of the same name.

    Args:
        certificate: what to write.
        forms: of `SUFFIXES`.
        directory: that exists.
        file: name of the certificate's own file; the usual one when omitted.

    Raises:
        OSError: the folder cannot be written.
    """
    name = file or certificate_name(certificate)
    paths = []
    for form in forms:
        path = directory / report_name(name, form)
        path.write_text(report_text(certificate, form, file=name), encoding="utf-8", newline="\n")
        paths.append(path)
    return paths
