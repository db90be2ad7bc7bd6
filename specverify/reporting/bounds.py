"""Bounds and what could have been seen, each under its right name, on a terminal."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specverify.certification.certificate import CaseRecord

Row = tuple[str, str, str, str]


def print_bounds(cases: "Sequence[CaseRecord]", console: Console) -> None:
    """Print what is known with confidence of each sampled case, after a blank line."""
    sampled = [case for case in cases if case.bounds]
    if not sampled:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("case", no_wrap=True)
    table.add_column("bound, or smallest deviation seen with probability 0.999", overflow="fold")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("asked for", justify="right", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    for case in sampled:
        for index, row in enumerate([*_bounds(case), *_detectable(case)]):
            table.add_row(Text(case.id if index == 0 else ""), *row)
    console.print()
    console.print(table)
    for case in sampled:
        if case.stopped:
            saved = case.planned_runs - case.runs
            text = f"{case.stopped} after {case.runs:,} runs; {saved:,} more were planned"
            console.print(Text.assemble((f"{case.id}: ", "dim"), text))


def _bounds(case: "CaseRecord") -> Iterator[Row]:
    for bound in case.bounds:
        asked = "" if bound.limit is None else f"{bound.limit:g}"
        yield bound.name, f"at most {bound.value:.2g}", asked, f"{bound.n:,}"


def _detectable(case: "CaseRecord") -> Iterator[Row]:
    for test in case.tests:
        if test.detectable is not None:
            what = f"{test.detectable_what} ({test.property})"
            yield what, f"seen from {test.detectable:.2g}", "", f"{test.n:,}"
