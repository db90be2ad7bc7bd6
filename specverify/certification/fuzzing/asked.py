"""Whether a run searches, for what, and with which part of its false-alarm budget.

Hypothesis is loaded when the search begins, not before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from specverify.certification.case_records import CaseRecord
from specverify.certification.fuzzing.limits import Fuzzing
from specverify.certification.phases import Progress, collect
from specverify.certification.profiles import FUZZ as PROFILE
from specverify.certification.registry import Property, unmet_need
from specverify.certification.transform_case import RANDOM_PARAMETERS
from specverify.certification.verdict import FUZZ
from specverify.errors import UsageError
from specverify.statistics.budget import Budget
from specverify.subjects.protocols import Kind, Subject

SEARCHED: dict[Kind, str] = {
    "rule": "joint.round",
    "decoder": "joint.run",
    "transform": "transforms.equals_reference",
}
"""The property that inputs are searched for, by kind of subject."""

RANDOM = "a search compares single calls, which tell nothing of a transform that tosses coins"
LOSSY = "a search holds a subject against the target, and this one declares a lossy contract"


def fuzzing_of(
    profile: str,
    seconds: float | None,
    inputs: int | None,
    database: str | Path | None,
    *,
    isolate: bool = False,
) -> Fuzzing | None:
    """The search a run is asked for; None for other profiles than fuzz.

    Raises:
        UsageError: limits without a search, a search in processes of its own, or senseless limits.
    """
    named = {"fuzz_time": seconds, "fuzz_inputs": inputs, "database": database}
    if profile != PROFILE:
        if given := [name for name, value in named.items() if value is not None]:
            raise UsageError(
                f"{', '.join(given)}: only profile {PROFILE!r} searches, and this is {profile!r}; "
                "leave it out, or choose that profile"
            )
        return None
    if isolate:
        raise UsageError(
            "a search runs the subject in this process, thousands of times; leave out isolate, or "
            "choose another profile"
        )
    return Fuzzing(seconds, inputs, None if database is None else Path(database))


@dataclass
class Searching:
    """The search of one run."""

    subject: Subject
    fuzzing: Fuzzing
    property: str
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """Id and reason, if it cannot be made."""
    alpha: float = 0.0
    """False-alarm budget of its confirmations."""

    @classmethod
    def of(cls, subject: Subject, fuzzing: Fuzzing, chosen: Sequence[Property]) -> Self | None:
        """The search for a subject; None if its property is not asked for."""
        id = SEARCHED[subject.kind]
        for property in chosen:
            if property.id == id:
                lossy = LOSSY if subject.capabilities.lossy is not None else None
                random = RANDOM if subject.reference in RANDOM_PARAMETERS else None
                reason = lossy or random or unmet_need(property, subject)
                return cls(subject, fuzzing, id, [] if reason is None else [(FUZZ + id, reason)])
        return None

    def shared(self, budget: Budget) -> Budget:
        """What is left of a budget: half of it, the other half is that of the search.

        The search counts as many tests as all others together.
        """
        self.alpha = budget.alpha / 2
        return Budget(budget.alpha, 2 * budget.tests)

    def run(
        self,
        cases: Sequence[CaseRecord],
        seed: int,
        time_limit: float,
        report: Progress,
        *,
        explain: bool,
    ) -> tuple[list[CaseRecord], bool]:
        """Search, unless the other cases have shown the property violated.

        Args:
            cases: of the run so far.
            seed: of the run.
            time_limit: seconds for one call of the subject.
            report: told how far it has got.
            explain: whether to say which known mistake a failure looks like.

        Returns:
            The cases of the search, and whether the user ended it.
        """
        if self.left_out:
            return [], False
        for case in cases:
            for test in case.tests:
                if test.property == self.property and test.decision in ("violated", "blocked"):
                    known = f"{self.property} is violated in {case.id}: mend that, then search"
                    self.left_out.append((FUZZ + self.property, known))
                    return [], False
        from specverify.certification.fuzzing.run import fuzz_records

        return collect(
            fuzz_records(
                self.subject, self.fuzzing, self.alpha, seed, time_limit, report, diagnose=explain
            )
        )
