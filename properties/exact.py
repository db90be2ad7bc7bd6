"""Chapter exact: distributions computed without sampling, where a subject can be steered."""

import math
from dataclasses import replace

from specverify.certification.exact_evidence import ExactEvidence
from specverify.certification.registry import Outcome, register
from specverify.exact.edge_coins import EdgeSummary
from specverify.exact.enumerate import acceptance_distribution
from specverify.subjects.protocols import GENERATING, Kind, Subject

RULES: frozenset[Kind] = frozenset({"rule"})
DECODERS: frozenset[Kind] = frozenset({"decoder"})
TRANSFORMS: frozenset[Kind] = frozenset({"transform"})

WITH_ACCEPTANCE = ("greedy", "token", "block", "match")
"""Algorithms whose acceptance has a closed form."""

COIN_BITS = {"float64": 53, "float32": 24, "bfloat16": 8, "float16": 11}
"""A coin of exactly 0 has probability 2^-bits: all of float32 and float64 are that far apart,
half-width ones are rounded to it."""


@register("exact.round", kinds=RULES, evidence="exact")
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


@register("exact.run", kinds=DECODERS, evidence="exact")
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


@register("exact.transformed_round", kinds=TRANSFORMS, evidence="exact")
def transformed_round(evidence: ExactEvidence, alpha: float) -> Outcome:
    """One round of token verification behind the transform follows the transformed target.

    Why it holds: verification preserves whatever rows it is handed as p; the transform makes them
    after every prefix, from the history that holds the draft tokens before.

    What breaks it: a transform that computes something else than its reference, at the size that
    this has in the output. One that mixes up the rows of a call may be right on each row alone,
    where it cannot be followed otherwise: a finding.

    Error rate: none, held against 1e-6: a transform is handed float32 logits.
    """
    outcome = _distance(evidence, "one round, completed to K+1 tokens,")
    if not evidence.joint.rows_depend:
        return outcome
    alone = f"is followed only with one row a call: {evidence.joint.alone}"
    return replace(outcome, findings=(alone,))


@register("exact.support", kinds=GENERATING, evidence="exact")
def support(evidence: ExactEvidence, alpha: float) -> Outcome:
    """Nothing is emitted, with any probability, that the target cannot produce.

    Why it holds: a token with p = 0 is neither accepted nor in the residual.

    What breaks it: a residual kept above an epsilon, closed comparisons with coins that can be 0,
    runs that end in the wrong place. Mass up to the tolerance of the distance is a finding.

    Error rate: none.
    """
    outside = evidence.comparison.outside_support
    if not outside:
        return Outcome()
    mass = math.fsum(outside.values())
    example, most = next(iter(outside.items()))
    said = (
        f"the target excludes tokens that are emitted with probability {mass:.3g}, such as "
        f"{list(example)} with {most:.3g}"
    )
    details = {"exact": _numbers(evidence)}
    if mass > evidence.tolerance:
        return Outcome(violations=(said,), details=details)
    return Outcome(findings=(said + _coin_of_zero(evidence, mass),), details=details)


def _declares_acceptance(subject: Subject) -> str | None:
    if subject.capabilities.algorithm in WITH_ACCEPTANCE:
        return None
    return "the subject declares no algorithm whose acceptance has a closed form"


@register("exact.acceptance", kinds=RULES, evidence="exact", needs=_declares_acceptance)
def acceptance(evidence: ExactEvidence, alpha: float) -> Outcome:
    """As many draft tokens are accepted as under the declared algorithm.

    Why it holds: the distribution of the accepted length is part of the algorithm (algorithms.md
    section 0, P5), and every round ends with a correction or a bonus token.

    What breaks it: draft tokens rejected for no reason, which costs time and leaves the output
    right; a correction dropped or a bonus token left out.

    Error rate: none, held against the tolerance of the distance.
    """
    if evidence.joint.crashes:
        return Outcome(not_applicable="some calls raise, so that not all lengths are known")
    algorithm, round = evidence.subject.capabilities.algorithm, evidence.round
    assert algorithm is not None
    assert round is not None
    violations = []
    for i, expected in enumerate(acceptance_distribution(algorithm, round).tolist()):
        masses = evidence.joint.probabilities.items()
        found = math.fsum(mass for tokens, mass in masses if len(tokens) > i)
        if abs(found - expected) > evidence.tolerance:
            violations.append(
                f"at least {i} draft tokens are accepted with probability {found:.6g}, and under "
                f"{algorithm!r} with {expected:.6g}"
            )
    return Outcome(violations=tuple(violations))


@register("exact.randomness", kinds=GENERATING, evidence="exact")
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


@register("exact.edge_coins", kinds=RULES, evidence="exact")
def edge_coins(evidence: ExactEvidence, alpha: float) -> Outcome:
    """A coin of 0, the largest one below 1 or one next to a threshold decides like its neighbours.

    Why it holds: coins are numbers of a grid, and each of its values will be drawn one day; what a
    path emits holds for all coins that take it, the first and the last included.

    What breaks it: a comparison u <= p / q that lets u = 0 through where p is 0, a search that runs
    past the end of a cumulative sum, the logarithm of 0. Mass up to the tolerance of the dtype is a
    finding, with the line that draws the coin.

    Error rate: none. The rule is run with these coins, not steered; what it emits must be possible
    for the target, and what steering says of the path.
    """
    if evidence.edges is None:
        return Outcome(asked=False)
    if evidence.edges.unknown is not None:
        return Outcome(not_applicable=evidence.edges.unknown)
    violations, findings = [], []
    for entry in evidence.edges.outcomes:
        # A path that raises whatever the coin is known by its mass, see `JointDistribution`.
        if entry.kind == "right" or entry.coin == "any":
            continue
        said = _edge(entry)
        fails = entry.kind == "violation"
        fails |= entry.kind == "crash" and entry.mass > evidence.tolerance
        (violations if fails else findings).append(said)
    # Where whole paths are wrong, their ends are no news.
    return Outcome(violations=tuple(violations), findings=() if violations else tuple(findings))


def _edge(entry: EdgeSummary) -> str:
    """What a coin leads to, with its mass and the line that draws it."""
    example = entry.example
    what = example.detail.removeprefix("SubjectError: ").partition("\n")[0]
    coin = "with its coins inside their intervals" if entry.coin == "inside" else entry.coin
    if example.element is not None:
        coin = f"with {entry.coin} as coin {example.element}"
    drawn = f", drawn at {entry.line}" if entry.line else ""
    return (
        f"{coin}, with probability {entry.mass:.3g}: {what}, after the draft tokens "
        f"{list(example.block)}{drawn}"
    )


def _distance(evidence: ExactEvidence, what: str) -> Outcome:
    certain = evidence.comparison.certain
    violations = ()
    if certain > evidence.tolerance:
        violations = (
            f"{what} is {certain:.6g} in TV from the target, over {evidence.case.size}; right "
            f"ones stay below {evidence.tolerance:g}",
        )
    return Outcome(violations=violations, details={"exact": _numbers(evidence)})


def _numbers(evidence: ExactEvidence) -> dict:
    compared, joint = evidence.comparison, evidence.joint
    return {
        "total_variation": compared.total_variation,
        "tolerance": evidence.tolerance,
        "largest_ratio": compared.largest_ratio,
        "outside_support": math.fsum(compared.outside_support.values()),
        "crashing": compared.missing,
        "method": joint.method,
        "runs": joint.runs,
        "worst": [entry._asdict() for entry in compared.worst],
    }


def _coin_of_zero(evidence: ExactEvidence, mass: float) -> str:
    """The usual cause, where the mass is small enough for it."""
    bits = COIN_BITS.get(evidence.subject.capabilities.coin_dtype, 24)
    decisions = 1 + max(map(len, evidence.joint.probabilities), default=0)
    if mass > decisions * 2.0**-bits:
        return ""
    return "; a comparison u <= p / q lets them through where a coin is exactly 0"
