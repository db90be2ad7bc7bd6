"""Chapter transforms: logits to logits as the reference does it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specverify.certification.exact_evidence import ExactEvidence
from specverify.certification.exact_outcome import distance_outcome
from specverify.certification.registry import Outcome, register
from specverify.certification.transform_evidence import (
    ROUNDING,
    Compared,
    TransformEvidence,
    largest,
)
from specverify.subjects.protocols import TRANSFORMS

TV_LIMIT = 1e-6
"""Largest total variation a float32 transform may be off (design.md section 1), where logits are
at most 8; what they are rounded by grows with them."""

UNDERFLOW = torch.finfo(torch.float32).tiny
"""Probabilities that float32 cannot hold, so that a float32 transform takes them for 0."""

ENOUGH = 64
"""Rows at equality that tell a convention from rounding: some of more than one set of values."""

NEARLY_ALL = 0.95
"""Share of them that another convention decides otherwise; rounding goes both ways."""


@register("transforms.equals_reference", kinds=TRANSFORMS)
def equals_reference(evidence: TransformEvidence, alpha: float) -> Outcome:
    """On every row the transform gives the reference's distribution, with the same support.

    Why it holds: a transform is a function of history and logits, and its convention at ties and
    boundaries is part of the dialect.

    What breaks it: the crossing token of top-p dropped, strict against closed comparisons, ties
    cut, penalties on normalised instead of raw logits (algorithms.md section 5, T1 to T6, T13).

    Error rate: none, one row is proof. Rounding can decide a near tie the other way: where the
    reference does so for logits nudged in their last places, the subject may. Where ties and sums
    are exact, a subject that decides nearly all of them the other way has another convention; one
    that does so now and then adds up in another order, which is a finding, as is another choice
    among tokens that tie (the sort of transformers' own top-p is not stable).
    """
    violations: list[str] = []
    findings: list[str] = []
    for kind, result in evidence.results.items():
        rows = _judge(result)
        if bool(rows.wrong.any()):
            violations.append(_describe(kind, rows.wrong, result, evidence))
        if bool(rows.lost.any()):
            what = _describe(kind, rows.lost, result, evidence)
            findings.append(f"loses tokens too improbable to violate the claim: {what}")
        if bool(rows.reordered.any()):
            what = _describe(kind, rows.reordered, result, evidence)
            findings.append(f"chooses other ones of tokens that tie: {what}")
        if bool(rows.decided_otherwise.any()):
            what = _describe(kind, rows.decided_otherwise, result, evidence)
            number = int(rows.at_equality.sum())
            if number >= ENOUGH and int(rows.decided_otherwise.sum()) >= NEARLY_ALL * number:
                violations.append(f"another convention at equality: {what}")
            else:
                findings.append(f"decides by rounding some of {number} rows at equality: {what}")
    return Outcome(violations=tuple(violations), findings=tuple(findings))


@register(
    "transforms.round",
    kinds=TRANSFORMS,
    evidence="exact",
    after=("transforms.equals_reference",),
    why_kept="computed: says what a transform's mistake comes to in a round",
)
def transformed_round(evidence: ExactEvidence, alpha: float) -> Outcome:
    """One round of token verification behind the transform follows the transformed target.

    Why it holds: verification preserves whatever rows it is handed as p; the transform makes them
    after every prefix, from the history that holds the draft tokens before.

    What breaks it: a transform that computes something else than its reference, at the size that
    this has in the output. One that mixes up the rows of a call may be right on each row alone,
    where it cannot be followed otherwise: a finding.

    Error rate: none, held against 1e-6: a transform is handed float32 logits.
    """
    what = f"one round, completed to K+1 tokens, over {evidence.case.size}"
    outcome = distance_outcome(evidence.comparison, evidence.joint, evidence.tolerance, what)
    if not evidence.joint.rows_depend:
        return outcome
    alone = f"is followed only with one row a call: {evidence.joint.alone}"
    return replace(outcome, findings=(alone,))


@dataclass(frozen=True)
class _Rows:
    """Which rows of a kind are what, each bool [B]."""

    wrong: Tensor
    reordered: Tensor
    """Right up to the choice among tokens that tie."""
    lost: Tensor
    """Right but for tokens that are lost, whose probability together is below the limit."""
    at_equality: Tensor
    """A tie or sum lies exactly at the boundary, so that nudges change how much is kept."""
    decided_otherwise: Tensor
    """At equality and different from the reference."""


def _judge(result: Compared) -> _Rows:
    size = largest(result.logits).clamp(min=1.0).squeeze(-1)
    limit = TV_LIMIT * (size / 8).clamp(min=1.0)
    expected, observed = result.expected.softmax(-1), result.observed.softmax(-1)
    alternatives = result.alternatives.softmax(-1)
    differs = ~_same(expected, observed, limit)
    if not result.exact:
        # Nothing ties here, and where a nudge changes what is kept, its outcome is as good.
        flipped = ((alternatives > 0) != (expected > 0)).any(-1)
        explained = flipped & _same(alternatives, observed, limit + ROUNDING * size)
        none = torch.zeros_like(differs)
        return _Rows(
            wrong=differs & ~explained.any(0),
            reordered=none,
            lost=~differs & _lost(expected, observed),
            at_equality=none,
            decided_otherwise=none,
        )
    differs_in_order, differs = (
        differs,
        ~_same(_ties_sorted(expected, result.logits), _ties_sorted(observed, result.logits), limit),
    )
    at_equality = ((alternatives > 0).sum(-1) != (expected > 0).sum(-1)).any(0)
    return _Rows(
        wrong=differs & ~at_equality,
        reordered=differs_in_order & ~differs,
        lost=~differs_in_order & _lost(expected, observed),
        at_equality=at_equality,
        decided_otherwise=differs & at_equality,
    )


def _ties_sorted(probs: Tensor, logits: Tensor) -> Tensor:
    """Probabilities in the order of their logits, those of equal logits sorted."""
    ascending, order = probs.sort(-1)
    return ascending.gather(-1, logits.gather(-1, order).sort(dim=-1, stable=True).indices)


def _same(expected: Tensor, observed: Tensor, limit: Tensor) -> Tensor:
    """Whether rows [..., B, V] agree: within `limit` [B] in TV, and nothing new is possible."""
    distance = (expected - observed).abs().sum(-1) / 2
    unsupported = ((observed > 0) & (expected == 0)).any(-1)
    return (distance <= limit) & ~unsupported


def _lost(expected: Tensor, observed: Tensor) -> Tensor:
    """Rows [B] in which a token that float32 can hold has become impossible."""
    return ((observed == 0) & (expected > UNDERFLOW)).any(-1)


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
