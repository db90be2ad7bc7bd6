"""What a transform made of the corpus, beside what the reference makes of it."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from specverify.certification.sampled import derived_generator
from specverify.certification.transform_case import TransformCase, corpus
from specverify.subjects.calling import build_transform, call_transform
from specverify.subjects.protocols import Subject
from specverify.transforms import Transform

NUDGES = 24
"""Ways in which the logits of a row are nudged; each decides a near tie one way or the other."""

ROUNDING = 1e-5
"""Size of a nudge, for logits up to 1: some hundred units in the last place of float32, which is
what sums over a row may be off by."""


@dataclass(frozen=True)
class Compared:
    """Rows of one kind."""

    logits: Tensor
    """float64 [B, V]."""
    expected: Tensor
    """float64 [B, V], what the reference makes of them."""
    observed: Tensor
    """float64 [B, V], what the subject makes of them rounded to float32."""
    alternatives: Tensor
    """float64 [NUDGES, B, V], what the reference makes of them nudged by as much as rounding may."""
    exact: bool
    """See `transform_case.Rows`."""


@dataclass(frozen=True)
class TransformEvidence:
    """Results by kind of row."""

    subject: Subject
    case: TransformCase
    results: dict[str, Compared]
    findings: tuple[str, ...]


def run_transform(
    subject: Subject, case: TransformCase, seed: int, time_limit: float
) -> TransformEvidence:
    """Run a transform and its reference on the corpus.

    Raises:
        SubjectError: the subject raised or returned something malformed.
    """
    transform = build_transform(subject, time_limit=time_limit, **case.parameters)
    reference = case.build_reference()
    results, findings = {}, {}
    for index, (kind, rows) in enumerate(corpus(seed).items()):
        call = call_transform(
            subject,
            transform,
            rows.histories,
            rows.logits.float(),
            generator=derived_generator(seed, case.id, 0),
            time_limit=time_limit,
        )
        findings.update(dict.fromkeys(call.findings))
        results[kind] = Compared(
            rows.logits,
            reference(rows.histories, rows.logits),
            call.value.double(),
            _nudged(reference, rows.histories, rows.logits, derived_generator(seed, kind, index)),
            rows.exact,
        )
    return TransformEvidence(subject, case, results, tuple(findings))


def _nudged(
    reference: Transform, histories: Tensor, logits: Tensor, generator: Generator
) -> Tensor:
    size = ROUNDING * largest(logits).clamp(min=1.0)
    nudges = [
        torch.randint(2, logits.shape, generator=generator) * 2 * size - size for _ in range(NUDGES)
    ]
    return torch.stack([reference(histories, logits + nudge) for nudge in nudges])


def largest(logits: Tensor) -> Tensor:
    """Largest finite logit of each row by magnitude, [B, 1]."""
    return logits.abs().masked_fill(logits.isinf(), 0.0).amax(-1, keepdim=True)
