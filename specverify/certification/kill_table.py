"""What the self-test finds: the kill table, mutants by the properties that catch them.

It ships with the package and stands in every certificate, as the evidence that the suite sees
anything at all.
"""

import importlib.resources
from collections.abc import Sequence
from typing import Literal

from specverify.certification.certificate import Evidence, Record
from specverify.certification.records import property_digest
from specverify.certification.registry import all_properties

Effect = Literal["violated", "error", "finding", "preserved"]
"""What must become of a control; preserved for a look-alike."""


class KillRecord(Record):
    """One property that caught a mutant."""

    property: str
    evidence: Evidence
    cost: int
    """Tokens sampled, or runs of the subject followed; 0 where one look is enough."""


class ControlRecord(Record):
    """What became of one mutant or look-alike."""

    id: str
    kind: str
    code: str = ""
    flag: str = ""
    """The kind of mistake; empty for what is right."""
    description: str
    effect: Effect
    caught_by: tuple[str, ...] = ()
    """Properties that must catch it."""
    size: str = ""
    links: tuple[str, ...] = ()
    killed_by: tuple[KillRecord, ...] = ()
    reason: str
    """Why it is not as it should be; empty if it is."""
    beside: bool = True
    """Whether it was tried on every property, and not only on those that it is there for."""
    seconds: float


class KillTable(Record):
    """Every mutant and look-alike, and what the suite made of it."""

    controls: tuple[ControlRecord, ...]
    seed: int
    suite: str
    """Digest of the property set that was tried."""
    thorough: bool = False
    """Whether every control was tried on every case."""

    @property
    def wrong(self) -> tuple[ControlRecord, ...]:
        """Mutants that survive, look-alikes that are accused."""
        return tuple(control for control in self.controls if control.reason)

    def kills(self) -> dict[str, list[str]]:
        """Mutants by the property that catches them; every property has an entry."""
        found: dict[str, list[str]] = {property.id: [] for property in all_properties()}
        for control in self.controls:
            for kill in control.killed_by:
                found.setdefault(kill.property, []).append(control.id)
        return found

    def alone(self) -> dict[str, list[str]]:
        """Mutants that no other property catches, by the one that does.

        Only those count that were tried on every property.
        """
        found: dict[str, list[str]] = {}
        for control in self.controls:
            if control.beside and len(control.killed_by) == 1:
                found.setdefault(control.killed_by[0].property, []).append(control.id)
        return found

    def idle(self) -> list[str]:
        """Properties that catch nothing alone and do not say why they are there."""
        alone = self.alone()
        return [p.id for p in all_properties() if p.id not in alone and not p.why_kept]


def joined(earlier: KillTable, later: KillTable, order: Sequence[str]) -> KillTable:
    """One table of two made in pieces, of the same suite and in the same way; the later one counts.

    Args:
        earlier: a piece.
        later: another piece; it stands alone if the other was made otherwise.
        order: ids of the whole catalogue; what is no longer in it is left out.
    """
    same = (later.suite, later.seed, later.thorough)
    if (earlier.suite, earlier.seed, earlier.thorough) != same:
        return later
    known = {control.id: control for control in (*earlier.controls, *later.controls)}
    controls = tuple(known[id] for id in order if id in known)
    return later.model_copy(update={"controls": controls})


def differences(made: KillTable, known: KillTable, *, fewer: bool = False) -> list[str]:
    """What a table says otherwise than a known one of the controls it has, in words.

    `fewer` says that it was made with fewer cases, which may catch less.

    What is caught by sampling alone is left out: whether the samples are enough may depend on the
    machine's arithmetic. That mutants are caught by what must catch them is judged in each table.
    """
    found: list[str] = []
    before = {control.id: control for control in known.controls}
    for control in made.controls:
        if control.id not in before:
            found.append(f"{control.id} is not in the table")
            continue
        now, then = _certain(control), _certain(before[control.id])
        found += [f"{control.id} is caught by {name} now" for name in sorted(now - then)]
        if not fewer and (made.thorough or not known.thorough):
            found += [f"{control.id} is not caught by {name} now" for name in sorted(then - now)]
    return found


def _certain(control: ControlRecord) -> set[str]:
    """Properties that catch it by evidence that is no matter of chance."""
    return {kill.property for kill in control.killed_by if kill.evidence != "sampled"}


def kill_table() -> KillTable | None:
    """The table of this version of the suite; None if it is another's, or there is none."""
    file = importlib.resources.files("specverify.fixtures").joinpath("kill_table.json")
    if not file.is_file():
        return None
    table = KillTable.model_validate_json(file.read_text(encoding="utf-8"))
    return table if table.suite == property_digest() else None
