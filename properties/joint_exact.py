"""Chapter joint, computed: the distribution of what is emitted, where a subject can be steered."""

from specverify.certification.exact_evidence import ExactEvidence
from specverify.certification.exact_outcome import distance_outcome
from specverify.certification.registry import Outcome, register, takes_tiny_models
from specverify.subjects.protocols import DECODERS, RULES


@register(
    "joint.round",
    kinds=RULES,
    evidence="exact",
    lossy=True,
    why_kept="its distance is what a certificate of a rule states",
)
def one_round(evidence: ExactEvidence, alpha: float) -> Outcome:
    """One round, continued by the target, has the target's joint distribution of K+1 tokens.

    Why it holds: a lossless rule emits p for every token that ends a round or is accepted, given
    those before it; what a round leaves open, the rounds after it add (design.md section 1).

    What breaks it: every mistake in acceptance, correction, bonus token or in how coins are shared
    between positions, at the size it has and not at the size that samples show.

    Error rate: none. The distance is computed, and held against 1e-12 where probabilities and
    coins are float64, 1e-6 otherwise.
    """
    return _distance(evidence, "one round, completed to K+1 tokens,")


@register(
    "joint.run",
    kinds=DECODERS,
    evidence="exact",
    needs=takes_tiny_models,
    why_kept="its distance is what a certificate of a decoder states",
)
def whole_run(evidence: ExactEvidence, alpha: float) -> Outcome:
    """A whole run on a tiny model has exactly the target's stopped joint distribution.

    Why it holds: rounds compose, and stopping looks at emitted tokens only (algorithms.md section
    0, P3 and P9).

    What breaks it: what breaks the sampled joint distribution, and mistakes too rare or too small
    to be sampled.

    Error rate: none. The distance is computed, and held against 1e-12 where models and coins are
    float64, 1e-6 otherwise.
    """
    return _distance(evidence, "a whole run")


def _distance(evidence: ExactEvidence, what: str) -> Outcome:
    what = f"{what} over {evidence.case.size}"
    return distance_outcome(evidence.comparison, evidence.joint, evidence.tolerance, what)
