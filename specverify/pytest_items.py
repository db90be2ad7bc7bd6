"""pytest items that need no test file: one for each property of a subject."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from specverify.checking import marks
from specverify.errors import UsageError
from specverify.lookup import did_you_mean
from specverify.property_checks import Check, property_checks

ROOT = "specverify"
"""What the node ids begin with."""


class SubjectNode(pytest.Collector):
    """A subject, `specverify::<subject>`."""

    def __init__(self, *, checks: Sequence[Check], **rest: Any) -> None:
        super().__init__(**rest)
        self.checks = checks

    def collect(self) -> Iterator["PropertyItem"]:
        """One item for each property."""
        for check in self.checks:
            yield PropertyItem.from_parent(self, name=check.id, check=check)


class PropertyItem(pytest.Item):
    """A property of a subject, `specverify::<subject>::<property>`."""

    def __init__(self, *, check: Check, **rest: Any) -> None:
        super().__init__(**rest)
        self.specverify_check = check
        for mark in marks(check):
            self.add_marker(mark)

    def runtest(self) -> None:
        """Check it."""
        self.specverify_check()

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where it is, which is nowhere, and what heads its failure."""
        subject = self.parent.name if self.parent is not None else ""
        return self.config.rootpath / ROOT, None, f"{subject}: {self.name}"


def subject_items(
    session: pytest.Session, subjects: Sequence[str], selected: Mapping[str, frozenset[str]]
) -> list[PropertyItem]:
    """Items for the properties of some subjects, in the order of the subjects and of ids.

    Args:
        session: of pytest.
        subjects: their names.
        selected: ids of the properties that were named, by subject; all where there are none.

    Raises:
        UsageError: there is no such subject, or it has no such property.
    """
    made: list[PropertyItem] = []
    for subject in subjects:
        checks = property_checks(subject)
        wanted = selected.get(subject, frozenset())
        _check_names(subject, checks, wanted)
        node = SubjectNode.from_parent(
            session,
            name=subject,
            nodeid=f"{ROOT}::{subject}",
            checks=[check for check in checks if not wanted or check.id in wanted],
        )
        made += [item for item in session.genitems(node) if isinstance(item, PropertyItem)]
    return made


def _check_names(subject: str, checks: Sequence[Check], wanted: frozenset[str]) -> None:
    known = {check.id for check in checks}
    for id in sorted(wanted - known):
        for entry in checks[0].plan.unmet if checks else ():
            if entry.property == id:
                raise UsageError(f"{id!r} is not asked of {subject!r}: {entry.reason}")
        raise UsageError(
            f"no property {id!r} is asked of {subject!r}{did_you_mean(id, known)}; "
            f"`pytest --collect-only -q {ROOT}::{subject}` lists those that are"
        )
