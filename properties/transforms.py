"""Chapter transforms: logits to logits as the reference does it."""

import torch
from torch import Tensor

from specverify.certification.registry import Outcome, register
from specverify.certification.transform_evidence import (
    ROUNDING,
    Compared,
    TransformEvidence,
    largest,
)

TV_LIMIT = 1e-6
"""Largest total variation a float32 transform may be off (design.md section 1), where logits are
at most 8; what they are rounded by grows with them."""

UNDERFLOW = torch.finfo(torch.float32).tiny
"""Probabilities that float32 cannot hold, so that a float32 transform takes them for 0."""


@register("transforms.equals_reference", kinds=frozenset({"transform"}))
def equals_reference(evidence: TransformEvidence, alpha: float) -> Outcome:
    """On every row the transform gives the reference's distribution, with the same support.

    Why it holds: a transform is a function of history and logits, and its convention at ties and
    boundaries is part of the dialect.

    What breaks it: the crossing token of top-p dropped, strict against closed comparisons, ties
    cut, penalties on normalised instead of raw logits (algorithms.md section 5, T1 to T6, T13).

    Error rate: none, one row is proof. Rounding can decide a near tie the other way: where the
    reference does so for logits nudged in their last places, the subject may. Where tie or sum
    are exact in float32, a subject that decides most of them the other way has another convention;
    one that does so now and then sums in another order, which is a finding.
    """
    violations, findings = [], []
    ties = decided_otherwise = 0
    example = ""
    for kind, result in evidence.results.items():
        differs, near_tie, explained = _compare(result)
        wrong = differs & ~(near_tie if result.exact else explained)
        if bool(wrong.any()):
            violations.append(_describe(kind, wrong, result, evidence))
        if result.exact:
            ties += int(near_tie.sum())
            decided_otherwise += int((differs & near_tie).sum())
            if not example and bool((differs & near_tie).any()):
                example = _describe(kind, differs & near_tie, result, evidence)
    if 2 * decided_otherwise > ties:
        violations.append(f"another convention at equality: {example}")
    elif decided_otherwise:
        findings.append(
            f"rounding decides {decided_otherwise} of {ties} rows with a tie or a sum exactly at "
            f"the boundary: {example}"
        )
    return Outcome(violations=tuple(violations), findings=tuple(findings))


def _compare(result: Compared) -> tuple[Tensor, Tensor, Tensor]:
    """Judge each row.

    Returns:
        Three bool [B]: the row differs from the reference's; nudging its logits changes what the
        reference keeps; the reference gives the row for nudged logits that keep something else.
    """
    expected, observed = result.expected.softmax(-1), result.observed.softmax(-1)
    alternatives = result.alternatives.softmax(-1)
    size = largest(result.logits).clamp(min=1.0).squeeze(-1)
    limit = TV_LIMIT * (size / 8).clamp(min=1.0)
    differs = ~_same(expected, observed, limit)
    flipped = ((alternatives > 0) != (expected > 0)).any(-1)
    alike = _same(alternatives, observed, limit + ROUNDING * size)
    return differs, flipped.any(0), (flipped & alike).any(0)


def _same(expected: Tensor, observed: Tensor, limit: Tensor) -> Tensor:
    """Whether rows [..., B, V] agree: within `limit` [B] in TV, and in what is possible."""
    distance = (expected - observed).abs().sum(-1) / 2
    unsupported = ((observed > 0) & (expected == 0)).any(-1)
    lost = ((observed == 0) & (expected > UNDERFLOW)).any(-1)
    return (distance <= limit) & ~unsupported & ~lost


def _describe(kind: str, rows: Tensor, result: Compared, evidence: TransformEvidence) -> str:
    """The number of rows, and the first of them side by side."""

    def numbers(values: Tensor) -> str:
        return "[" + ", ".join(f"{value:.4g}" for value in values.tolist()) + "]"

    row = int(rows.int().argmax())
    expected, observed = result.expected[row].softmax(-1), result.observed[row].softmax(-1)
    apart = (expected - observed).abs() > TV_LIMIT / 2
    differing = torch.nonzero(apart | ((expected > 0) != (observed > 0))).squeeze(1)
    return (
        f"{int(rows.sum())} of {len(rows)} {kind} rows differ; with {evidence.case.parameters} and "
        f"logits {numbers(result.logits[row])} the reference gives tokens {differing.tolist()} "
        f"probabilities {numbers(expected[differing])}, the subject {numbers(observed[differing])}"
    )
