"""What a computed distribution says of a property: its distance, and the numbers beside it."""

import math
from typing import Any

from specverify.certification.exact_evidence import Comparison
from specverify.certification.registry import Outcome
from specverify.errors import SubjectError
from specverify.exact.distribution import JointDistribution


def distance_outcome(
    compared: Comparison, joint: JointDistribution, tolerance: float, what: str
) -> Outcome:
    """Violated if the distance is above the tolerance, whatever crashed runs would have emitted.

    Args:
        compared: with the distribution it should be.
        joint: what is emitted.
        tolerance: largest total variation of a right subject.
        what: the input in words.
    """
    violations = ()
    if compared.certain > tolerance:
        violations = (
            f"{what} is {compared.certain:.6g} in TV from the target; right ones stay below "
            f"{tolerance:g}",
        )
    return Outcome(
        violations=violations, details={"exact": exact_numbers(compared, joint, tolerance)}
    )


def unless_crashed(outcome: Outcome, joint: JointDistribution) -> Outcome:
    """The outcome of a probe, if it is a violation or the subject never crashes.

    Raises:
        SubjectError: it crashes with some probability, and what it emits otherwise is right.
    """
    if joint.crashes and not outcome.violations:
        text, mass = max(joint.crashes.items(), key=lambda item: item[1])
        raise SubjectError(f"with probability {mass:.3g} {text.removeprefix('SubjectError: ')}")
    return outcome


def exact_numbers(
    compared: Comparison, joint: JointDistribution, tolerance: float
) -> dict[str, Any]:
    """Fields of an `ExactRecord`."""
    return {
        "total_variation": compared.total_variation,
        "tolerance": tolerance,
        "largest_ratio": compared.largest_ratio,
        "outside_support": math.fsum(compared.outside_support.values()),
        "crashing": compared.missing,
        "method": joint.method,
        "runs": joint.runs,
        "worst": [entry._asdict() for entry in compared.worst],
    }
