"""What a search by random inputs tried, on a terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from specverify.certification.certificate import CaseRecord, SearchRecord

_ENDED = {
    "time": "the time was up; how many inputs fit in depends on the machine",
    "inputs": "the number asked for",
    "violation": "ended by a violation",
    "interrupt": "interrupted",
    "exhausted": "there were no others to draw",
}


def print_searches(cases: "Sequence[CaseRecord]", console: Console) -> None:
    """Say for each search what it tried, how, and why it ended."""
    for case in cases:
        if case.search is not None:
            console.print(Text.assemble((f"{case.id}: ", "dim"), searched(case.search)))


def searched(search: "SearchRecord") -> str:
    """A search in one sentence."""
    regions = ", ".join(f"{count:,} {name}" for name, count in search.regions.items())
    parts = [f"{search.inputs:,} input{'s' * (search.inputs != 1)} tried"]
    if search.stored:
        parts[0] += f", {search.stored:,} of them stored"
    if regions:
        parts[0] += f" ({regions})"
    if search.computed:
        parts.append(f"{search.computed:,} computed")
    if search.sampled:
        parts.append(
            f"{search.sampled:,} sampled ({search.samples:,} samples; {search.confirmations:,} "
            f"looked wrong, {search.unconfirmed:,} of those not on fresh randomness)"
        )
    if search.passed_over:
        parts.append(f"{search.passed_over:,} passed over")
    if search.crashed:
        parts.append(f"{search.crashed:,} crashed")
    return f"{'; '.join(parts)}; {_ENDED[search.ended]}"
