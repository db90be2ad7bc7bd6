"""The kill table of this version of the suite, as it stands in a certificate."""

from functools import cache

from specverify.certification.case_records import KillTableRecord
from specverify.certification.kill_table import kill_table


@cache
def kill_record() -> KillTableRecord | None:
    """The shipped table in short; None if there is none for the properties of this suite."""
    table = kill_table()
    if table is None:
        return None
    wrong = [control for control in table.controls if control.effect != "preserved"]
    return KillTableRecord(
        mutants={
            control.id: {kill.property: (kill.evidence, kill.cost) for kill in control.killed_by}
            for control in wrong
        },
        lookalikes=tuple(c.id for c in table.controls if c.effect == "preserved"),
        wrong=tuple(control.id for control in table.wrong),
        seed=table.seed,
    )
