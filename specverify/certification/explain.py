"""What a violation is made of: the smallest input that shows it, and the mistake it looks like."""

from collections.abc import Sequence
from typing import Any, Literal

from specverify.certification.certificate import CaseRecord
from specverify.certification.portable import portable_subject
from specverify.sampling.engines import Engine
from specverify.subjects.guard import ended_process
from specverify.subjects.protocols import Subject

Step = Literal["smallest input", "diagnosis"]


def explained(
    cases: Sequence[CaseRecord],
    subject: Subject,
    seed: int,
    time_limit: float,
    engine: Engine,
    remarks: list[str],
) -> list[CaseRecord]:
    """Add counterexamples and a diagnosis to the cases of a run that is violated.

    An interrupt ends the explaining, not the run: its verdict is known.

    Args:
        cases: of a run, blocked violations marked.
        subject: what they are of.
        seed: of the run.
        time_limit: seconds for one call.
        engine: carries out the search.
        remarks: on what the subject kept from being explained; added to.
    """
    explained = list(cases)
    if not any(case.verdict == "violated" for case in cases):
        return explained
    try:
        for step in ("smallest input", "diagnosis"):
            work = ExplainingWork(step, explained, subject, seed, time_limit)
            for _, found in engine.run(work, range(1)):
                if isinstance(found, str):
                    remarks.append(found)
                else:
                    explained = found
    except KeyboardInterrupt:
        pass
    return explained


class ExplainingWork:
    """One step of the explaining, as work for an engine: its only shard gives the cases."""

    def __init__(
        self,
        step: Step,
        cases: Sequence[CaseRecord],
        subject: Subject,
        seed: int,
        time_limit: float,
    ) -> None:
        self.step: Step = step
        self.cases, self.subject, self.seed, self.time_limit = cases, subject, seed, time_limit

    def __call__(self, _: int) -> list[CaseRecord] | str:
        """Explain."""
        # Hypothesis and the library of mistakes are not loaded for a subject that is right.
        if self.step == "smallest input":
            from specverify.certification.counterexamples.attach import with_counterexamples

            return with_counterexamples(self.cases, self.subject, self.seed, self.time_limit)
        from specverify.certification.diagnosis import with_diagnosis

        return with_diagnosis(self.cases, self.subject)

    def lost(self, _: int, how: str) -> str:
        """What there is to say when the subject ended its process."""
        ended = ended_process(self.subject, how)
        return f"violations are left without their {self.step}: {ended}"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"subject": portable_subject(self.subject)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"subject": state["subject"]()})
