"""What became of expected failures, on a terminal."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from specverify.certification.verdict import listed

if TYPE_CHECKING:
    from specverify.certification.certificate import Certificate, ExpectationRecord

_STYLES = {"passes": "bold red", "expired": "yellow"}


def print_expectations(certificate: "Certificate", console: Console) -> None:
    """One line for each entry, and one where findings count as violations."""
    if certificate.expectations or certificate.strict:
        console.print()
    if certificate.strict:
        console.print(Text("strict: findings count as violations", "dim"))
    for entry in certificate.expectations:
        line = f"expected failure of {entry.property}: {expectation_said(entry)}"
        console.print(Text(line, _STYLES.get(entry.state, "dim")))


def expectation_said(entry: "ExpectationRecord") -> str:
    """What became of an entry, and why it is there."""
    said = {
        "failed as expected": f"failed as expected in {listed(entry.cases)}",
        "passes": "passes; remove the entry",
        "undecided": "too little was seen to say that it passes",
        "expired": f"expired after {entry.expires}, and counts as absent",
        "not checked": "was not checked in this run",
    }
    return f"{said[entry.state]} ({entry.reason})"
