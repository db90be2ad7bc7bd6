"""Certificates and progress on a terminal."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from specverify.certification.progress import ProgressEvent
from specverify.certification.verdict import NOT_ASKED, listed
from specverify.reporting.bounds import print_bounds
from specverify.reporting.exact_rows import exact_rows, exact_violations, sequences
from specverify.reporting.expectations import print_expectations
from specverify.reporting.failure import print_failures, replay_command
from specverify.reporting.search_lines import print_searches

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from specverify.certification.certificate import CaseRecord, Certificate, TestRecord

_VERDICT_STYLES = {
    "preserved": "bold green",
    "lossy-as-declared": "bold green",
    "violated": "bold red",
    "error": "bold red",
    "inconclusive": "bold yellow",
}
_NARROWEST = 120
"""Columns of a report that goes to a file."""

_DECISION_STYLES = {
    "pass": "green",
    "violated": "bold red",
    "blocked": "red",
    "suspect": "yellow",
    "undecided": "yellow",
    "reported": "dim",
}


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the caller choose the exit code; rich would exit with 1, which means violated."""
        raise BrokenPipeError


def report_console() -> Console:
    """Where reports go: standard output, wide enough for the table if nobody is watching."""
    console = _Console()
    return console if console.is_terminal else _Console(width=max(console.width, _NARROWEST))


def progress_console() -> Console:
    """Where progress goes: standard error, so that standard output holds the report alone."""
    return _Console(stderr=True)


@contextmanager
def progress_bar(console: Console) -> "Iterator[Callable[[ProgressEvent], None]]":
    """Show progress events while a certification runs.

    On a terminal a bar follows the current case and disappears in the end; elsewhere, in a log
    file, nothing is shown: the report has all of it.

    Args:
        console: where to draw, see `progress_console`.
    """
    if not console.is_terminal:
        yield lambda event: None
        return
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[message]}", style="dim"),
        console=console,
        transient=True,
    ) as progress:
        yield _Bar(progress)


class _Bar:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._case: str | None = None
        self._task = progress.add_task("", message="")

    def __call__(self, event: ProgressEvent) -> None:
        if event.case != self._case:
            self._case = event.case
            self._progress.reset(self._task)
        self._progress.update(
            self._task,
            description=escape(event.case),
            completed=event.done,
            total=event.total or None,
            message=escape(event.message),
        )


def print_certificate(
    certificate: "Certificate",
    console: Console,
    *,
    path: "Path | None" = None,
    scripts: "Mapping[str, Path] | None" = None,
) -> None:
    """Print a certificate: header, table of results, explanations, verdict.

    Args:
        certificate: what to print.
        console: where to.
        path: of its file, where there is one.
        scripts: files that show its counterexamples, by case.
    """
    _print_header(certificate, console)
    if certificate.cases:
        console.print(_table(certificate))
    print_bounds(certificate.cases, console)
    print_searches(certificate.cases, console)
    if certificate.log_e is not None:
        threshold = -math.log(certificate.alpha)
        together = f"ln E {certificate.log_e:.1f}, which rejects from {threshold:.1f}"
        console.print(Text.assemble(("all cases together: ", "dim"), together))
    _print_not_applicable(certificate, console)
    print_violations(certificate, console, path=path, scripts=scripts)
    for finding in (*certificate.findings, *certificate.remarks):
        console.print()
        console.print(Text(f"finding: {finding}", "yellow"))
    print_expectations(certificate, console)
    _print_verdict(certificate, console)


def print_violations(
    certificate: "Certificate",
    console: Console,
    *,
    path: "Path | None" = None,
    scripts: "Mapping[str, Path] | None" = None,
) -> None:
    """Print what is wrong: violations with their counterexamples, errors and findings of cases.

    Args:
        certificate: what to print of.
        console: where to.
        path: of its file, where there is one.
        scripts: files that show its counterexamples, by case.
    """
    for case in certificate.cases:
        if not case.small:
            _print_violations(case, console, path)
    for case, test, others in exact_violations([c for c in certificate.cases if c.small]):
        _print_violation(case, [test], console, path)
        if others:
            more = f"and in {others} more exact case{'s' * (others != 1)}"
            console.print(Padding(Text(more, "dim"), (0, 2), expand=False))
    print_failures(certificate.cases, console, certificate=path, scripts=scripts)
    _print_together(certificate.cases, console)


def _print_header(certificate: "Certificate", console: Console) -> None:
    subject, environment = certificate.subject, certificate.environment
    provenance = [f"{subject.distribution} {subject.version}"] if subject.distribution else []
    if subject.source_sha256:
        provenance.append(f"sha256 {subject.source_sha256[:8]}")
    details = f" ({', '.join(provenance)})" if provenance else ""
    tokens = sum(case.tokens for case in certificate.cases)
    work = f"{tokens:,} tokens in " if tokens else ""
    pair = f" · pair {certificate.pair}" if certificate.pair else ""
    known = (case.num_draft_tokens for case in certificate.cases if not case.small)
    blocks = sorted({block for block in known if block is not None})
    design = f"K {', '.join(map(str, blocks))} · " if blocks else ""
    if prompts := len(certificate.prompts):
        design += f"{prompts:,} prompt{'s' * (prompts != 1)} · "
    lines = (
        f"specverify {certificate.suite.version} · subject {subject.name}{details}"
        f"{pair} · profile {certificate.profile}",
        f"seed {certificate.seed} · {_budget(certificate)} · "
        f"torch {environment.torch} {environment.device} {environment.dtype}, "
        f"{environment.threads} thread{'s' * (environment.threads != 1)} · {certificate.level}",
        f"{design}{work}{certificate.seconds:,.0f} s",
    )
    console.print(Text("\n".join(lines)))
    console.print()


def _budget(certificate: "Certificate") -> str:
    """How false alarms are shared: half over the tests, half for all cases together."""
    alpha, tests = certificate.alpha, certificate.tests
    if all(case.small or not case.tokens for case in certificate.cases):
        return f"alpha {alpha:g}"
    threshold = math.log(2 * tests / alpha)
    noun = "test" if tests == 1 else "tests"
    return f"alpha {alpha:g}: half over {tests:,} {noun} (ln E from {threshold:.1f}), half together"


def _table(certificate: "Certificate") -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("case", "property", "evidence"):
        table.add_column(name, overflow="fold")
    for name in ("n", "ln E · stat/df", "p", "TV bound"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("result", no_wrap=True)
    for case in certificate.cases:
        if case.small:
            continue
        for index, test in enumerate(case.tests):
            table.add_row(*_row(case, test, first=index == 0))
        if not case.tests:
            style = _VERDICT_STYLES[case.verdict]
            table.add_row(Text(case.id), "", "", "", "", "", "", Text(case.verdict, style))
    computed = [case for case in certificate.cases if case.small]
    for row in exact_rows(computed, _DECISION_STYLES):
        table.add_row(*row)
    return table


def _row(case: "CaseRecord", test: "TestRecord", *, first: bool) -> list[str | Text]:
    bound = "" if case.tv_bound is None or not first else f"{case.tv_bound:.4f}"
    return [
        Text(case.id if first else ""),
        Text(test.property),
        f"{test.evidence} {test.test or ''}".rstrip(),
        f"{test.n:,}" if test.n else "",
        _statistic(test),
        "" if test.p_value is None else f"{test.p_value:.2g}",
        bound,
        Text(test.decision, _DECISION_STYLES[test.decision]),
    ]


def _statistic(test: "TestRecord") -> str:
    if test.statistic is None:
        return ""
    if test.df:
        return f"{test.statistic:.1f}/{test.df}"
    # A band's statistic is a distance between distribution functions.
    banded = (test.test or "").startswith("band")
    return f"{test.statistic:.4f}" if banded else f"{test.statistic:.1f}"


def _print_not_applicable(certificate: "Certificate", console: Console) -> None:
    entries = list(certificate.not_applicable)
    for case in certificate.cases:
        entries += case.not_applicable
    if not entries:
        return
    console.print()
    # The same property is often out of reach in every case, for the same reason.
    distinct = list(dict.fromkeys((entry.property, entry.reason) for entry in entries))
    for id, reason in distinct:
        if reason != NOT_ASKED:
            console.print(Text(f"not applicable: {id}: {reason}", "dim"))
    if left := sum(reason == NOT_ASKED for _, reason in distinct):
        noun = "property was" if left == 1 else "properties were"
        console.print(Text(f"{left} other {noun} not asked for", "dim"))


def _print_violations(case: "CaseRecord", console: Console, path: "Path | None") -> None:
    violated: dict[str, list[TestRecord]] = {}
    for test in case.tests:
        if test.decision == "violated":
            violated.setdefault(test.property, []).append(test)
    for tests in violated.values():
        _print_violation(case, tests, console, path)


def _print_together(cases: "Sequence[CaseRecord]", console: Console) -> None:
    """Errors and findings, each once with all the cases it was met in."""
    errors: dict[str, list[str]] = {}
    findings: dict[str, list[str]] = {}
    for case in cases:
        if case.verdict == "error":
            errors.setdefault(case.reason, []).append(case.id)
        for finding in case.findings:
            findings.setdefault(finding, []).append(case.id)
    for reason, ids in errors.items():
        console.print()
        console.print(Text(f"ERROR in {listed(ids)}", _VERDICT_STYLES["error"]))
        console.print(Padding(Text(reason), (0, 2), expand=False))
    for finding, ids in findings.items():
        console.print()
        console.print(Text(f"finding in {listed(ids)}: {finding}", "yellow"))


def _print_violation(
    case: "CaseRecord",
    tests: "Sequence[TestRecord]",
    console: Console,
    path: "Path | None",
) -> None:
    """Explain one violated property from the tests that rejected it."""
    first = tests[0]
    console.print()
    console.print(Text(f"VIOLATED {first.property} in {case.id}", _VERDICT_STYLES["violated"]))
    lines = [first.claim]
    if first.detail and first.test is None:
        lines.append(f"However, {first.detail}")
    for test in tests:
        if test.p_value is not None and test.statistic is not None:
            share = "" if test.alpha is None else f", whose share is {test.alpha:.1g}"
            lines.append(
                f"{test.test}: the odds against the claim are e^{test.statistic:.1f} to 1 after "
                f"{test.n:,} observations; were it true, they would ever get there with "
                f"probability {test.p_value:.2g} at most{share}."
            )
        if test.components:
            name = max(test.components, key=test.components.__getitem__)
            part = math.exp(test.components[name] - (test.statistic or 0.0))
            lines.append(f"The bet that gained most ({min(part, 1.0):.0%} of it): {name}.")
    console.print(Padding(Text("\n".join(lines)), (0, 2), expand=False))
    if first.worst_cells:
        console.print(Padding(_cells(first), (0, 2), expand=False))
    if first.exact is not None and first.exact.worst:
        console.print(Padding(sequences(first.exact), (0, 2), expand=False))
    if case.counterexample is None:
        again = Text.assemble(("Reproduce:  ", "bold"), replay_command(case, path))
        console.print(Padding(again, (0, 2), expand=False))


def _cells(test: "TestRecord") -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("worst cells", overflow="fold")
    table.add_column("observed", justify="right")
    table.add_column("expected", justify="right")
    for cell in test.worst_cells:
        name = cell.label or f"cell {cell.cell}" + f" of stratum {cell.stratum}" * (
            (test.strata or 1) > 1
        )
        table.add_row(Text(name), f"{cell.observed:,}", f"{cell.expected:,.1f}")
    return table


def _closing_reason(certificate: "Certificate") -> str:
    """The reason, or only where to read it if the message of an error stands above."""
    failed = [case.id for case in certificate.cases if case.verdict == "error"]
    if certificate.verdict == "error" and failed:
        return f"in {listed(failed)}: see above"
    return certificate.reason.partition("\n")[0]


def _print_verdict(certificate: "Certificate", console: Console) -> None:
    console.print()
    verdict = Text(certificate.verdict.upper(), _VERDICT_STYLES[certificate.verdict])
    if certificate.interrupted:
        verdict.append(" (interrupted: what was computed before is judged)", "yellow")
    verdict.append(f"  {_closing_reason(certificate)}", "default")
    console.print(verdict)
    undecided = (case for case in certificate.cases if case.verdict == "inconclusive")
    for missing in dict.fromkeys(case.missing for case in undecided):
        if missing and missing not in certificate.reason:
            console.print(Text(f"What it would take: {missing}"))
    console.print(Text(certificate.disclaimer, "dim"))
