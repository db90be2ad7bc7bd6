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

NO_TINY_MODELS = "the subject does not take the tiny models of exact evidence (tiny_models)"

UNREPORTED = "the subject does not report how many draft tokens it accepted"


@dataclass(frozen=True)
class Bound:
    """An upper confidence bound, with what it bounds."""

    name: str
    """What is bounded, in words that are true of it: only an agnostic bound speaks of TV."""
    value: float
    alpha: float
    """Probability that the bound fails."""
    n: int
    """Observations it rests on."""
    limit: float | None = None
    """Largest value at which a case is preserved; None for one that is only reported."""
    fixed_n: bool = False
    """Whether it holds at looks fixed beforehand only."""


@dataclass(frozen=True)
class Detectable:
    """The smallest deviation that a test would have seen with probability 0.999."""

    value: float
    what: str
    """What the value measures, in words."""


@dataclass(frozen=True)
class Outcome:
    """What checking one property on one case gave."""

    tests: tuple[TestResult, ...] = ()
    """Tests that decide, each against its share of the run's false-alarm budget; they must hold at
    every look, since a case is looked at after every shard."""

    reported: tuple[TestResult, ...] = ()
    """Tests that users expect to see and that decide nothing: their p-values hold for a fixed n."""

    bounds: tuple[Bound, ...] = ()
    detectable: Detectable | None = None

    violations: tuple[str, ...] = ()
    """Contradictions that need no statistics; any one violates the property."""

    findings: tuple[str, ...] = ()
    """Deviations with a cause that stay below the tolerance of the claim."""

    tv_bound: float | None = None
    """Upper bound on the total variation distance, at the bound's own confidence."""

    missing: str | None = None
    """What it would take to decide, where the evidence is too thin for the claim."""

    boundaries: bool = False
    """Whether it rests on where rounds end, as the subject reports it: an alarm that shows nowhere
    else may be a wrong report."""

    asked: bool = True
    """Whether the case is one that the property looks at; of others it says nothing."""

    not_applicable: str | None = None
    """Why the runs could not be checked, where only their outcome could tell."""

    details: dict[str, Any] = field(default_factory=dict)
    """Numbers a reader wants beside the verdict, such as the worst cells."""


Asked = Literal["sampled", "exact", "probed"]
"""Which cases a property is asked about: those that are run, those that are computed, or those that
it makes for itself, see `certification.probes`."""


@dataclass(frozen=True)
class Property:
    """One clause of the contract."""

    id: str
    claim: str
    """The claim in one sentence: the first line of the check's docstring."""
    kinds: frozenset[Kind]
    tests: int
    """Tests that decide, of each case; the budget is divided by their total."""
    check: Callable[..., Outcome]
    needs: Callable[[Subject], str | None]
    """Why a subject cannot be checked, None if it can."""
    evidence: Asked = "sampled"
    inputs: tuple[str, ...] = ()
    """Names of what a probed property is tried on, one case each."""
    after: tuple[str, ...] = ()
    """What it builds on, as `property` or `property in case`: where that is violated, a violation
    of this one is no news, and reported as blocked."""
    lossy: bool = False
    """Whether it holds for a rule with a lossy contract too, and is held against that."""
    why_kept: str = ""
    """Why it is there, where no mutant is known that it alone catches."""

    @property
    def chapter(self) -> str:
        """Chapter of the contract, the part of the id before its dot."""
        return self.id.partition(".")[0]


_PROPERTIES: dict[str, Property] = {}


def register(
    id: str,
    *,
    kinds: frozenset[Kind],
    tests: int = 0,
    needs: Callable[[Subject], str | None] = lambda subject: None,
    evidence: Asked = "sampled",
    inputs: tuple[str, ...] = (),
    after: tuple[str, ...] = (),
    lossy: bool = False,
    why_kept: str = "",
) -> Callable[[Callable[..., Outcome]], Callable[..., Outcome]]:
    """Add a check to the registry; the first line of its docstring becomes the claim.

    Args:
        id: `chapter.name`, stable: certificates and expectations refer to it.
        kinds: of subjects it speaks about.
        tests: see `Property`.
        needs: see `Property`.
        evidence: what the check is called with, besides the probability at which bounds may fail:
            `DecoderEvidence` or `TransformEvidence` (sampled), `ExactEvidence` (exact), or the
            `Trial` of the subject's kind (probed).
        inputs: see `Property`; one or more for a probed property.
        after: see `Property`.
        lossy: see `Property`.
        why_kept: see `Property`.
    """

    def add(check: Callable[..., Outcome]) -> Callable[..., Outcome]:
        claim = (check.__doc__ or "").strip().splitlines()[0]
        _PROPERTIES[id] = Property(
            id, claim, kinds, tests, check, needs, evidence, inputs, after, lossy, why_kept
        )
        return check

    return add


def properties_of(kind: Kind) -> list[Property]:
    """Every registered property that speaks about subjects of `kind`, by id."""
    return [p for p in all_properties() if kind in p.kinds]


def all_properties() -> list[Property]:
    """Every registered property, by id."""
    suite = importlib.import_module(SUITE)
    for module in pkgutil.iter_modules(suite.__path__):
        importlib.import_module(f"{SUITE}.{module.name}")
    return [p for _, p in sorted(_PROPERTIES.items())]


LOSSY = (
    "the subject declares a lossy contract; it is held against that, where its output is computed"
)


def unmet_need(property: Property, subject: Subject) -> str | None:
    """Why a subject cannot be asked, None if it can."""
    if subject.capabilities.lossy is not None and not property.lossy:
        return LOSSY
    return property.needs(subject)


def takes_tiny_models(subject: Subject) -> str | None:
    """Need of what is computed or probed: a subject that takes tables or glass-box models."""
    return None if subject.capabilities.tiny_models else NO_TINY_MODELS
