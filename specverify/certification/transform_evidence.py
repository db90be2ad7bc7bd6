"""What a transform made of the corpus, beside what the reference makes of it."""

from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from specverify.certification.shard import derived_generator
from specverify.certification.transform_case import Rows, TransformCase, corpus
from specverify.errors import SubjectError
from specverify.subjects.calling import build_transform, call_transform
from specverify.subjects.guard import Call
from specverify.subjects.protocols import Subject
from specverify.subjects.protocols import Transform as SubjectTransform

NUDGES = 16
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
    """float64 [B, V], what the subject makes of them."""
    alternatives: Tensor
    """float64 [A, B, V], what the reference makes of them after nudges as small as rounding: of its
    thresholds and, where exact rows do not need them left alone, of the logits."""
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
        call = _call(subject, transform, rows, derived_generator(seed, case.id, 0, 0), time_limit)
        findings.update(dict.fromkeys(call.findings))
        results[kind] = Compared(
            rows.logits,
            reference(rows.histories, rows.logits),
            call.value.double(),
            _nudged(case, rows, derived_generator(seed, kind, index, 0)),
            rows.exact,
        )
    return TransformEvidence(subject, case, results, tuple(findings))


def _call(
    subject: Subject, transform: SubjectTransform, rows: Rows, generator: Generator, limit: float
) -> Call[Tensor]:
    """Hand over float32 logits, exact ones in float64 first.

    ln 2 rounded to float32 is dyadic only for those who compute in float32, and exact for the
    others too if they round it themselves. Those who refuse float64 do compute in float32.
    """
    if rows.exact:
        with suppress(SubjectError):
            return call_transform(
                subject,
                transform,
                rows.histories,
                rows.logits,
                generator=generator,
                time_limit=limit,
            )
    return call_transform(
        subject,
        transform,
        rows.histories,
        rows.logits.float(),
        generator=generator,
        time_limit=limit,
    )


def _nudged(case: TransformCase, rows: Rows, generator: Generator) -> Tensor:
    logits = rows.logits
    results = []
    if case.thresholds:
        # Sums over tokens that tie change with no nudge of the logits.
        for factor in (1 - ROUNDING, 1 + ROUNDING):
            results.append(case.build_reference(scaled=factor)(rows.histories, logits))
    if not (rows.exact and case.thresholds):
        reference = case.build_reference()
        size = ROUNDING * largest(logits).clamp(min=1.0)
        for _ in range(NUDGES):
            signs = torch.randint(2, logits.shape, generator=generator) * 2 - 1
            results.append(reference(rows.histories, logits + signs * size))
    return torch.stack(results)


def largest(logits: Tensor) -> Tensor:
    """Largest finite logit of each row by magnitude, [B, 1]."""
    return logits.abs().masked_fill(logits.isinf(), 0.0).amax(-1, keepdim=True)
