"""Chapter joint: the distribution of what is emitted."""

from dataclasses import replace

from specverify.certification.decoder_evidence import DecoderEvidence
from specverify.certification.registry import Outcome, register
from specverify.certification.worst_cells import compare
from specverify.statistics.bounds import samples_needed, tv_upper_bound
from specverify.subjects.protocols import GENERATING

TV_LIMIT = 0.02
"""Largest upper bound on the first token's total variation at which a case is preserved."""


@register("joint.first_token", kinds=GENERATING, tests=2)
def first_token(evidence: DecoderEvidence, alpha: float) -> Outcome:
    """The first token of a run has the target's distribution.

    Why it holds: a lossless rule emits each token with probability min(p, q) from the draft and
    (p - q)+ from the residual, which add up to p (Leviathan et al. 2023, appendix A.1).

    What breaks it: every mistake in acceptance or residual, a draft distribution reported wrongly,
    transforms on one side only, rows of a batch mixed up.

    Error rate: chi-squared and G, each at the share it is given. The bound on the total variation
    (mean over prompts) fails with probability at most `alpha`.
    """
    strata = evidence.first_tokens()
    bound = tv_upper_bound(strata.counts, strata.laws, alpha).bound
    missing = None
    if bound > TV_LIMIT:
        runs = samples_needed(strata.laws, TV_LIMIT, alpha)
        missing = (
            f"the bound on the first token's TV is {bound:.4f}, above {TV_LIMIT}; about "
            f"{runs * evidence.tokens / evidence.runs:,.0f} tokens per setting would reach it"
        )
    return replace(compare(strata), tv_bound=bound, missing=missing)


@register("joint.stopped_run", kinds=GENERATING, tests=2)
def stopped_run(evidence: DecoderEvidence, alpha: float) -> Outcome:
    """A whole run, with the place where it stops, has the target's joint distribution.

    Why it holds: rounds compose, since each continues from committed tokens alone, and stopping
    looks at emitted tokens only (algorithms.md section 0, P3 and P9).

    What breaks it: wrong bonus tokens, coins or noise shared between positions, stale caches and
    histories, stops seen late; most of these leave the first token right.

    Error rate: chi-squared and G on cells with at least 25 expected runs, each at its share.
    """
    return compare(evidence.joint())


@register("joint.each_position", kinds=GENERATING, tests=2)
def each_position(evidence: DecoderEvidence, alpha: float) -> Outcome:
    """At every position of a run the token has the target's distribution given what came before.

    Why it holds: given the tokens before it, each token of a lossless run is drawn from the target
    alone, at whatever place of a block it stands (algorithms.md section 0, P4).

    What breaks it: the same mistakes as in the whole run. With fewer cells it sees weaker ones, if
    they lie in single tokens and not in how tokens go together.

    Error rate: chi-squared and G on tokens by position and preceding token, each at its share.
    """
    return compare(evidence.each_position())
