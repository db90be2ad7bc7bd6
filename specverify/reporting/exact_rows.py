"""Small cases on a terminal, computed or probed: dozens of them in a few rows."""

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from specverify.certification.verdict import PROBE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from specverify.certification.certificate import CaseRecord, ExactRecord, TestRecord


def exact_rows(
    cases: "Sequence[CaseRecord]", styles: "Mapping[str, str]"
) -> "Iterator[list[str | Text]]":
    """One row for each property and result over all cases with exact evidence.

    Args:
        cases: those with exact evidence.
        styles: of decisions.
    """
    found: dict[tuple[str, str], list[tuple[str, TestRecord]]] = {}
    for case in cases:
        for test in case.tests:
            found.setdefault((test.property, test.decision), []).append((case.id, test))
    for property, decision in sorted(found):
        ids, tests = zip(*found[property, decision], strict=True)
        computed = [test.exact for test in tests if test.exact is not None]
        methods = sorted({record.method for record in computed})
        distance = max((record.total_variation for record in computed), default=None)
        yield [
            Text(_together(ids)),
            Text(property),
            f"{tests[0].evidence} {', '.join(methods)}".rstrip(),
            "",
            "",
            "",
            "" if distance is None else f"{distance:.1e}",
            Text(decision, styles[decision]),
        ]
    if failed := [case.id for case in cases if case.verdict == "error"]:
        error = Text("error", styles["violated"])
        yield [Text(_together(failed)), "", "exact", "", "", "", "", error]


def _together(ids: "Sequence[str]") -> str:
    """How many small cases there are, or the only one with exact evidence."""
    if ids[0].startswith(PROBE):
        return f"{len(ids)} probe{'s' * (len(ids) != 1)}"  # their ids would widen the table
    return ids[0] if len(ids) == 1 else f"{len(ids)} exact cases"


def exact_violations(
    cases: "Sequence[CaseRecord]",
) -> "Iterator[tuple[CaseRecord, TestRecord, int]]":
    """Each violated property by the first case that shows it, with how many more there are."""
    violated: dict[str, list[tuple[CaseRecord, TestRecord]]] = {}
    for case in cases:
        for test in case.tests:
            if test.decision == "violated":
                violated.setdefault(test.property, []).append((case, test))
    for (case, test), *others in violated.values():
        yield case, test, len(others)


def sequences(computed: "ExactRecord") -> Table:
    """Where the distributions differ most."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("worst sequences", overflow="fold")
    table.add_column("probability", justify="right")
    table.add_column("expected", justify="right")
    for sequence in computed.worst:
        tokens = Text(str(list(sequence.tokens)))
        table.add_row(tokens, f"{sequence.observed:.6g}", f"{sequence.expected:.6g}")
    return table
