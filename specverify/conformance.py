"""What a test says that fails: a headline, and the part of the report that matters to it."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from specverify.certification.case_records import CaseRecord
from specverify.certification.certificate import Certificate
from specverify.certification.verdict import listed
from specverify.session import current_session

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH = 100


class ConformanceError(AssertionError):
    """A subject does not keep its contract; `certificate` holds the evidence.

    The message is a headline, and below it a report as `specverify certify` prints one.
    """

    def __init__(self, headline: str, certificate: Certificate, report: str) -> None:
        super().__init__(headline, certificate, report)
        self.headline, self.certificate, self.report = headline, certificate, report

    def __str__(self) -> str:
        return f"{self.headline}\n\n{self.report}"


# As users import it, so that a traceback names no more than that.
ConformanceError.__module__ = "specverify"


class ExpectedFailure(ConformanceError):
    """The same, where it is listed as expected."""


def of_run(certificate: Certificate) -> ConformanceError:
    """The error of a whole run, with all of its report."""
    from specverify.reporting.terminal import print_certificate

    text = io.StringIO()
    print_certificate(certificate, _console(text), path=_path(certificate))
    reason = certificate.reason.partition("\n")[0]
    verdict = certificate.verdict
    if verdict == "preserved" and certificate.stale:
        verdict = "as it should be"
    headline = f"{certificate.subject.name} is {verdict}: {reason}"
    return ConformanceError(headline, certificate, text.getvalue())


def of_part(
    headline: str,
    certificate: Certificate,
    *,
    shown: CaseRecord | None = None,
    expected: bool = False,
) -> ConformanceError:
    """The error of one property, with its violations and counterexamples.

    Args:
        headline: what goes into one line.
        certificate: what it is about.
        shown: the case that explains; all of them when omitted.
        expected: whether the failure is listed as expected.
    """
    from specverify.reporting.terminal import print_violations

    text = io.StringIO()
    cases = certificate.cases if shown is None else (shown,)
    printed = certificate.model_copy(update={"cases": cases})
    print_violations(printed, _console(text), path=_path(certificate))
    violated = [case.id for case in certificate.cases if case.verdict == "violated"]
    lines = [_heading(certificate), *(line.rstrip() for line in text.getvalue().splitlines())]
    if shown is not None and (others := [id for id in violated if id != shown.id]):
        lines += ["", f"Also in {listed(others)}."]
    kind = ExpectedFailure if expected else ConformanceError
    return kind(headline, certificate, "\n".join(lines))


def where_violated(case: CaseRecord) -> str:
    """The headline of a violation: the case, and the mistake it looks like."""
    found = case.diagnosis
    known = found is not None and found.kind != "unknown"
    looks = f", looks like {found.mutant or found.kind}" if known and found is not None else ""
    return f"violated in {case.id}{looks}"


def _heading(certificate: Certificate) -> str:
    pair = f" on {certificate.pair}" if certificate.pair else ""
    made = certificate.subject.distribution
    version = f" ({made} {certificate.subject.version})" if made else ""
    return (
        f"{certificate.subject.name}{version}{pair} · profile {certificate.profile} · "
        f"seed {certificate.seed} · alpha {certificate.alpha:g}"
    )


def _console(text: io.StringIO) -> "Console":
    from rich.console import Console

    return Console(file=text, width=_WIDTH, no_color=True)


def _path(certificate: Certificate) -> Path | None:
    """Where the session will write the certificate."""
    session = current_session()
    if session is None or session.report is None:
        return None
    from specverify.reporting.json_file import certificate_name

    return session.report / certificate_name(certificate)
