"""Exact evidence made by hand: a round of the token rule, and changes to what it emits."""

from collections.abc import Mapping
from typing import Any

from specverify.certification.exact_evidence import Comparison, ExactEvidence
from specverify.certification.exact_rounds import RoundCase
from specverify.exact.compare_round import compare_round
from specverify.exact.distribution import JointDistribution
from specverify.exact.enumerate import round_distribution
from specverify.exact.round import Round
from specverify.subjects.protocols import Capabilities, Subject

ROUND = Round.random(3, 2, seed=4)
CASE = RoundCase("exact/round", ROUND)
RIGHT = round_distribution("token", ROUND)
DECLARED = Capabilities(coin_dtype="float64", algorithm="token")


def evidence(
    emitted: Mapping[tuple[int, ...], float] = RIGHT,
    *,
    crashes: Mapping[str, float] | None = None,
    declared: Capabilities = DECLARED,
    **fields: Any,
) -> ExactEvidence:
    """What steering the token rule through `ROUND` gives, where nothing is said to be otherwise."""
    joint = {name: fields.pop(name) for name in ("findings", "reuses") if name in fields}
    lines = fields.pop("global_draws", ())
    made = JointDistribution(emitted, "forcing", 9, crashes or {}, global_draws=lines, **joint)
    values: dict[str, Any] = {
        "subject": Subject("mine", "rule", len, declared),
        "case": CASE,
        "joint": made,
        "comparison": Comparison.of_round(compare_round(ROUND, emitted)),
        "tolerance": 1e-12,
        "round": ROUND,
    }
    return ExactEvidence(**values | fields)


def moved(amount: float) -> dict[tuple[int, ...], float]:
    """The right distribution with some mass on another tuple."""
    first, second = sorted(RIGHT)[-2:]
    return RIGHT | {first: RIGHT[first] + amount, second: RIGHT[second] - amount}


def without(amount: float) -> dict[tuple[int, ...], float]:
    """The right distribution with some mass missing."""
    last = max(RIGHT)
    return RIGHT | {last: RIGHT[last] - amount}
