"""Chapter support: what can never be emitted."""

import math

from specverify.certification.decoder_evidence import DecoderEvidence
from specverify.certification.exact_evidence import ExactEvidence
from specverify.certification.exact_outcome import exact_numbers
from specverify.certification.registry import (
    Bound,
    Detectable,
    Outcome,
    register,
    takes_tiny_models,
)
from specverify.exact.edge_coins import EdgeSummary
from specverify.statistics.sequences import rate_upper_bound_at_looks
from specverify.statistics.support import detectable_rate, support_e_value
from specverify.subjects.protocols import GENERATING, RULES

COIN_BITS = {"float64": 53, "float32": 24, "bfloat16": 8, "float16": 11}
"""A coin of exactly 0 has probability 2^-bits: all of float32 and float64 are that far apart,
half-width ones are rounded to it."""


@register(
    "support.impossible_tokens",
    kinds=GENERATING,
    tests=1,
    after=("joint.every_token",),
    why_kept="decides where nothing can be computed, at any vocabulary",
)
def impossible_tokens(evidence: DecoderEvidence, alpha: float) -> Outcome:
    """No emitted token has probability 0 under the target and the settings.

    Why it holds: a token with p = 0 is neither accepted (its ratio p/q is 0) nor in the residual
    or the bonus distribution.

    What breaks it: transforms applied to some rows only, a mask that lags behind, stale stops. A
    closed comparison `u <= p/q` lets p = 0 through when u is exactly 0: hits up to the rate of
    such coins are a finding, not a violation (statistics.md section 6).

    Error rate: an e-process on the hits against that floor, at its share, valid at every look. The
    bound on the share of runs with such a token (Clopper and Pearson 1934; runs are independent)
    holds at each of the looks fixed beforehand, and fails with probability at most `alpha`.
    """
    hits = sum(tally.impossible for tally in evidence.tallies)
    dtype = evidence.subject.capabilities.coin_dtype
    test = support_e_value(hits, evidence.tokens, dtype=dtype)
    examples = [
        {"prompt": list(evidence.case.prompts[i]), "emitted": tally.impossible_example}
        for i, tally in enumerate(evidence.tallies)
        if tally.impossible_example is not None
    ]
    findings = ()
    if hits:
        findings = (f"{hits} of {evidence.tokens:,} tokens have probability 0, e.g. {examples[0]}",)
    share = math.exp(-evidence.log_threshold)
    rate = detectable_rate(evidence.tokens, share, dtype=dtype) if 0 < share < 1 else None
    # Of several hits in a run one would count: taking all can only raise the bound.
    most = rate_upper_bound_at_looks(min(hits, evidence.runs), evidence.runs, alpha, evidence.looks)
    return Outcome(
        tests=(test,),
        bounds=(Bound("runs with an impossible token", most, alpha, evidence.runs, fixed_n=True),),
        findings=findings,
        detectable=None if rate is None else Detectable(rate, "rate of impossible tokens"),
        details={"examples": examples},
    )


@register(
    "support.nothing_outside",
    kinds=GENERATING,
    evidence="exact",
    needs=takes_tiny_models,
    lossy=True,
    after=("joint.round", "joint.run"),
    why_kept="localises: lists the tokens that cannot be, with their exact mass",
)
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
    details = {"exact": exact_numbers(evidence.comparison, evidence.joint, evidence.tolerance)}
    if mass > evidence.tolerance:
        return Outcome(violations=(said,), details=details)
    return Outcome(findings=(said + _coin_of_zero(evidence, mass),), details=details)


@register(
    "support.edge_coins",
    kinds=RULES,
    evidence="exact",
    after=("joint.round",),
    why_kept="meets coins that no sampling will: 0, and the neighbours of every threshold",
)
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


def _coin_of_zero(evidence: ExactEvidence, mass: float) -> str:
    """The usual cause, where the mass is small enough for it."""
    bits = COIN_BITS.get(evidence.subject.capabilities.coin_dtype, 24)
    decisions = 1 + max(map(len, evidence.joint.probabilities), default=0)
    if mass > decisions * 2.0**-bits:
        return ""
    return "; a comparison u <= p / q lets them through where a coin is exactly 0"
