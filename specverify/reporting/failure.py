"""A violated property on a terminal: the smallest input, the argument, what it looks like."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from specverify.certification.verdict import FUZZ

if TYPE_CHECKING:
    from specverify.certification.certificate import (
        CaseRecord,
        CounterexampleRecord,
        DiagnosisRecord,
    )

SHOWN = 8
"""Outcomes in the table, those furthest off."""

_PATH = Path("CERTIFICATE")


def print_failures(
    cases: "Sequence[CaseRecord]",
    console: Console,
    *,
    certificate: Path | None = None,
    scripts: Mapping[str, Path] | None = None,
) -> None:
    """Explain what was found smallest, with what it takes to see it again.

    Args:
        cases: of a certificate.
        console: where to.
        certificate: its file, named in the command; none was written when None.
        scripts: files by case id.
    """
    for case in cases:
        if case.counterexample is not None:
            _print_counterexample(case, case.counterexample, console)
        if case.diagnosis is not None:
            _indented(Text.assemble(("Looks like: ", "bold"), looks_like(case.diagnosis)), console)
        if case.counterexample is None:
            continue
        _indented(
            Text.assemble(("Reproduce:  ", "bold"), replay_command(case, certificate)), console
        )
        if scripts and case.id in scripts:
            _indented(
                Text.assemble(("Script:     ", "bold"), f"python {scripts[case.id]}"), console
            )


def replay_command(case: "CaseRecord", certificate: Path | None) -> str:
    """What runs the counterexample, or else the case, again."""
    searched = case.counterexample is not None and case.counterexample.inputs
    if case.id.startswith(FUZZ):
        searched = False  # the case is its counterexample, and may have been sampled
    option = " --counterexample" if searched else ""
    return f"specverify replay {certificate or _PATH} {case.id}{option}"


def looks_like(diagnosis: "DiagnosisRecord") -> str:
    """The known mistake that fits best, in words."""
    percent = f"{diagnosis.confidence:.0%}"
    if diagnosis.kind == "unknown":
        known = ", ".join(suspect.mutant for suspect in diagnosis.suspects)
        near = f"; nearest: {known}" if known else ""
        return f"no known kind of mistake ({percent}){near}"
    if not diagnosis.mutant:
        return f"kind {diagnosis.kind!r} ({percent}): {diagnosis.description}"
    return f"{diagnosis.mutant}, of kind {diagnosis.kind!r} ({percent}): {diagnosis.description}"


def _print_counterexample(
    case: "CaseRecord", record: "CounterexampleRecord", console: Console
) -> None:
    console.print()
    title = "smallest input" if record.inputs else "worst of the case"
    heading = Text.assemble(
        ("COUNTEREXAMPLE ", "bold red"), f"{record.property} in {case.id}", (f"  {title}", "dim")
    )
    console.print(heading)
    given, _, then = record.text.partition(" Then ")
    _indented(Text(given), console)
    if then:
        _indented(Text(f"Then {then}"), console)
    console.print(Padding(_outcomes(record), (0, 2), expand=False))
    if record.total_variation is not None:
        _indented(Text(f"total variation {record.total_variation:.6g}", "dim"), console)
    if not record.complete:
        _indented(Text("the search ran out of time; a smaller input may exist", "dim"), console)


def _outcomes(record: "CounterexampleRecord") -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    counted = record.kind == "cell"
    table.add_column("cell" if counted else "tokens", overflow="fold")
    for name in ("expected", "observed"):
        table.add_column(name, justify="right")
    style = "{:,.1f}" if counted else "{:.6g}"
    furthest = sorted(record.outcomes, key=lambda entry: -abs(entry.observed - entry.expected))
    for entry in sorted(furthest[:SHOWN], key=lambda entry: entry.tokens):
        off = abs(entry.observed - entry.expected) > (record.tolerance or 0.0)
        # A transform's masks are looked at one by one: any mass outside the support is too much.
        off |= record.kind == "transform" and entry.observed > 0 == entry.expected
        table.add_row(
            Text(entry.what),
            style.format(entry.expected),
            Text(style.format(entry.observed), "bold red" if off else ""),
        )
    if (more := len(record.outcomes) - SHOWN) > 0:
        table.add_row(Text(f"and {more} more", "dim"), "", "")
    return table


def _indented(text: Text, console: Console) -> None:
    console.print(Padding(text, (0, 2), expand=False))
