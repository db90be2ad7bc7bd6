"""Chapter randomness: each draw is made once, for one token."""

from specverify.certification.decoder_evidence import DecoderEvidence
from specverify.certification.exact_evidence import ExactEvidence
from specverify.certification.registry import Outcome, register, takes_tiny_models
from specverify.certification.seen_from import seen_bits
from specverify.statistics.independence import log_independence
from specverify.statistics.result import TestResult
from specverify.subjects.protocols import GENERATING

SHOWN = 8


@register(
    "randomness.independence",
    kinds=GENERATING,
    tests=1,
    after=("joint.every_token",),
    why_kept="decides where nothing can be computed, and names the coins",
)
def independence(evidence: DecoderEvidence, alpha: float) -> Outcome:
    """The draws behind different tokens are independent, within a run and between rows of a batch.

    Why it holds: the randomised PIT of a lossless run is independent and uniform over all its
    tokens (Rosenblatt 1952; algorithms.md section 0, P4), and so over rows that share no
    randomness.

    What breaks it: coins or noise used again for another token, another round or another row, a
    generator seeded anew. Each token may have its right distribution all the same. A strong
    marginal mistake shows here too: read `joint.every_token` first.

    Error rate: one e-process, the mean over lags, pairs of rows and two orders of tokens, at its
    share, valid at every look.
    """
    scores = evidence.tally.scores
    log_e, components = log_independence(scores.bits, slack=evidence.case.slack)
    largest = dict(sorted(components.items(), key=lambda item: -item[1])[:SHOWN])
    test = TestResult.of_e_process(log_e, int(scores.n.sum()), cells=len(components))
    return Outcome(
        tests=(test,),
        details={"components": largest},
        detectable=(
            seen_bits(scores.bits, evidence.log_threshold, evidence.case.slack)
            if evidence.full
            else None
        ),
    )


@register(
    "randomness.own_draws",
    kinds=GENERATING,
    evidence="exact",
    needs=takes_tiny_models,
    lossy=True,
    why_kept="computed: sees rows that share a coin in a single round",
)
def randomness(evidence: ExactEvidence, alpha: float) -> Outcome:
    """Every decision has randomness of its own, drawn from the generator that was handed over.

    Why it holds: decisions that share a coin are not independent, even where each has the right
    probability (algorithms.md section 5, R22 and R23); rows of a batch are requests of different
    users.

    What breaks it: a generator that is ignored, seeded anew or read twice in one state, noise
    broadcast over rows: findings. A row that emits something else in a batch than alone is a
    violation.

    Error rate: none.
    """
    findings = list(evidence.joint.findings)
    findings += [
        f"draws from torch's global generator, though it is handed one: {line}"
        for line in evidence.draws_elsewhere
    ]
    if evidence.joint.rows_depend:
        findings.append(f"is followed only with one row a call: {evidence.joint.alone}")
    if evidence.comparison.certain > evidence.tolerance:
        findings += evidence.joint.reuses
    rows, violations = evidence.rows, []
    if evidence.rows_share is not None:
        findings.append(f"rows of a batch share randomness: {evidence.rows_share}")
    if rows is not None:
        blocks = " and ".join(str(list(block)) for block in rows.blocks)
        if rows.together > evidence.tolerance:
            findings.append(
                f"rows of a batch share randomness: what the draft blocks {blocks} emit in one "
                f"call is {rows.together:.3g} in TV from independent"
            )
        if rows.apart > evidence.tolerance:
            violations.append(
                f"a row emits something else in a batch than alone: with draft blocks {blocks} in "
                f"one call the distribution of one of them is off by {rows.apart:.3g} in TV"
            )
    return Outcome(violations=tuple(violations), findings=tuple(dict.fromkeys(findings)))
