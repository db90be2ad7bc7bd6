"""`specverify certify`: the command that makes a certificate.

Only click is imported at load.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specverify.certification.limits import ALPHA, LARGEST_ALPHA, LARGEST_SEED, SMALLEST_ALPHA
from specverify.certification.verdict import EXIT_ERROR, worst_exit_code
from specverify.cli_configuration import ConfiguredCommand, configured, given
from specverify.cli_options import Folder, Invocation, time_limit_option
from specverify.cli_streams import Streams
from specverify.errors import UsageError
from specverify.pyproject import TABLE
from specverify.quoting import message_of

if TYPE_CHECKING:
    from specverify.certification.certificate import Certificate
    from specverify.models.pairs import Pair
    from specverify.settings import SamplingSettings
    from specverify.subjects.protocols import Subject


@click.command(cls=ConfiguredCommand)
@click.argument("subject", required=False)
@click.option(
    "--kind",
    type=click.Choice(["rule", "transform", "decoder"]),
    help="What SUBJECT is, where it does not say so itself.",
)
@click.option(
    "--pair",
    "pair_name",
    metavar="NAME",
    default="toy",
    show_default=True,
    help="Target and draft to test on: a name from `specverify pairs`, package.module:object, or "
    "TARGET_DIR,DRAFT_DIR.",
)
@click.option(
    "--settings",
    "settings_texts",
    metavar="NAME|FILE|JSON",
    multiple=True,
    help="Sampling settings: a preset, a JSON file, or JSON itself. May be repeated; all presets "
    "when omitted.",
)
@click.option(
    "--profile",
    type=click.Choice(["quick", "standard", "thorough", "fuzz"]),
    default="quick",
    show_default=True,
    help="How many tokens to sample; fuzz samples as quick does, and then searches random inputs.",
)
@click.option(
    "--only",
    metavar="PROPERTY",
    multiple=True,
    help="Check only this property of `specverify properties`, or those of a pattern such as "
    "'joint.*'; may be repeated. All still share the budget.",
)
@click.option("--seed", type=click.IntRange(min=0, max=LARGEST_SEED), default=0, show_default=True)
@click.option(
    "--alpha",
    type=click.FloatRange(min=SMALLEST_ALPHA, max=LARGEST_ALPHA),
    metavar="P",
    default=ALPHA,
    show_default=True,
    help="False-alarm budget: how likely a right implementation may be called violated.",
)
@click.option(
    "--out",
    type=Folder(),
    metavar="DIR",
    help="Folder for the certificate, a JSON file; also written after an error or Ctrl-C.",
)
@click.option(
    "--report",
    "report_forms",
    metavar="FORM",
    multiple=True,
    help="Beside it write html, markdown, badge or junit; several with commas, or repeat it.",
)
@click.option(
    "--num-draft-tokens",
    type=click.IntRange(min=1),
    metavar="K",
    help="Draft tokens a round; the pair's own number when omitted.",
)
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help="Tokens to sample at most, over all settings, in place of the profile's number.",
)
@click.option(
    "--run-length",
    type=click.IntRange(min=1),
    metavar="N",
    help="Tokens a run has at most; K + 2 when omitted.",
)
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    show_default=True,
    help="Processes that sample; the certificate does not depend on it.",
)
@click.option(
    "--isolate",
    is_flag=True,
    help="Run SUBJECT in processes of its own: when it ends one, or a call never returns, that "
    "case is an error and the others go on.",
)
@click.option(
    "--resume",
    type=Folder(file_okay=False),
    metavar="DIR",
    help="Keep finished shards in DIR while the run lasts; the same command goes on where a killed "
    "or interrupted one was.",
)
@click.option(
    "--no-early-stop",
    is_flag=True,
    help="Sample the planned number even after a violation, or once the bounds are reached.",
)
@click.option(
    "--no-shrink",
    is_flag=True,
    help="Leave violations unexplained: no search for the smallest input, no diagnosis.",
)
@click.option(
    "--expected",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Known failures, [[expected]] entries with property and reason: the verdict is formed "
    "without them, and one that passes fails the run.",
)
@click.option(
    "--strict/--no-strict",
    default=False,
    help="Count findings, deviations below the tolerance that have a cause, as violations.",
)
@click.option(
    "--fuzz-time",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Of profile fuzz: how long to search; 60 when neither limit is given.",
)
@click.option(
    "--fuzz-inputs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Of profile fuzz: inputs after which to stop, the same ones on every machine.",
)
@click.option(
    "--database",
    type=Folder(file_okay=False),
    metavar="DIR",
    help="Of profile fuzz: keep inputs that failed in DIR, and try them first; the next search "
    "goes on where this one ended.",
)
@time_limit_option
@click.option(
    "--one-row-a-call",
    is_flag=True,
    help="Hand SUBJECT a single prompt a call, as batch=False in its declaration does.",
)
@click.option(
    "--reference-transform",
    metavar="NAME",
    help="For a transform: the specverify transform it must equal.",
)
@click.pass_obj
def certify(
    options: Invocation,
    subject: str | None,
    kind: str | None,
    pair_name: str,
    settings_texts: tuple[str, ...],
    profile: str,
    only: tuple[str, ...],
    seed: int,
    alpha: float,
    out: Path | None,
    report_forms: tuple[str, ...],
    num_draft_tokens: int | None,
    tokens: int | None,
    time_limit: float,
    run_length: int | None,
    jobs: int,
    resume: Path | None,
    expected: Path | None,
    fuzz_time: float | None,
    fuzz_inputs: int | None,
    database: Path | None,
    *,
    isolate: bool,
    strict: bool,
    no_early_stop: bool,
    no_shrink: bool,
    one_row_a_call: bool,
    reference_transform: str | None,
) -> int:
    """Certify SUBJECT, an implementation of speculative decoding or of a part of it.

    SUBJECT is a name from `specverify subjects`, or your own package.module:object. Without it,
    those of [tool.specverify] in pyproject.toml are certified, which may set options too.

    \b
    Examples:
      specverify certify reference
      specverify certify reference-block --pair trained --profile standard
      specverify certify transformers --settings '{"temperature": 0.7, "top_k": 20}'
      specverify certify mylib.decoding:generate --kind decoder --out certificates
      specverify certify mylib.decoding:generate --profile fuzz --fuzz-time 3600 --database found
      specverify certify mylib.sampling:TopK --kind transform --reference-transform top_k
    """
    from specverify.certification.expected import expectations_of
    from specverify.reporting.formats import read_formats
    from specverify.reporting.json_file import prepare_directory

    streams = Streams()
    forms = read_formats(report_forms)
    if forms and out is None:
        raise UsageError(
            f"--report {','.join(forms)} writes files; say where with --out, the folder of the "
            "certificate"
        )
    # A subject may change the current folder.
    folder = None if out is None else out.absolute()
    with streams.kept_for_the_report():
        requests = [
            _request(found, pair_name, settings_texts, reference_transform, one_row_a_call)
            for found in _load_subjects(subject, kind)
        ]
    for asked in requests:
        expectations_of(expected, asked.subject)
    if folder is not None:
        prepare_directory(folder)
    common: dict[str, Any] = {
        "profile": profile,
        "only": only or ("*",),
        "seed": seed,
        "alpha": alpha,
        "time_limit": time_limit,
        "num_draft_tokens": num_draft_tokens,
        "tokens": tokens,
        "run_length": run_length,
        "jobs": jobs,
        "isolate": isolate,
        "resume": None if resume is None else resume.absolute(),
        "stop_early": not no_early_stop,
        "shrink": not no_shrink,
        "expected": None if expected is None else expected.absolute(),
        "strict": strict,
        "fuzz_time": fuzz_time,
        "fuzz_inputs": fuzz_inputs,
        "database": None if database is None else database.absolute(),
        "command": host_free(("specverify", *options.argv)),
    }
    codes = []
    for asked in requests:
        with streams.kept_for_the_report():
            certificate = _certify(asked, common)
        streams.restore()
        codes.append(_finish(certificate, asked.subject, folder, out, forms))
        if certificate.interrupted:
            break
    return worst_exit_code(codes)


@dataclass(frozen=True)
class _Request:
    """One subject on its pair."""

    subject: "Subject"
    pair: "Pair | str"
    settings: "dict[str, SamplingSettings] | None" = None


def _load_subjects(subject: str | None, kind: str | None) -> "list[Subject]":
    """The subject of the command line, or those that are configured."""
    from specverify.subjects.registry import load_subject

    found = configured()
    known = () if found is None else found.subjects
    names = (subject,) if subject is not None else known
    if not names:
        raise click.UsageError(
            "no SUBJECT: name one of `specverify subjects` or your own package.module:object, or "
            f'set subject = "..." under [{TABLE}] in pyproject.toml'
        )
    kinds = dict.fromkeys(known, None if found is None else found.kind)
    return [load_subject(name, kind or kinds.get(name)) for name in names]


def _request(
    subject: "Subject",
    pair_name: str,
    settings_texts: Sequence[str],
    reference: str | None,
    one_row_a_call: bool,  # noqa: FBT001
) -> _Request:
    subject = _with_reference(subject, reference)
    if subject.kind == "transform":
        _refuse_for_transform()
        return _Request(subject, pair_name)

    from specverify.certification.configuration import chosen_settings
    from specverify.models.pairs import load_pair

    if one_row_a_call:
        subject = replace(subject, capabilities=replace(subject.capabilities, batch=False))
    pair = load_pair(pair_name)
    return _Request(subject, pair, chosen_settings(settings_texts, pair))


def _certify(asked: _Request, options: dict[str, Any]) -> "Certificate":
    from specverify.certification.run import certify
    from specverify.reporting.terminal import progress_bar, progress_console

    with progress_bar(progress_console()) as progress:
        return certify(
            asked.subject, asked.pair, settings=asked.settings, progress=progress, **options
        )


def _finish(
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


def _with_reference(subject: "Subject", reference: str | None) -> "Subject":
    if reference is None:
        return subject
    if subject.kind != "transform":
        raise UsageError(
            f"--reference-transform {reference!r} was given for {subject.name!r}, which is a "
            f"{subject.kind}; leave it out, or say --kind transform"
        )
    return replace(subject, reference=reference)


_NOT_FOR_TRANSFORMS = {
    "settings_texts": "--settings",
    "tokens": "--tokens",
    "num_draft_tokens": "--num-draft-tokens",
    "one_row_a_call": "--one-row-a-call",
    "run_length": "--run-length",
    "jobs": "--jobs",
    "resume": "--resume",
    "no_early_stop": "--no-early-stop",
}


def _refuse_for_transform() -> None:
    """Refuse options that say nothing of a transform; a configuration may be for others too."""
    refused = [_NOT_FOR_TRANSFORMS[name] for name in given(*_NOT_FOR_TRANSFORMS)]
    if refused:
        raise UsageError(
            "a transform generates nothing, and its parameters come from its reference; leave out "
            f"{', '.join(refused)}"
        )


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
