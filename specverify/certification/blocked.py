"""Properties that build on a violated one: their own violation is no news."""

from collections.abc import Iterable, Sequence

from specverify.certification.certificate import CaseRecord, TestRecord
from specverify.certification.registry import Property

BLOCKED_BY = "blocked by "
"""How the detail of such a test begins; the cause follows."""


def with_blocked(cases: Sequence[CaseRecord], properties: Iterable[Property]) -> list[CaseRecord]:
    """Mark violations that follow from others as blocked by them.

    The verdict of a case stays: what blocks is violated itself.

    Args:
        cases: of a run.
        properties: of the registry, with what they build on.
    """
    after = {property.id: property.after for property in properties}
    violated = {
        name
        for case in cases
        for test in case.tests
        if test.decision == "violated"
        for name in (test.property, f"{test.property} in {case.id}")
    }

    def mark(test: TestRecord) -> TestRecord:
        cause = _cause(test.property, after, violated)
        if test.decision != "violated" or cause is None:
            return test
        return test.model_copy(update={"decision": "blocked", "detail": f"{BLOCKED_BY}{cause}"})

    return [
        case.model_copy(update={"tests": tuple(mark(test) for test in case.tests)})
        for case in cases
    ]


def _cause(id: str, after: dict[str, tuple[str, ...]], violated: set[str]) -> str | None:
    """What a property is blocked by: the first on its way down that is violated."""
    for name in after.get(id, ()):
        base = name.partition(" in ")[0]
        deeper = _cause(base, after, violated)
        if deeper is not None:
            return deeper
        if name in violated:
            return name
    return None
