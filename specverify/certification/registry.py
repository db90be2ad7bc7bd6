"""The registry of properties: the clauses of the contract, each a plain function.

`specverify certify` and the Python API iterate over it; the conformance suite in
`specverify.properties` fills it. Registration is idempotent by id, since pytest may load the same
file under a second name.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from specverify.statistics.result import TestResult
from specverify.subjects.protocols import Kind, Subject

SUITE = "specverify.properties"

UNREPORTED = "the subject does not report how many draft tokens it accepted"


@dataclass(frozen=True)
class Outcome:
    """What checking one property on one case gave."""

    tests: tuple[TestResult, ...] = ()
    """Statistical tests, each judged against its share of the run's false-alarm budget."""

    violations: tuple[str, ...] = ()
    """Contradictions that need no statistics; any one violates the property."""

    findings: tuple[str, ...] = ()
    """Deviations with a cause that stay below the tolerance of the claim."""

    tv_bound: float | None = None
    """Upper bound on the total variation distance, at the bound's own confidence."""

    missing: str | None = None
    """What it would take to decide, where the evidence is too thin for the claim."""

    certain: bool = False
    """Whether only one outcome is possible, which leaves nothing to compare: any other is a token
    of probability 0, and those have a property of their own."""

    asked: bool = True
    """Whether the case is one that the property looks at; of others it says nothing."""

    not_applicable: str | None = None
    """Why the runs could not be checked, where only their outcome could tell."""

    details: dict[str, Any] = field(default_factory=dict)
    """Numbers a reader wants beside the verdict, such as the worst cells."""


Asked = Literal["sampled", "exact"]
"""Which cases a property is asked about: those that are run, or those that are computed."""


@dataclass(frozen=True)
class Property:
    """One clause of the contract."""

    id: str
    claim: str
    """The claim in one sentence: the first line of the check's docstring."""
    kinds: frozenset[Kind]
    tests: int
    """Statistical tests it adds to each case; the budget is divided by their total."""
    check: Callable[..., Outcome]
    needs: Callable[[Subject], str | None]
    """Why a subject cannot be checked, None if it can."""
    evidence: Asked = "sampled"


_PROPERTIES: dict[str, Property] = {}


def register(
    id: str,
    *,
    kinds: frozenset[Kind],
    tests: int = 0,
    needs: Callable[[Subject], str | None] = lambda subject: None,
    evidence: Asked = "sampled",
) -> Callable[[Callable[..., Outcome]], Callable[..., Outcome]]:
    """Add a check to the registry; the first line of its docstring becomes the claim."""

    def add(check: Callable[..., Outcome]) -> Callable[..., Outcome]:
        claim = (check.__doc__ or "").strip().splitlines()[0]
        _PROPERTIES[id] = Property(id, claim, kinds, tests, check, needs, evidence)
        return check

    return add


def properties_of(kind: Kind) -> list[Property]:
    """Every registered property that speaks about subjects of `kind`, by id."""
    suite = importlib.import_module(SUITE)
    for module in pkgutil.iter_modules(suite.__path__):
        importlib.import_module(f"{SUITE}.{module.name}")
    return [p for _, p in sorted(_PROPERTIES.items()) if kind in p.kinds]
