"""Failures that are known: what `expected.toml` lists, and what became of each entry in a run.

A listed failure leaves the facts of a certificate as they are. Only the verdict of the run is
formed without it, see `overall`.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from specverify.certification.case_records import CaseRecord, ExpectationRecord, TestRecord
from specverify.certification.registry import Property, all_properties, properties_of
from specverify.certification.verdict import PROBE
from specverify.errors import UsageError
from specverify.lookup import did_you_mean
from specverify.subjects.protocols import Subject

FAILING = frozenset({"violated", "blocked", "suspect"})
"""Decisions of a test that raised an alarm."""


class Expectation(BaseModel):
    """One `[[expected]]` entry: a failure that is known, and why it is accepted for now."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    property: str
    reason: str
    case: str = "*"
    """Pattern of the cases in which it may fail."""
    subject: str | None = None
    """Whose failure it is; anybody's when omitted."""
    expires: date | None = None
    """The last day on which the entry counts."""
    error: bool = False
    """Whether the subject may also crash, hang or return nonsense in these cases."""

    @field_validator("reason")
    @classmethod
    def _says_why(cls, reason: str) -> str:
        if not reason.strip():
            raise ValueError("it is empty; say why the failure is accepted, or link the issue")
        return reason.strip()

    @model_validator(mode="after")
    def _says_where(self) -> "Expectation":
        if self.error and self.case == "*":
            raise ValueError(
                "error = true excuses crashes, so case must say in which cases, e.g. "
                'case = "probe/batch.*"'
            )
        return self


Expected = str | Path | Sequence[Expectation] | None
"""How known failures are handed over: the path of an `expected.toml`, or its entries."""


def read_expected(path: str | Path) -> tuple[Expectation, ...]:
    """The entries of an `expected.toml`.

    Raises:
        UsageError: it cannot be read, or an entry is wrong; the message names the file, the entry,
            the key and the value.
    """
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"the expected failures {str(path)!r} cannot be read: {error.strerror}; name a file "
            "of [[expected]] entries, or leave it out"
        ) from None
    except ValueError as error:
        raise UsageError(f"{str(path)!r} is not valid TOML: {error}") from None
    for key in content:
        if key != "expected":
            raise UsageError(
                f"{str(path)!r}: unknown key {key!r}{did_you_mean(key, ['expected'])}; it holds "
                "[[expected]] entries and nothing else"
            )
    entries = content.get("expected", [])
    if not isinstance(entries, list):
        raise UsageError(
            f"{str(path)!r}: expected is no list of tables; write [[expected]] above each entry, "
            "with two brackets"
        )
    return tuple(_entry(raw, f"{str(path)!r}, entry {i}") for i, raw in enumerate(entries, 1))


def _entry(raw: Any, where: str) -> Expectation:
    try:
        return Expectation.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        if first["type"] == "extra_forbidden":
            known = Expectation.model_fields
            remedy = did_you_mean(key, known) or f"; the keys are {', '.join(known)}"
            raise UsageError(f"{where}: unknown key {key!r}{remedy}") from None
        if first["type"] == "missing":
            raise UsageError(
                f"{where}: {key} is missing; an entry says which property fails and the reason"
            ) from None
        said = first["msg"].removeprefix("Value error, ")
        value = f"{key} = {first['input']!r}: " if key else ""
        raise UsageError(f"{where}: {value}{said}") from None


def expectations_of(
    expected: Expected, subject: Subject, *, today: date | None = None
) -> tuple[ExpectationRecord, ...]:
    """Entries that speak of a subject, before anything was run.

    Args:
        expected: the entries, or the file they are in.
        subject: what is tested; entries of other subjects are left out.
        today: decides what has expired; the current day when omitted.

    Raises:
        UsageError: the file cannot be read, or an entry names a property that does not exist or
            does not speak about this kind of subject.
    """
    if expected is None:
        return ()
    entries = read_expected(expected) if isinstance(expected, str | Path) else expected
    today = today or date.today()
    mine = [entry for entry in entries if entry.subject in (None, subject.name)]
    _check_names(entries, mine, subject)
    return tuple(
        ExpectationRecord(
            property=entry.property,
            reason=entry.reason,
            case=entry.case,
            subject=entry.subject,
            expires=None if entry.expires is None else entry.expires.isoformat(),
            error=entry.error,
            state="expired" if entry.expires and entry.expires < today else "not checked",
        )
        for entry in mine
    )


def _check_names(
    entries: Sequence[Expectation], mine: Sequence[Expectation], subject: Subject
) -> None:
    everything = {p.id for p in all_properties()} if entries else set()
    of_kind = {p.id for p in properties_of(subject.kind)}
    for entry in entries:
        if entry.property not in everything:
            raise UsageError(
                f"an expected failure names the property {entry.property!r}, which does not exist"
                f"{did_you_mean(entry.property, everything)}; `specverify properties` lists them"
            )
    for entry in mine:
        if entry.property not in of_kind:
            raise UsageError(
                f"an expected failure names the property {entry.property!r}, which is not asked "
                f"of a {subject.kind}{did_you_mean(entry.property, of_kind)}; where another "
                "subject is meant, give the entry its name: subject = ..."
            )


@dataclass(frozen=True)
class Known:
    """The entries that count, and what builds on the properties they name."""

    entries: tuple[ExpectationRecord, ...]
    after: Mapping[str, tuple[str, ...]]
    """What each property builds on, see `Property.after`."""

    @classmethod
    def of(cls, entries: Iterable[ExpectationRecord], properties: Iterable[Property]) -> "Known":
        """Entries that have not expired."""
        counting = tuple(entry for entry in entries if entry.state != "expired")
        return cls(counting, {p.id: p.after for p in properties})

    def covers(self, property: str, case: str) -> bool:
        """Whether a failure of a property in a case is listed."""
        return any(covers(entry, property, case) for entry in self.entries)

    def excuses_error(self, case: CaseRecord) -> bool:
        """Whether the subject may fail in a case."""
        return any(entry.error and _asked_in(entry, case) for entry in self.entries)

    def failing(self, cases: Iterable[CaseRecord]) -> frozenset[str]:
        """Listed properties that do fail, as `property` and as `property in case`."""
        return frozenset(
            name
            for case in cases
            for test in case.tests
            if test.decision in FAILING and self.covers(test.property, case.id)
            for name in (test.property, f"{test.property} in {case.id}")
        )

    def follows(self, property: str, failing: frozenset[str]) -> str | None:
        """The failing property that another one builds on, None if there is none."""
        for name in self.after.get(property, ()):
            if name in failing:
                return name
            deeper = self.follows(name.partition(" in ")[0], failing)
            if deeper is not None:
                return deeper
        return None

    def excused(self, properties: Iterable[str], case: str) -> frozenset[str]:
        """Properties whose violation in a case is no news: sampling goes on in spite of it."""
        listed = frozenset(entry.property for entry in self.entries)
        return frozenset(
            p
            for p in properties
            if self.covers(p, case) or self.follows(p, listed & {*self._bases(p)}) is not None
        )

    def _bases(self, property: str) -> Iterable[str]:
        for name in self.after.get(property, ()):
            base = name.partition(" in ")[0]
            yield from (name, base)
            yield from self._bases(base)


def covers(entry: ExpectationRecord, property: str, case: str) -> bool:
    """Whether an entry speaks of a property in a case."""
    return entry.property == property and fnmatchcase(case, entry.case)


def _asked_in(entry: ExpectationRecord, case: CaseRecord) -> bool:
    """Whether a case that failed is one that asks for the property; a probe has it in its id."""
    if not fnmatchcase(case.id, entry.case):
        return False
    return not case.id.startswith(PROBE) or case.id.split("/")[1] == entry.property


def outcome_of(
    entry: ExpectationRecord, cases: Sequence[CaseRecord], *, interrupted: bool
) -> ExpectationRecord:
    """What became of an entry, from all cases of a run."""
    if entry.state == "expired":
        return entry
    found: list[tuple[CaseRecord, TestRecord]] = [
        (case, test)
        for case in cases
        for test in case.tests
        if test.decision != "reported" and covers(entry, test.property, case.id)
    ]
    failed = [case.id for case, test in found if test.decision in FAILING]
    if entry.error:
        failed += [case.id for case in cases if failed_to_run(case) and _asked_in(entry, case)]
    if failed:
        update = {"state": "failed as expected", "cases": tuple(dict.fromkeys(failed))}
    elif not found:
        update = {"state": "not checked", "cases": ()}
    elif not interrupted and all(_passes(case, test) for case, test in found):
        update = {"state": "passes", "cases": ()}
    else:
        update = {"state": "undecided", "cases": ()}
    return entry.model_copy(update=update)


def failed_to_run(case: CaseRecord) -> bool:
    """Whether the subject crashed, hung or returned nonsense in a case."""
    return case.verdict == "error" or bool(case.error)


def _passes(case: CaseRecord, test: TestRecord) -> bool:
    """A case that ended at another violation, or with an error, has seen too little to say so."""
    return test.decision == "pass" and case.stopped != "violated" and not failed_to_run(case)
