"""Cases that are computed or probed, as work for an engine: here, or in a process of its own.

A subject may end the process it runs in, or never return from a call. In a process of its own that
costs the case it happened in, and nothing else: the next one goes on in another process.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from specverify.certification.certificate import CaseRecord
from specverify.certification.exact_run import case_fields, exact_cases, run_exact_case
from specverify.certification.portable import portable_subject
from specverify.certification.probes.run import probes_of, run_probe
from specverify.certification.registry import Property, all_properties
from specverify.certification.transform_case import transform_cases
from specverify.certification.transform_run import run_transform_case
from specverify.errors import CannotSteer, UsageError
from specverify.statistics.budget import Budget
from specverify.subjects.guard import ended_process
from specverify.subjects.protocols import Subject

Phase = Literal["transform", "exact", "probed"]
Result = CaseRecord | CannotSteer | str
"""A record, or why there is none."""


class CaseWork:
    """Carries out the cases of one phase, by number; another process lays the same ones out again.

    Args:
        phase: which cases.
        subject: what is tested.
        properties: what is asked; of probed ones, all that are to be tried.
        budget: each test's share of the false alarms of the run.
        seed: of the run.
        time_limit: seconds for one call.
        presets: names of the presets that a decoder is certified under.
    """

    def __init__(
        self,
        phase: Phase,
        subject: Subject,
        properties: Sequence[Property],
        budget: Budget,
        seed: int,
        time_limit: float,
        presets: Sequence[str] = (),
    ) -> None:
        self.phase: Phase = phase
        self.subject, self.properties, self.presets = subject, tuple(properties), tuple(presets)
        self.budget, self.seed, self.time_limit = budget, seed, time_limit

    @cached_property
    def cases(self) -> Sequence[Any]:
        """The cases, none without a property."""
        if not self.properties:
            return ()
        if self.phase == "transform":
            return transform_cases(self.subject.reference)
        if self.phase == "exact":
            return exact_cases(self.subject, self.presets)
        return probes_of(self.properties)

    def __call__(self, number: int) -> Result:
        """Carry out a case."""
        case, last = self.cases[number], (self.budget, self.seed, self.time_limit)
        if self.phase == "probed":
            return run_probe(self.subject, case, *last)
        run: Callable[..., Result] = run_exact_case
        if self.phase == "transform":
            run = run_transform_case
        return run(self.subject, case, self.properties, *last)

    def lost(self, number: int, how: str) -> CaseRecord:
        """The record of a case in which the subject ended its process."""
        case, fields = self.cases[number], {}
        if self.phase == "transform":
            fields = {"settings": case.record}
        elif self.phase == "exact":
            fields = case_fields(case)
        reason = ended_process(self.subject, how)
        return CaseRecord(id=case.id, verdict="error", reason=reason, **fields)

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "cases"}
        return state | {
            "subject": portable_subject(self.subject),
            "properties": tuple((asked.id, asked.inputs) for asked in self.properties),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        known = {asked.id: asked for asked in all_properties()}
        for id, _ in state["properties"]:
            if id not in known:
                raise UsageError(
                    f"the property {id!r} is registered in the running program only; define it in "
                    "a module of specverify.properties"
                )
        made = {
            "subject": state["subject"](),
            "properties": tuple(
                replace(known[id], inputs=inputs) for id, inputs in state["properties"]
            ),
        }
        self.__dict__.update(state | made)
        # A subject may have made numpy raise when it was imported.
        np.seterr(all="warn", under="ignore")
