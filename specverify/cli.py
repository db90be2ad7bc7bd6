"""The command line: `specverify certify`, `exact`, `subjects` and `pairs`.

Only click is imported at load; each command imports what it needs.
"""

import math
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specverify import __version__
from specverify.certification.verdict import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_USAGE, exit_code
from specverify.cli_exact import exact
from specverify.errors import SpecverifyError, UsageError
from specverify.quoting import message_of, printable
from specverify.subjects.watchdog import LONGEST

if TYPE_CHECKING:
    from specverify.certification.certificate import Certificate
    from specverify.models.pairs import Pair
    from specverify.settings import SamplingSettings
    from specverify.subjects.protocols import Subject

_INTERRUPTS = ("SIGINT", "SIGTERM", "SIGHUP")
_ONE_INTERRUPT = 0.5
"""Seconds within which signals count as one: a terminal, a supervisor and a process group may each
deliver the same Ctrl-C."""

_EXIT_BROKEN_PIPE = 141
"""What a shell reports for a program that the pipe's reader left behind; click would return 1."""


@dataclass
class _Options:
    argv: tuple[str, ...]
    traceback: bool = False


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: arguments after the program's name; those of the process when omitted.

    Returns:
        The exit code: 0 preserved or lossy as declared, 1 violated, 2 inconclusive, 3 error in
        the subject or in specverify, 4 bad usage, 130 interrupted.
    """
    options = _Options(tuple(sys.argv[1:] if argv is None else argv))
    with _interruptible():
        return _main(options)


def _main(options: _Options) -> int:
    try:
        code = cli.main(
            args=list(options.argv),
            prog_name="specverify",
            standalone_mode=False,
            obj=options,
        )
        if not sys.stdout.closed:
            sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except BrokenPipeError:
        # Python flushes standard output once more at exit, and would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _EXIT_BROKEN_PIPE
    except SpecverifyError as error:
        return _failed(printable(str(error)), error.exit_code, options)
    except Exception as error:
        return _failed(
            f"specverify itself failed with {type(error).__name__}: {message_of(error)}. Please "
            "report it, with the output of the same command as `specverify --traceback ...`",
            EXIT_ERROR,
            options,
        )
    return code if isinstance(code, int) else 0


@contextmanager
def _interruptible() -> Iterator[None]:
    """Treat what cancels jobs (SIGTERM, SIGHUP) as Ctrl-C: what was computed is written.

    Signals that the caller ignores, as `nohup` does, stay ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    last = -math.inf

    def interrupt(*_: object) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before > _ONE_INTERRUPT:
            raise KeyboardInterrupt

    numbers = [getattr(signal, name) for name in _INTERRUPTS if hasattr(signal, name)]
    kept = {number: signal.getsignal(number) for number in numbers}
    for number, handler in kept.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _failed(message: str, code: int, options: _Options) -> int:
    if options.traceback:
        traceback.print_exc()
    click.echo(f"Error: {message}", err=True)
    return code


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="specverify")
@click.option("--traceback", "show_traceback", is_flag=True, help="Show where an error came from.")
@click.pass_obj
def cli(options: _Options, *, show_traceback: bool) -> None:
    """Certify that a speculative decoder samples exactly from its target model.

    \b
    Exit codes:
      0    preserved, or lossy as declared
      1    violated
      2    inconclusive
      3    error in the subject or in specverify
      4    bad usage
      130  interrupted

    \b
    Examples:
      specverify subjects
      specverify certify reference
      specverify certify transformers --pair trained --out certificates
    """
    options.traceback = show_traceback


@cli.command()
@click.argument("subject")
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
    type=click.Choice(["quick", "standard", "thorough"]),
    default="quick",
    show_default=True,
    help="How many tokens to sample.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the certificate, a JSON file; also written after an error or Ctrl-C.",
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
    help="Tokens to sample in place of the profile's number.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True, max=LONGEST),
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="Longest a single call into the subject may take.",
)
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
    options: _Options,
    subject: str,
    kind: str | None,
    pair_name: str,
    settings_texts: tuple[str, ...],
    profile: str,
    seed: int,
    out: Path | None,
    num_draft_tokens: int | None,
    tokens: int | None,
    time_limit: float,
    *,
    one_row_a_call: bool,
    reference_transform: str | None,
) -> int:
    """Certify SUBJECT, an implementation of speculative decoding or of a part of it.

    SUBJECT is a name from `specverify subjects`, or your own package.module:object.

    \b
    Examples:
      specverify certify reference
      specverify certify reference-block --pair trained --profile standard
      specverify certify transformers --settings '{"temperature": 0.7, "top_k": 20}'
      specverify certify mylib.decoding:generate --kind decoder --out certificates
      specverify certify mylib.sampling:TopK --kind transform --reference-transform top_k
    """
    from specverify.models.pairs import load_pair
    from specverify.reporting.json_file import prepare_directory
    from specverify.reporting.terminal import progress_bar, progress_console
    from specverify.subjects.registry import load_subject

    # A subject may change the current folder.
    folder = None if out is None else out.absolute()
    loaded = _with_reference(load_subject(subject, kind), reference_transform)
    pair, settings = pair_name, None
    if loaded.kind == "transform":
        _refuse_for_transform(
            {
                "--settings": settings_texts,
                "--tokens": tokens,
                "--num-draft-tokens": num_draft_tokens,
                "--one-row-a-call": one_row_a_call,
            }
        )
    else:
        pair = load_pair(pair_name)
        settings = _read_settings(settings_texts, pair)
        if one_row_a_call:
            loaded = replace(loaded, capabilities=replace(loaded.capabilities, batch=False))
    if folder is not None:
        prepare_directory(folder)

    from specverify.certification.run import certify as run

    with progress_bar(progress_console()) as progress:
        certificate = run(
            loaded,
            pair,
            settings=settings,
            profile=profile,
            seed=seed,
            progress=progress,
            time_limit=time_limit,
            num_draft_tokens=num_draft_tokens,
            tokens=tokens,
            command=host_free(("specverify", *options.argv)),
        )
    # First of all, since printing may fail: a reader may leave, a subject close standard output.
    written = folder is None or _write(certificate, folder)
    if not _report(certificate, out if written else None) or not written:
        return EXIT_ERROR
    return exit_code(certificate.verdict, interrupted=certificate.interrupted)


@cli.command()
def subjects() -> None:
    """List the installed implementations that can be certified by name."""
    from specverify.subjects.registry import load_subject, subject_names

    def describe(name: str) -> str:
        loaded = load_subject(name)
        return f"{loaded.kind:<10} {loaded.summary}"

    _list(subject_names(), describe)


@cli.command()
def pairs() -> None:
    """List the installed pairs of a target and a draft."""
    from specverify.models.pairs import load_pair, pair_names

    _list(pair_names(), lambda name: load_pair(name).summary)


cli.add_command(exact)


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


def _refuse_for_transform(options: dict[str, Any]) -> None:
    given = [name for name, value in options.items() if value]
    if given:
        raise UsageError(
            "a transform generates nothing, and its parameters come from its reference; leave out "
            f"{', '.join(given)}"
        )


def _read_settings(texts: tuple[str, ...], pair: "Pair") -> "dict[str, SamplingSettings] | None":
    if not texts:
        return None

    from specverify.certification.plan import pair_presets
    from specverify.certification.presets import read_settings

    available = pair_presets(pair, pair.open("language_model")[0])
    chosen: dict[str, SamplingSettings] = {}
    for text in texts:
        for name, settings in read_settings(text, available).items():
            if name in chosen and name not in available:
                name = f"{name}-{len(chosen) + 1}"
            chosen[name] = settings
    return chosen


def _write(certificate: "Certificate", directory: Path) -> bool:
    from specverify.reporting.json_file import write_certificate

    try:
        write_certificate(certificate, directory)
    except OSError as error:
        click.echo(
            f"Error: the certificate could not be written to {str(directory)!r}: "
            f"{error.strerror}; make room or choose another --out, and run again",
            err=True,
        )
        return False
    return True


def _report(certificate: "Certificate", out: Path | None) -> bool:
    """Print the report, and where the certificate is if there is one."""
    from specverify.reporting.json_file import certificate_name
    from specverify.reporting.terminal import print_certificate, report_console

    try:
        print_certificate(certificate, report_console())
        if out is not None:
            path = out / certificate_name(certificate)
            click.echo(f"certificate {path} · sha256 {certificate.digest()}")
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


def _list(names: Sequence[str], describe: Any) -> None:
    width = max((len(name) for name in names), default=0)
    for name in names:
        try:
            description = describe(name)
        except UsageError as error:
            description = f"cannot be loaded: {error}"
        click.echo(f"{name:<{width}}  {description}")
