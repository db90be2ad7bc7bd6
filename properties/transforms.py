"""Chapter transforms: logits to logits as the reference does it."""

import torch
from torch import Tensor

from specverify.certification.registry import Outcome, register
from specverify.certification.transform_evidence import TransformEvidence

TV_LIMIT = 1e-6
"""Largest total variation a float32 transform may be off (design.md section 1)."""


@register("transforms.equals_reference", kinds=frozenset({"transform"}))
def equals_reference(evidence: TransformEvidence, alpha: float) -> Outcome:
    """On every row the transform gives the reference's distribution, with the same support.

    Why it holds: a transform is a function of history and logits, and its convention at ties and
    boundaries is part of the dialect.

    What breaks it: the crossing token of top-p dropped, strict against closed comparisons, ties
    cut, penalties on normalised instead of raw logits (algorithms.md section 5, T1 to T6, T13).

    Error rate: none, one row is proof.
    """
    violations, largest = [], 0.0
    for kind, result in evidence.results.items():
        expected, observed = result.expected.softmax(-1), result.observed.double().softmax(-1)
        distance = (expected - observed).abs().sum(-1) / 2
        support = ((expected > 0) != (observed > 0)).any(-1)
        largest = max(largest, float(distance.max()))
        wrong = support | (distance > TV_LIMIT)
        if bool(wrong.any()):
            violations.append(
                _describe(
                    kind,
                    int(wrong.sum()),
                    result.logits,
                    expected,
                    observed,
                    int(wrong.int().argmax()),
                    evidence,
                )
            )
    return Outcome(violations=tuple(violations), tv_bound=largest)


def _describe(
    kind: str,
    count: int,
    logits: Tensor,
    expected: Tensor,
    observed: Tensor,
    row: int,
    evidence: TransformEvidence,
) -> str:
    def numbers(values: Tensor) -> str:
        return "[" + ", ".join(f"{value:.4g}" for value in values.tolist()) + "]"

    differing = torch.nonzero((expected[row] - observed[row]).abs() > TV_LIMIT / 2).squeeze(1)
    return (
        f"{count} of {len(logits)} {kind} rows differ; with {evidence.case.parameters} and logits "
        f"{numbers(logits[row])} the reference gives tokens {differing.tolist()} probabilities "
        f"{numbers(expected[row, differing])}, the subject {numbers(observed[row, differing])}"
    )
