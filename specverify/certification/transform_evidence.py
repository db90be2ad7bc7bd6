"""What a transform made of the corpus, beside what the reference makes of it."""

from dataclasses import dataclass

from torch import Tensor

from specverify.certification.sampled import derived_generator
from specverify.certification.transform_case import TransformCase, corpus
from specverify.subjects.calling import build_transform, call_transform
from specverify.subjects.protocols import Subject


@dataclass(frozen=True)
class Compared:
    """Rows of one kind."""

    logits: Tensor
    """float32 [B, V]."""
    expected: Tensor
    """float64 [B, V]."""
    observed: Tensor
    """[B, V] in the subject's dtype."""


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
    for kind, (histories, logits) in corpus(seed).items():
        call = call_transform(
            subject,
            transform,
            histories,
            logits,
            generator=derived_generator(seed, case.id, 0),
            time_limit=time_limit,
        )
        findings.update(dict.fromkeys(call.findings))
        results[kind] = Compared(logits, reference(histories, logits), call.value)
    return TransformEvidence(subject, case, results, tuple(findings))
