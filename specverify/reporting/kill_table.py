"""The kill table on a terminal: which property catches which mutant."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from specverify.certification.kill_table import ControlRecord, KillRecord, KillTable

UNITS = {"exact": "runs", "sampled": "tokens", "structural": "calls"}
"""Of the cost of a kill, by its evidence."""


def print_kill_table(table: "KillTable", console: Console, *, whole: bool) -> None:
    """Print the table, what is wrong, and how many each property catches.

    Args:
        table: what was found.
        console: where to print.
        whole: whether all controls were tried, so that properties can be judged too.
    """
    mutants = [control for control in table.controls if control.effect != "preserved"]
    lookalikes = [control for control in table.controls if control.effect == "preserved"]
    if mutants:
        console.print(_rows(mutants))
        console.print()
    if whole:
        console.print(_by_property(table))
        console.print()
    for control in table.wrong:
        console.print(Text(f"{control.id}: {control.reason}", "bold red"))
    if whole and (idle := table.idle()):
        text = f"catch nothing alone and do not say why they are there: {', '.join(idle)}"
        console.print(Text(text, "bold red"))
    seconds = sum(control.seconds for control in table.controls)
    accused = sum(1 for control in lookalikes if control.reason)
    survived = sum(1 for control in mutants if control.reason)
    console.print(
        f"{len(mutants) - survived} of {len(mutants)} mutants are caught as they should be, "
        f"{len(lookalikes) - accused} of {len(lookalikes)} look-alikes pass; "
        f"{seconds:,.0f} s of work, seed {table.seed}"
    )


def _rows(mutants: "list[ControlRecord]") -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    grid.add_column("mutant", overflow="fold")
    grid.add_column("code", no_wrap=True)
    grid.add_column("kind", no_wrap=True)
    grid.add_column("caught by (evidence, cost)", overflow="fold")
    for control in mutants:
        found = ", ".join(map(_kill, control.killed_by))
        style = "bold red" if control.reason else ""
        grid.add_row(Text(control.id, style), control.code, control.kind, found or control.effect)
    return grid


def _kill(kill: "KillRecord") -> str:
    if not kill.cost:
        return f"{kill.property} ({kill.evidence})"
    return f"{kill.property} ({kill.evidence}, {kill.cost:,} {UNITS[kill.evidence]})"


def _by_property(table: "KillTable") -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    grid.add_column("property", no_wrap=True)
    grid.add_column("catches", justify="right")
    grid.add_column("alone", justify="right")
    alone = table.alone()
    for property, mutants in table.kills().items():
        grid.add_row(property, str(len(mutants)), str(len(alone.get(property, ()))))
    return grid
