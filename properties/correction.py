"""Chapter correction: the token that replaces a rejected draft token."""

import math

from specverify.certification.conditional import WITH_CORRECTION
from specverify.certification.decoder_evidence import DecoderEvidence
from specverify.certification.probes.given_block import INPUTS, given_blocks
from specverify.certification.probes.rule_trial import RuleTrial
from specverify.certification.registry import UNREPORTED, Detectable, Outcome, register
from specverify.certification.worst_cells import compare
from specverify.statistics.support import detectable_rate, support_e_value
from specverify.subjects.protocols import GENERATING, RULES, Subject

_HIDDEN_COINS = (
    "a random transform gives every round a p and a q of its own, and the residual is theirs, not "
    "that of the averages"
)


def _declares_correction(subject: Subject) -> str | None:
    algorithm = subject.capabilities.algorithm
    if algorithm is None:
        return "the subject declares no algorithm, and every rule has a correction of its own"
    if algorithm not in WITH_CORRECTION:
        return f"the correction of algorithm {algorithm!r} is not random"
    if subject.kind == "decoder" and not subject.capabilities.standard_draft:
        return (
            "the subject does not declare standard_draft, and the correction depends on how its "
            "draft tokens are drawn"
        )
    return None


@register(
    "correction.given_rejection",
    kinds=GENERATING,
    tests=1,
    needs=_declares_correction,
    after=("joint.every_token",),
    why_kept="localises: says that the correction is at fault",
)
def given_rejection(evidence: DecoderEvidence, alpha: float) -> Outcome:
    """Given a rejection, the correction has the closed form of the declared algorithm.

    Why it holds: token, the residual (p - q)+; block, (p_tau p - q)+; match, p(1 - q), each
    normalised (algorithms.md sections 1.3, 1.4 and 1.7).

    What breaks it: a residual that is not subtracted or taken from another row. Sharper than the
    first token, since accepted tokens do not dilute the deviation.

    Error rate: an e-process over the first rounds of all runs, at its share, valid at every look.
    It trusts where a decoder says its rounds end: an alarm that shows nowhere else is inconclusive.
    """
    if not evidence.reports_acceptance:
        return Outcome(not_applicable=UNREPORTED)
    if evidence.case.random_transforms:
        return Outcome(not_applicable=_HIDDEN_COINS)
    return compare(
        evidence.corrections(),
        evidence.log_corrections,
        slack=evidence.case.slack,
        full=evidence.full,
        boundaries=evidence.subject.kind == "decoder",
        what="corrections",
        log_threshold=evidence.log_threshold,
        learned=evidence.shards,
    )


@register(
    "correction.inside_residual",
    kinds=GENERATING,
    tests=1,
    needs=_declares_correction,
    after=("joint.every_token",),
    why_kept="localises: says that the residual is not cut at zero",
)
def inside_residual(evidence: DecoderEvidence, alpha: float) -> Outcome:
    """No correction is a token that the residual of the declared algorithm excludes.

    Why it holds: a token with p <= q has no part in (p - q)+; all of its probability comes from
    accepted draft tokens.

    What breaks it: a residual with the wrong sign or without its cut at zero, |p - q| or (q - p)+.
    The comparison of distributions does not see such tokens, since it is conditional on the
    possible ones.

    Error rate: an e-process on the hits, at its share, valid at every look, against the rate that
    coins of exactly 0 explain and as many more as logits may be off (`DecoderCase.tolerance`): a
    truncation that decides a near tie the other way changes the residual. It trusts where a
    decoder says its rounds end: an alarm that shows nowhere else is inconclusive.
    """
    if not evidence.reports_acceptance:
        return Outcome(not_applicable=UNREPORTED)
    if evidence.case.random_transforms:
        return Outcome(not_applicable=_HIDDEN_COINS)
    excluded, total = evidence.excluded_corrections()
    dtype, excused = evidence.subject.capabilities.coin_dtype, evidence.case.tolerance
    share = math.exp(-evidence.log_threshold)
    rate = None
    if evidence.full and total and 0 < share < 1:
        rate = detectable_rate(total, share, dtype=dtype, excused=excused)
    return Outcome(
        tests=(support_e_value(excluded, total, dtype=dtype, excused=excused),),
        detectable=None if rate is None else Detectable(rate, "rate of excluded corrections"),
        boundaries=evidence.subject.kind == "decoder",
    )


@register(
    "correction.given_block",
    kinds=RULES,
    tests=1,
    evidence="probed",
    inputs=tuple(INPUTS),
    after=("joint.round", "acceptance.given_block"),
)
def given_block(trial: RuleTrial, alpha: float) -> Outcome:
    """Given the draft block and the accepted length, the correction has its declared distribution.

    Why it holds: token and block verification draw it from a residual that does not depend on the
    token that was rejected; match emits a token that is not it (algorithms.md sections 1.3, 1.4
    and 1.7). Of a rule that declares no algorithm it is only said which of these it agrees with:
    others are lossless too.

    What breaks it: a correction that depends on the rejected token, or on those behind it, in a way
    that cancels over all blocks: the output is right, and is not that of the declared algorithm.

    Error rate: none where the rounds are computed; otherwise an e-process at its share.
    """
    given, algorithm = given_blocks(trial), trial.subject.capabilities.algorithm
    if algorithm is not None:
        return given.follows(algorithm, "correction")
    if given.computed is None:
        return Outcome(not_applicable="the subject declares no algorithm, and cannot be steered")
    alike = given.alike(sorted(WITH_CORRECTION), "correction")
    named = " and ".join(alike) or "none that has a closed form"
    return Outcome(
        not_applicable=f"the subject declares no algorithm; its corrections are those of {named}"
    )
