"""Chapter correction: the token that replaces a rejected draft token."""

from specverify.certification.conditional import WITH_CORRECTION
from specverify.certification.decoder_evidence import DecoderEvidence
from specverify.certification.registry import Outcome, register
from specverify.certification.worst_cells import compare
from specverify.subjects.protocols import Subject


def _declares_correction(subject: Subject) -> str | None:
    algorithm = subject.capabilities.algorithm
    if algorithm in WITH_CORRECTION:
        return None
    if algorithm is None:
        return "the subject declares no algorithm, and every rule has a correction of its own"
    return f"the correction of algorithm {algorithm!r} is not random"


@register(
    "correction.given_rejection",
    kinds=frozenset({"decoder", "rule"}),
    tests=2,
    needs=_declares_correction,
)
def given_rejection(evidence: DecoderEvidence, alpha: float) -> Outcome:
    """Given a rejection, the correction has the closed form of the declared algorithm.

    Why it holds: token, the residual (p - q)+; block, (p_tau p - q)+; match, p(1 - q), each
    normalised (algorithms.md sections 1.3, 1.4 and 1.7).

    What breaks it: a residual that is not subtracted or taken from another row. Sharper than the
    first token, since accepted tokens do not dilute the deviation.

    Error rate: chi-squared and G over the first rounds of all runs, each at its share.
    """
    return compare(evidence.corrections())
