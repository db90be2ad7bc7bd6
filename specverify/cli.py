"""The command line: `specverify certify`, `specverify subjects`, `specverify pairs`.

Only click is imported at load; each command imports what it needs.
"""

import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specverify import __version__
from specverify.certification.verdict import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_USAGE, exit_code
from specverify.errors import SpecverifyError, UsageError

if TYPE_CHECKING:
    from specverify.certification.certificate import Certificate
    from specverify.models.pairs import Pair
    from specverify.settings import SamplingSettings

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
    try:
        code = cli.main(
            args=list(options.argv),
            prog_name="specverify",
            standalone_mode=False,
            obj=options,
        )
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
        return _failed(str(error), error.exit_code, options)
    except Exception as error:
        return _failed(
            f"specverify itself failed with {type(error).__name__}: {error}. Please report it, "
            "with the output of the same command as `specverify --traceback ...`",
            EXIT_ERROR,
            options,
        )
    return code if isinstance(code, int) else 0


@contextmanager
def _interruptible() -> Iterator[None]:
    """Treat SIGTERM, which cancels jobs, as Ctrl-C: what was computed is written."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="Longest a single call into the subject may take.",
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
    from specverify.reporting.terminal import (
        print_certificate,
        progress_bar,
        progress_console,
        report_console,
    )
    from specverify.subjects.registry import load_subject

    loaded = _with_reference(load_subject(subject, kind), reference_transform)
    pair = load_pair(pair_name)
    settings = _read_settings(settings_texts, pair, loaded.kind)
    if out is not None:
        prepare_directory(out)

    from specverify.certification.run import certify as run

    with progress_bar(progress_console()) as progress, _interruptible():
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
    print_certificate(certificate, report_console())
    if out is not None and not _write(certificate, out):
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


def _with_reference(subject: Any, reference: str | None) -> Any:
    from dataclasses import replace

    if reference is None:
        return subject
    if subject.kind != "transform":
        raise UsageError(
            f"--reference-transform {reference!r} was given for {subject.name!r}, which is a "
            f"{subject.kind}; leave it out, or say --kind transform"
        )
    return replace(subject, reference=reference)


def _read_settings(
    texts: tuple[str, ...], pair: "Pair", kind: str
) -> "dict[str, SamplingSettings] | None":
    if not texts:
        return None
    if kind == "transform":
        raise UsageError(
            f"--settings {texts[0]!r} was given for a transform, whose parameters come from its "
            "reference; leave --settings out"
        )

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
        path = write_certificate(certificate, directory)
    except OSError as error:
        click.echo(
            f"Error: the certificate could not be written to {str(directory)!r}: "
            f"{error.strerror}; make room or choose another --out, and run again",
            err=True,
        )
        return False
    click.echo(f"certificate {path} · sha256 {certificate.digest()}")
    return True


def _list(names: Sequence[str], describe: Any) -> None:
    width = max((len(name) for name in names), default=0)
    for name in names:
        try:
            description = describe(name)
        except UsageError as error:
            description = f"cannot be loaded: {error}"
        click.echo(f"{name:<{width}}  {description}")
