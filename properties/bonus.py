"""Chapter bonus: the token after a fully accepted block."""

from specverify.certification.decoder_evidence import DecoderEvidence
from specverify.certification.probes.given_block import INPUTS, given_blocks
from specverify.certification.probes.rule_trial import RuleTrial
from specverify.certification.registry import UNREPORTED, Outcome, register
from specverify.certification.worst_cells import compare
from specverify.subjects.protocols import GENERATING, RULES, Subject


def _declares_algorithm(subject: Subject) -> str | None:
    if subject.capabilities.algorithm is None:
        return "the subject declares no algorithm, so what full acceptance implies is unknown"
    return None


@register(
    "bonus.given_full_acceptance",
    kinds=GENERATING,
    tests=1,
    needs=_declares_algorithm,
    after=("joint.every_token",),
    why_kept="localises: says that the bonus token is at fault",
)
def given_full_acceptance(evidence: DecoderEvidence, alpha: float) -> Outcome:
    """Given full acceptance, the bonus token has the target's next distribution.

    Why it holds: the bonus is drawn from the target after the last draft token, with randomness
    of its own (Leviathan et al. 2023, algorithm 1).

    What breaks it: a bonus from the draft, from the previous row, or without transforms; none of
    these touches the first token.

    Error rate: an e-process over the first rounds of all runs, at its share, valid at every look.
    It trusts where a decoder says its rounds end: an alarm that shows nowhere else is inconclusive.
    """
    if not evidence.reports_acceptance:
        return Outcome(not_applicable=UNREPORTED)
    return compare(
        evidence.bonuses(),
        evidence.log_bonuses,
        slack=evidence.case.slack,
        full=evidence.full,
        boundaries=evidence.subject.kind == "decoder",
        what="bonus tokens",
        log_threshold=evidence.log_threshold,
        learned=evidence.shards,
    )


@register(
    "bonus.given_block",
    kinds=RULES,
    tests=1,
    evidence="probed",
    inputs=tuple(INPUTS),
    needs=_declares_algorithm,
    after=("joint.round", "acceptance.given_block"),
    why_kept="localises: says after which draft block the bonus token is wrong",
)
def given_block(trial: RuleTrial, alpha: float) -> Outcome:
    """Given a draft block that is fully accepted, the bonus token has the target's distribution.

    Why it holds: it is drawn from the target after the last draft token, with randomness of its
    own (Leviathan et al. 2023, algorithm 1).

    What breaks it: a bonus token from the draft, from another row, or from a coin that has decided
    before.

    Error rate: none where the rounds are computed; otherwise an e-process at its share.
    """
    algorithm = trial.subject.capabilities.algorithm
    assert algorithm is not None
    return given_blocks(trial).follows(algorithm, "bonus")
