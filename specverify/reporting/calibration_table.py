"""How often a certification is wrong, as two tables with words under them or as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specverify.certification.calibration import ALPHAS, Calibration, FalseAlarms, upper_limit
from specverify.certification.calibration_library import Detection

_SHOWN = 2
"""Properties named of those that saw a mutant first."""


def to_json(calibration: Calibration) -> str:
    """All numbers of both tables."""
    content = {
        "seed": calibration.seed,
        "alphas": ALPHAS,
        "ok": calibration.ok,
        "interrupted": calibration.interrupted,
        "null": [
            asdict(row) | {"rates": row.rates, "limits": row.limits, "too_high": row.too_high}
            for row in calibration.false_alarms
        ],
        "library": [asdict(detection) for detection in calibration.detections],
    }
    return json.dumps(content, indent=2)


def print_calibration(calibration: Calibration, console: Console) -> None:
    """Print what there is of both tables, and a line that says whether all is well."""
    if calibration.false_alarms:
        console.print(_false_alarm_table(calibration.false_alarms))
        console.print()
        for line in _false_alarm_words(calibration.false_alarms):
            console.print(Text(line))
        console.print()
    if calibration.detections:
        console.print(_detection_table(calibration.detections))
        console.print()
        console.print(
            Text(
                "tokens: sampled until the first look at which anything crossed its threshold at "
                "alpha 1e-6; budget: within which the catalogue says it must."
            )
        )
        console.print()
    console.print(Text(verdict_line(calibration)))


def verdict_line(calibration: Calibration) -> str:
    """What was found, in one line."""
    high = sum(row.too_high for row in calibration.false_alarms)
    missed = [found.mutant for found in calibration.detections if not found.caught]
    parts = []
    if calibration.false_alarms:
        parts.append(
            f"false alarms {'TOO HIGH in ' + str(high) + ' rows' if high else 'within limits'}"
        )
    if calibration.detections:
        caught = len(calibration.detections) - len(missed)
        parts.append(
            f"{caught} of {len(calibration.detections)} mutants caught"
            + (f", MISSED: {', '.join(missed)}" if missed else "")
        )
    if calibration.interrupted:
        parts.append("interrupted, so only what was computed counts")
    return "; ".join(parts)


def _false_alarm_table(rows: Sequence[FalseAlarms]) -> Table:
    table = _table("false alarms of a right decoder", "runs")
    for alpha in ALPHAS:
        table.add_column(f"at {alpha:g}", justify="right")
    table.add_column("mean E", justify="right")
    table.add_column("")
    for row in rows:
        style = "bold red" if row.too_high else "" if row.decides else "dim"
        cells = [row.name, f"{row.runs:,}", *(f"{rate:.4f}" for rate in row.rates)]
        cells.append("" if row.mean_e is None else f"{row.mean_e:.3f}")
        table.add_row(*cells, _judgement(row), style=style)
    return table


def _judgement(row: FalseAlarms) -> str:
    if not row.decides:
        return "reported only"
    return "TOO HIGH" if row.too_high else "ok"


def _false_alarm_words(rows: Sequence[FalseAlarms]) -> list[str]:
    lines = ["Each number is the share of runs that raise an alarm at that alpha at any look."]
    for runs in sorted({row.runs for row in rows if row.decides and not row.structural}):
        limits = ", ".join(f"{upper_limit(alpha, runs):.4f}" for alpha in ALPHAS)
        lines.append(f"ok in {runs:,} runs: at most {limits}, which is alpha + 3 binomial sd.")
    lines.append("mean E: of the e-values in the end; at most 1, and 3 standard errors.")
    if any(not row.decides for row in rows):
        lines.append(
            "reported only: p-values of chi-squared, G and PIT bands at the end of a run; they "
            "decide nothing, and the tails of the first two are approximate."
        )
    return lines


def _detection_table(rows: Sequence[Detection]) -> Table:
    table = _table("mutant", "seed", "tokens", "budget")
    table.add_column("")
    table.add_column("seen first by")
    for row in rows:
        table.add_row(
            row.mutant,
            str(row.seed),
            f"{row.tokens:,}",
            f"{row.budget:,}",
            "caught" if row.caught else "MISSED",
            _first(row),
            style="" if row.caught else "bold red",
        )
    return table


def _first(row: Detection) -> str:
    if not row.first:
        return "all tests together" if row.caught else f"nothing ({row.reason})"
    more = len(row.first) - _SHOWN
    return ", ".join(row.first[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _table(name: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(name)
    for number in numbers:
        table.add_column(number, justify="right")
    return table
