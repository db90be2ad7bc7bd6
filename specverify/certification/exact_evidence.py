"""What steering a subject through one case gave, beside the distribution it must have."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specverify.certification.exact_edges import EdgeCoins
from specverify.exact.compare_round import WORST, Deviation, RoundComparison
from specverify.exact.distribution import JointDistribution
from specverify.exact.joint import Joint, largest_ratio, outside_support, total_variation
from specverify.exact.lossy_round import lossy_round_distribution
from specverify.exact.round import Round
from specverify.subjects.protocols import Subject
from specverify.verification.lossy import LossyContract

ALGORITHMIC = 1e-12
"""Largest total variation where everything is computed in float64 (design.md section 1)."""
NUMERICAL = 1e-6
"""The same where something is computed in float32."""


class ExactCase(Protocol):
    """What all cases with exact evidence have."""

    @property
    def id(self) -> str:
        """Begins with `exact/`."""
        ...

    @property
    def size(self) -> str:
        """Vocabulary, block and length, for a reader."""
        ...


@dataclass(frozen=True)
class Comparison:
    """A joint distribution against the one it should be."""

    total_variation: float
    """Between 0 and 1."""
    largest_ratio: float
    """Largest observed / expected; infinite outside the support."""
    outside_support: dict[tuple[int, ...], float]
    """What the target excludes, with its mass, largest first."""
    missing: float
    """Mass of crashes."""
    worst: tuple[Deviation, ...]
    """Largest absolute differences, largest first."""

    @classmethod
    def of_round(cls, compared: RoundComparison) -> "Comparison":
        """Of one round, completed to K+1 tokens."""
        return cls(
            compared.total_variation,
            compared.largest_ratio,
            compared.outside_support,
            compared.missing,
            compared.worst,
        )

    @classmethod
    def of_runs(cls, emitted: Joint, expected: Joint, missing: float) -> "Comparison":
        """Of whole runs, with the places where they stop."""
        keys = sorted(emitted.keys() | expected.keys())
        found = [Deviation(k, emitted.get(k, 0.0), expected.get(k, 0.0)) for k in keys]
        found = [entry for entry in found if entry.observed != entry.expected]
        found.sort(key=lambda entry: -abs(entry.observed - entry.expected))
        return cls(
            total_variation(emitted, expected) + missing / 2,
            largest_ratio(emitted, expected),
            outside_support(emitted, expected),
            missing,
            tuple(found[:WORST]),
        )

    @classmethod
    def of_lossy_round(
        cls, contract: LossyContract, round: Round, joint: JointDistribution
    ) -> "Comparison":
        """Of one round, as it was emitted, against what its contract says."""
        expected = lossy_round_distribution(contract.acceptance, contract.correction, round)
        return cls.of_runs(joint.probabilities, expected, sum(joint.crashes.values()))

    @property
    def certain(self) -> float:
        """Total variation whatever the runs that crashed would have emitted."""
        return max(0.0, self.total_variation - self.missing)


@dataclass(frozen=True)
class RowsCompared:
    """Two rows of one call, held against each of them in a call of its own."""

    blocks: tuple[tuple[int, ...], ...]
    """Draft blocks of the rows."""
    together: float
    """Total variation between what the two emit and the product of what each emits in this call."""
    apart: float
    """The largest total variation between what a row emits in this call and what it emits alone."""


@dataclass(frozen=True)
class ExactEvidence:
    """The joint distribution of what a subject emits on one case."""

    subject: Subject
    case: ExactCase
    joint: JointDistribution
    comparison: Comparison
    tolerance: float
    """Largest total variation of a subject that is right."""
    round: Round | None = None
    """What a rule was handed; None for the run of a decoder."""
    rows: RowsCompared | None = None
    """For the rounds on which rows are compared."""
    rows_share: str | None = None
    """How two rows share a number in a way that leaves nothing to compare."""
    rows_unknown: str | None = None
    """Why they could not be compared otherwise."""
    to_target: float | None = None
    """Of a rule with a lossy contract: total variation from the target, which is not judged."""
    edges: EdgeCoins | None = None
    """For the rounds on which a rule's coins are chosen too."""
    findings: tuple[str, ...] = ()
    """Remarks of the guarded calls."""

    @property
    def draws_elsewhere(self) -> Sequence[str]:
        """Lines that draw from torch's global generator, though the subject declares its own."""
        return self.joint.global_draws if self.subject.capabilities.generator else ()


def tolerance_of(subject: Subject, *, float64: bool) -> float:
    """Largest total variation of a right subject; `float64` says what it is handed."""
    exact = float64 and subject.capabilities.coin_dtype == "float64"
    return ALGORITHMIC if exact else NUMERICAL
