"""What a transform made of the corpus, beside what the reference makes of it."""

from collections.abc import Callable
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
from specverify.transforms import Transform

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
        generator = derived_generator(seed, case.id, 0, 0)
        call, _ = called_on(subject, transform, rows, generator, time_limit)
        findings.update(dict.fromkeys(call.findings))
        results[kind] = Compared(
            rows.logits,
            reference(rows.histories, rows.logits),
            call.value.double(),
            nudged(case, rows, derived_generator(seed, kind, index, 0), _made),
            rows.exact,
        )
    return TransformEvidence(subject, case, results, tuple(findings))


def called_on(
    subject: Subject, transform: SubjectTransform, rows: Rows, generator: Generator, limit: float
) -> tuple[Call[Tensor], Tensor]:
    """Call a transform; hand over float32 logits, exact ones in float64 first.

    ln 2 rounded to float32 is dyadic only for those who compute in float32, and exact for the
    others too if they round it themselves. Those who refuse float64 do compute in float32.

    Args:
        subject: whose transform it is.
        transform: what its factory returned.
        rows: of one kind.
        generator: seeds the global generators for a subject that declares none.
        limit: seconds for the call.

    Returns:
        The call, and the logits that it took, [B, V].

    Raises:
        SubjectError: it raised or returned something malformed.
    """

    def call(logits: Tensor) -> tuple[Call[Tensor], Tensor]:
        made = call_transform(
            subject, transform, rows.histories, logits, generator=generator, time_limit=limit
        )
        return made, logits

    if rows.exact:
        with suppress(SubjectError):
            return call(rows.logits)
    return call(rows.logits.float())


def _made(reference: Transform, ids: Tensor, logits: Tensor) -> Tensor:
    return reference(ids, logits)


def nudged(
    case: TransformCase,
    rows: Rows,
    generator: Generator,
    make: Callable[[Transform, Tensor, Tensor], Tensor],
) -> Tensor:
    """What a reference makes of rows after nudges as small as rounding, see `Compared`.

    Args:
        case: whose reference it is.
        rows: of one kind.
        generator: of the nudges.
        make: from the reference, histories [B, T] and logits [B, V] to a tensor [..., B, V].

    Returns:
        float64 [A, ..., B, V].
    """
    logits = rows.logits
    results = []
    if case.thresholds:
        # Sums over tokens that tie change with no nudge of the logits.
        for factor in (1 - ROUNDING, 1 + ROUNDING):
            results.append(make(case.build_reference(scaled=factor), rows.histories, logits))
    if not (rows.exact and case.thresholds):
        reference = case.build_reference()
        size = ROUNDING * largest(logits).clamp(min=1.0)
        for _ in range(NUDGES):
            signs = torch.randint(2, logits.shape, generator=generator) * 2 - 1
            results.append(make(reference, rows.histories, logits + signs * size))
    return torch.stack(results)


def largest(logits: Tensor) -> Tensor:
    """Largest finite logit of each row by magnitude, [B, 1]."""
    return logits.abs().masked_fill(logits.isinf(), 0.0).amax(-1, keepdim=True)
