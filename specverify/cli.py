"""The command line: exit codes, signals, errors; each command is a module `cli_...`.

Only click is imported at load; each command imports what it needs.
"""

import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from specverify import __version__
from specverify.certification.verdict import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_USAGE
from specverify.cli_calibrate import calibrate
from specverify.cli_certify import certify
from specverify.cli_check_certificate import check_certificate
from specverify.cli_exact import exact
from specverify.cli_options import Invocation
from specverify.cli_power import power
from specverify.cli_properties import properties
from specverify.cli_replay import replay
from specverify.cli_report import report
from specverify.cli_schema import schema
from specverify.cli_selftest import selftest
from specverify.cli_streams import Streams
from specverify.errors import SpecverifyError, UsageError
from specverify.quoting import message_of, printable

if TYPE_CHECKING:
    pass

_INTERRUPTS = ("SIGINT", "SIGTERM", "SIGHUP")
_ONE_INTERRUPT = 0.5
"""Seconds within which signals count as one: a terminal, a supervisor and a process group may each
deliver the same Ctrl-C."""

_EXIT_BROKEN_PIPE = 141
"""What a shell reports for a program that the pipe's reader left behind; click would return 1."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: arguments after the program's name; those of the process when omitted.

    Returns:
        The exit code: 0 preserved or lossy as declared, 1 violated, 2 inconclusive, 3 error in
        the subject or in specverify, 4 bad usage, 130 interrupted.
    """
    options = Invocation(tuple(sys.argv[1:] if argv is None else argv))
    with _interruptible():
        return _main(options, Streams())


def _main(options: Invocation, streams: Streams) -> int:
    try:
        try:
            code = cli.main(
                args=list(options.argv),
                prog_name="specverify",
                standalone_mode=False,
                obj=options,
            )
        finally:
            streams.restore()
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except BrokenPipeError:
        # Python flushes standard output once more at exit, and would complain again.
        if sys.stdout is not None:
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


def _failed(message: str, code: int, options: Invocation) -> int:
    if options.traceback:
        traceback.print_exc()
    click.echo(f"Error: {message}", err=True)
    return code


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="specverify")
@click.option("--traceback", "show_traceback", is_flag=True, help="Show where an error came from.")
@click.pass_obj
def cli(options: Invocation, *, show_traceback: bool) -> None:
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


cli.add_command(calibrate)
cli.add_command(certify)
cli.add_command(check_certificate)
cli.add_command(exact)
cli.add_command(power)
cli.add_command(properties)
cli.add_command(replay)
cli.add_command(report)
cli.add_command(schema)
cli.add_command(selftest)


def _list(names: Sequence[str], describe: Any) -> None:
    width = max((len(name) for name in names), default=0)
    streams = Streams()
    for name in names:
        try:
            description = describe(name)
        except UsageError as error:
            description = f"cannot be loaded: {error}"
        streams.restore()
        click.echo(f"{name:<{width}}  {description}")
