"""Chapter support: what can never be emitted."""

from specverify.certification.decoder_evidence import DecoderEvidence
from specverify.certification.registry import Outcome, register
from specverify.statistics.support import support_test
from specverify.subjects.protocols import GENERATING


@register("support.impossible_tokens", kinds=GENERATING, tests=1)
def impossible_tokens(evidence: DecoderEvidence, alpha: float) -> Outcome:
    """No emitted token has probability 0 under the target and the settings.

    Why it holds: a token with p = 0 is neither accepted (its ratio p/q is 0) nor in the residual
    or the bonus distribution.

    What breaks it: transforms applied to some rows only, a mask that lags behind, stale stops. A
    closed comparison `u <= p/q` lets p = 0 through when u is exactly 0: hits up to the rate of
    such coins are a finding, not a violation (statistics.md section 6).

    Error rate: exact binomial test of the hits against that floor, at its share.
    """
    hits = sum(tally.impossible for tally in evidence.tallies)
    test = support_test(hits, evidence.tokens, dtype=evidence.subject.capabilities.coin_dtype)
    examples = [
        {"prompt": list(evidence.case.prompts[i]), "emitted": tally.impossible_example}
        for i, tally in enumerate(evidence.tallies)
        if tally.impossible_example is not None
    ]
    findings = ()
    if hits:
        findings = (f"{hits} of {evidence.tokens:,} tokens have probability 0, e.g. {examples[0]}",)
    return Outcome(tests=(test,), findings=findings, details={"examples": examples})
