"""Chapter acceptance, computed: how many draft tokens a rule accepts."""

import math

import numpy as np
from numpy.typing import NDArray

from specverify.certification.exact_evidence import ExactEvidence
from specverify.certification.probes.given_block import INPUTS, given_blocks
from specverify.certification.probes.rule_trial import RuleTrial
from specverify.certification.registry import Outcome, register
from specverify.exact.enumerate import acceptance_distribution
from specverify.exact.round import Round
from specverify.subjects.protocols import RULES, Subject

WITH_ACCEPTANCE = ("greedy", "token", "block", "match")
"""Algorithms whose acceptance has a closed form."""

_CRASHES = "some calls raise, so that not all lengths are known"


def declares_acceptance(subject: Subject) -> str | None:
    """Need of what is held against a closed form."""
    if subject.capabilities.algorithm in WITH_ACCEPTANCE:
        return None
    return "the subject declares no algorithm whose acceptance has a closed form"


def _declares_block(subject: Subject) -> str | None:
    if subject.capabilities.algorithm == "block":
        return None
    return "the subject does not declare block verification"


@register(
    "acceptance.closed_form",
    kinds=RULES,
    evidence="exact",
    needs=declares_acceptance,
    after=("joint.round",),
)
def acceptance(evidence: ExactEvidence, alpha: float) -> Outcome:
    """As many draft tokens are accepted as under the declared algorithm.

    Why it holds: the distribution of the accepted length is part of the algorithm (algorithms.md
    section 0, P5), and every round ends with a correction or a bonus token.

    What breaks it: draft tokens rejected for no reason, which costs time and leaves the output
    right; a correction dropped or a bonus token left out.

    Error rate: none, held against the tolerance of the distance.
    """
    if evidence.joint.crashes:
        return Outcome(not_applicable=_CRASHES)
    algorithm, round = evidence.subject.capabilities.algorithm, evidence.round
    assert algorithm is not None
    assert round is not None
    violations = []
    lengths = _at_least(evidence, round)
    for i, expected in enumerate(acceptance_distribution(algorithm, round).tolist()):
        if abs(lengths[i] - expected) > evidence.tolerance:
            violations.append(
                f"at least {i} draft tokens are accepted with probability {lengths[i]:.6g}, and "
                f"under {algorithm!r} with {expected:.6g}"
            )
    return Outcome(violations=tuple(violations))


@register(
    "acceptance.given_block",
    kinds=RULES,
    tests=1,
    evidence="probed",
    inputs=tuple(INPUTS),
    needs=declares_acceptance,
    after=("joint.round", "acceptance.closed_form"),
    why_kept="judges rules that cannot be steered, and names the block",
)
def given_block(trial: RuleTrial, alpha: float) -> Outcome:
    """Of each draft block as many tokens are accepted as the declared algorithm accepts of it.

    Why it holds: given the block the accepted length has a closed form (algorithms.md sections 1.2
    to 1.4 and 1.7).

    What breaks it: what breaks `acceptance.closed_form`, seen where a rule cannot be steered too:
    tokens rejected for no reason, a block that ends early.

    Error rate: none where the rounds are computed; otherwise an e-process at its share.
    """
    algorithm = trial.subject.capabilities.algorithm
    assert algorithm is not None
    return given_blocks(trial).follows(algorithm, "acceptance")


@register(
    "acceptance.block_at_least_token",
    kinds=RULES,
    evidence="exact",
    needs=_declares_block,
    after=("joint.round",),
    why_kept="states what block verification is for, without the closed form of the other test",
)
def block_at_least_token(evidence: ExactEvidence, alpha: float) -> Outcome:
    """Block verification accepts at least as many draft tokens as token verification would.

    Why it holds: it is the rule that accepts most of those that look at the drafted path alone
    (Sun et al. 2024, arXiv 2403.10444, theorem 2), and token verification is one of these.

    What breaks it: a block that ends at the first coin that fails, or coins that are compared with
    the wrong number. `acceptance.closed_form` says the same in numbers; this is what block
    verification is chosen for, and says whether a mistake made it worse than what it replaces.

    Error rate: none, held against the tolerance of the distance, once for each draft token.
    """
    if evidence.joint.crashes:
        return Outcome(not_applicable=_CRASHES)
    round = evidence.round
    assert round is not None
    found = math.fsum(_at_least(evidence, round)[1:])
    token = math.fsum(acceptance_distribution("token", round)[1:].tolist())
    if found >= token - evidence.tolerance * max(1, round.num_draft_tokens):
        return Outcome()
    return Outcome(
        violations=(
            f"{found:.6g} draft tokens are accepted on average, and {token:.6g} by token "
            "verification of the same round",
        )
    )


@register(
    "acceptance.optimal_bound",
    kinds=RULES,
    evidence="exact",
    after=("joint.round",),
    why_kept="judges rules that declare no algorithm, and says that a wrong one accepts too much",
)
def optimal_bound(evidence: ExactEvidence, alpha: float) -> Outcome:
    """No draft tokens are accepted more often than any lossless rule can accept them.

    Why it holds: the accepted tokens x^i were drafted, which has probability Q(x^i), and begin an
    output whose law is the target's, so they have probability P(x^i) at most. Over all x^i that is
    the maximal coupling of draft and target, 1 - TV (algorithms.md sections 1.3 and 1.4).

    What breaks it: lenient tests, thresholds, ensembles, a block that goes on after a rejection. No
    algorithm need be declared. What it finds `joint.round` finds too; it adds that the speed-up is
    more than a right rule could have, and where.

    Error rate: none, held against the tolerance of the distance at each i.
    """
    round = evidence.round
    assert round is not None
    violations = []
    for i, found in enumerate(_accepted_prefixes(evidence, round), start=1):
        bound = np.minimum(
            _path_masses(round, i, target=True), _path_masses(round, i, target=False)
        )
        excess = found - bound
        if float(excess.clip(min=0).sum()) > evidence.tolerance:
            worst = int(excess.argmax())
            tokens = round.prefixes(i)[worst].tolist()
            violations.append(
                f"{tokens} is drafted and accepted with probability {found[worst]:.6g}; a lossless "
                f"rule does so with at most {bound[worst]:.6g}, the smaller of what draft and "
                "target give it"
            )
    return Outcome(violations=tuple(violations))


def _at_least(evidence: ExactEvidence, round: Round) -> list[float]:
    """Probability that at least i draft tokens are accepted, for i = 0 to K."""
    masses = evidence.joint.probabilities.items()
    return [
        math.fsum(mass for tokens, mass in masses if len(tokens) > i)
        for i in range(round.num_draft_tokens + 1)
    ]


def _accepted_prefixes(evidence: ExactEvidence, round: Round) -> list[NDArray[np.float64]]:
    """Probability that exactly these i tokens are emitted and another one after them.

    All but the last token of a round are accepted draft tokens: a rule knows no distribution that
    follows any others.

    Returns:
        For i = 1 to K a table [V^i], in the order of `Round.p`.
    """
    tables = [np.zeros(round.vocab_size**i) for i in range(1, round.num_draft_tokens + 1)]
    for tokens, mass in evidence.joint.probabilities.items():
        code = 0
        for table, token in zip(tables, tokens[:-1], strict=False):
            code = code * round.vocab_size + token
            table[code] += mass
    return tables


def _path_masses(round: Round, length: int, *, target: bool) -> NDArray[np.float64]:
    """Probability of each prefix of `length` tokens under the target or the draft, [V^length]."""
    masses = np.ones(1)
    for depth in range(length):
        rows = round.p(depth) if target else round.q(depth)
        masses = (masses[:, None] * rows).reshape(-1)
    return masses
