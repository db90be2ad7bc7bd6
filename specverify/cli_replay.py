"""`specverify replay`: one case of a certificate once more.

Only click is imported at load.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specverify.certification.verdict import exit_code

if TYPE_CHECKING:
    from specverify.certification.certificate import Certificate
    from specverify.subjects.protocols import Subject


@click.command()
@click.argument("certificate", type=click.Path(path_type=Path))
@click.argument("case", metavar="CASE")
@click.option(
    "--subject",
    "spec",
    metavar="SUBJECT",
    help="Where to find the subject, if its name in the certificate does not tell.",
)
@click.option(
    "--counterexample",
    is_flag=True,
    help="Compute the case's counterexample, in place of the case itself.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="Longest a single call into the subject may take.",
)
def replay(
    certificate: Path, case: str, spec: str | None, time_limit: float, *, counterexample: bool
) -> int:
    """Run CASE of CERTIFICATE again, and say whether the result is the same.

    Subject, pair, settings and seed are those of the certificate. The exit code is that of what the
    case comes to now: 0 once a mistake is mended.

    \b
    Examples:
      specverify replay certificates/mine-toy-seed0.json exact/random-V3-K2-float64
      specverify replay certificates/mine-toy-seed0.json plain
      specverify replay mine.json exact/plain --counterexample
    """
    from specverify.certification.certificate import Certificate
    from specverify.subjects.registry import load_subject

    loaded = Certificate.load(certificate)
    subject = _as_certified(load_subject(spec or loaded.subject.name, loaded.subject.kind), loaded)
    _say_what_changed(loaded, subject)
    if counterexample:
        return _replay_counterexample(loaded, case, subject, time_limit)
    from specverify.certification.replay import replay_case

    result = replay_case(loaded, case, subject, time_limit=time_limit)
    now = result.now
    reason = f": {now.reason}" if now.reason else ""
    click.echo(f"{case} of {subject.name}: {now.verdict}{reason}")
    if not result.differences:
        click.echo("the same as in the certificate")
    for difference in result.differences:
        click.echo(f"not as in the certificate: {difference}")
    return exit_code(now.verdict)


def _replay_counterexample(
    certificate: "Certificate", case: str, subject: "Subject", time_limit: float
) -> int:
    from specverify.certification.counterexamples.argument import contradiction
    from specverify.certification.replay import recorded_case, replay_counterexample

    result, same = replay_counterexample(certificate, case, subject, time_limit=time_limit)
    record = recorded_case(certificate, case).counterexample
    given = "" if record is None else record.text.partition(" Then ")[0]
    distance = result.comparison.total_variation
    if result.wrong:
        click.echo(f"{given} {contradiction(result.observed, result.expected, result.tolerance)}")
    else:
        click.echo(f"{given} Then the subject emits what the target does.")
    verdict = "violated" if result.wrong else "preserved"
    click.echo(f"{verdict}: total variation {distance:.6g}")
    click.echo("the same as in the certificate" if same else "not as in the certificate")
    return exit_code(verdict)


def _as_certified(subject: "Subject", certificate: "Certificate") -> "Subject":
    """What the command line of the certification changed in the subject's declaration."""
    command = certificate.command
    if "--one-row-a-call" in command:
        subject = replace(subject, capabilities=replace(subject.capabilities, batch=False))
    for index, word in enumerate(command):
        name, _, value = word.partition("=")
        if name == "--reference-transform":
            subject = replace(subject, reference=value or command[index + 1])
    return subject


def _say_what_changed(certificate: "Certificate", subject: "Subject") -> None:
    from specverify import __version__
    from specverify.subjects.provenance import source_sha256

    if certificate.suite.version != __version__:
        click.echo(
            f"note: written by specverify {certificate.suite.version}, run by {__version__}",
            err=True,
        )
    before = certificate.subject.source_sha256
    if before is not None and source_sha256(subject.call) != before:
        click.echo("note: the subject's source has changed since", err=True)
