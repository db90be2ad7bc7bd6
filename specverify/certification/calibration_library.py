"""Known mistakes, each certified under the settings that show it: is it caught in time?"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from specverify.certification.plan import pair_presets
from specverify.certification.run import certify
from specverify.models.pairs import load_pair
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import Subject

CATALOGUE = "specverify.fixtures.mutants:MUTANTS"
"""The catalogue that ships with specverify. Named, not imported: it is made of subjects, like the
suite of properties of properties."""

PAIR = "toy"


class Control(Protocol):
    """A wrong implementation that must be caught."""

    @property
    def id(self) -> str:
        """Its name."""
        ...

    @property
    def settings(self) -> object:
        """None for a transform, which is not sampled."""
        ...

    @property
    def tokens(self) -> int:
        """Within which it must be caught, under each of its settings."""
        ...

    @property
    def subject(self) -> Subject:
        """What to certify."""
        ...

    def contract(self, presets: Mapping[str, SamplingSettings]) -> dict[str, SamplingSettings]:
        """The settings that show it, by name."""
        ...


@dataclass(frozen=True)
class Detection:
    """What a certification of one mutant came to."""

    mutant: str
    seed: int
    caught: bool
    first: tuple[str, ...]
    """Properties that were violated at the look that ended the certification."""
    tokens: int
    """Sampled until then."""
    budget: int
    """Tokens within which it must be caught."""
    reason: str
    """The certificate's own words."""


@dataclass(frozen=True)
class Detections:
    """Certifications of a catalogue of mutants, one by one: work for an engine."""

    seed: int
    seeds: int = 1
    """Certifications of each mutant, with seeds that follow one another."""
    catalogue: str = CATALOGUE
    """Where a mapping from id to control is, as module:attribute."""

    @cached_property
    def controls(self) -> list[Control]:
        """All that are sampled; transforms are judged row by row, without."""
        module, _, attribute = self.catalogue.partition(":")
        found = getattr(importlib.import_module(module), attribute)
        return [control for control in found.values() if control.settings is not None]

    @property
    def count(self) -> int:
        """Certifications in all."""
        return len(self.controls) * self.seeds

    def __call__(self, index: int) -> list[Detection]:
        """One certification."""
        control, number = self.controls[index // self.seeds], index % self.seeds
        return [detect(control, self.seed + number)]

    def __getstate__(self) -> dict[str, object]:
        return {"seed": self.seed, "seeds": self.seeds, "catalogue": self.catalogue}


def detect(control: Control, seed: int) -> Detection:
    """Certify a mutant until it is caught, or its tokens are used up.

    Args:
        control: the mutant.
        seed: of the certification.
    """
    pair = load_pair(PAIR)
    settings = control.contract(pair_presets(pair, pair.open("language_model")[0]))
    budget = control.tokens * len(settings)
    certificate = certify(
        control.subject, pair, settings=settings, tokens=budget, seed=seed, exact=False
    )
    if certificate.interrupted:
        raise KeyboardInterrupt
    violated = {
        record.property
        for case in certificate.cases
        for record in case.tests
        if record.decision == "violated"
    }
    return Detection(
        mutant=control.id,
        seed=seed,
        caught=certificate.verdict == "violated",
        first=tuple(sorted(violated)),
        tokens=sum(case.tokens for case in certificate.cases),
        budget=budget,
        reason=certificate.reason,
    )
