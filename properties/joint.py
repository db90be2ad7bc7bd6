"""Chapter joint: the distribution of what is emitted."""

import math
from dataclasses import replace

import numpy as np

from specverify.certification.decoder_case import DecoderCase
from specverify.certification.decoder_evidence import DecoderEvidence
from specverify.certification.directions import detectable_leak, directional_bounds
from specverify.certification.registry import Bound, Outcome, register
from specverify.certification.seen_from import HALF
from specverify.certification.worst_cells import compare
from specverify.sampling.token_scores import TokenScores
from specverify.statistics.bounds import samples_needed
from specverify.statistics.dirichlet import log_dirichlet
from specverify.statistics.mixture import ORDERS as ORDER_NAMES
from specverify.statistics.mixture import log_mixture
from specverify.statistics.pit import pit_band
from specverify.statistics.result import TestResult
from specverify.statistics.sequences import excess_samples_needed, tv_upper_bound_at_looks
from specverify.statistics.support import support_e_value
from specverify.subjects.protocols import GENERATING

TV_LIMIT = 6e-3
"""Largest upper bound on the first token's total variation at which a case is preserved."""
LARGEST_AGNOSTIC = 64
"""Vocabulary up to which that bound is asked for; its price grows with the vocabulary."""
SMALLEST_ETA = 1e-7
"""Relative rounding that is allowed for in recorded distributions in any case."""
SHOWN = 8
"""Parts of a mixture that are recorded, the largest first."""


@register(
    "joint.every_token",
    kinds=GENERATING,
    tests=1,
    after=("joint.round", "joint.run"),
    why_kept="decides where nothing can be computed: subjects that cannot be steered, real pairs",
)
def every_token(evidence: DecoderEvidence, alpha: float) -> Outcome:
    """Every emitted token has the target's distribution given what was emitted before it.

    Why it holds: given its prefix, each token of a lossless run is drawn from the target alone, at
    whatever place of a block it stands (algorithms.md section 0, P4). The prefix is scored by a
    fresh teacher-forced pass, never by the subject's own.

    What breaks it: every mistake that shifts probability, at one position, after rejections, or
    everywhere: the closed forms of known mistakes, leaks towards the draft, tilts, temperatures,
    and whatever moves mass along the order of q/p or of p. A stale cache does, although it agrees
    with itself.

    Error rate: one mixture e-process, at its share, valid at every look (statistics.md section 2).
    Above 64 tokens of vocabulary a case is preserved once the mass moved to where q exceeds p, by
    factors 1/2, 1 and 2, is bounded: a bound on these directions, not on total variation.
    """
    case, scores = evidence.case, evidence.tally.scores
    outcome = _bets(scores, case.slack)
    bounds = directional_bounds(scores, alpha, _directional_limit(case))
    return replace(
        outcome,
        reported=_bands(scores, alpha) if evidence.full else (),
        bounds=bounds,
        detectable=(
            detectable_leak(scores, evidence.log_threshold, case.slack) if evidence.full else None
        ),
        missing=_missing_directions(evidence, bounds, alpha),
    )


@register(
    "joint.own_distributions",
    kinds=GENERATING,
    tests=1,
    after=("joint.every_token",),
    why_kept="localises: tells mistakes of the rule from those of caches and transforms",
)
def own_distributions(evidence: DecoderEvidence, alpha: float) -> Outcome:
    """Every token has the distribution that the decoder itself recorded for it.

    Why it holds: a rule preserves whatever it is handed as p.

    What breaks it: mistakes of the rule. A wrong pass of the model does not: where this holds and
    `joint.every_token` fails, the cache, the positions or the transforms are at fault.

    Error rate: the mean of two e-processes, at its share, valid at every look: the mixture of
    `joint.every_token`, and one on tokens of recorded probability 0 beyond what coins of exactly 0
    explain. There is no second pass whose rounding had to be allowed for, only that of the record.
    """
    scores = evidence.tally.recorded
    if scores is None:
        return Outcome(not_applicable="the subject records no target_probs of its own")
    slack = math.log1p(max(SMALLEST_ETA, evidence.tally.rounding))
    outcome = _bets(scores, slack)
    test, hits = outcome.tests[0], int(scores.hits[0])
    dtype = evidence.subject.capabilities.coin_dtype
    excluded = support_e_value(hits, test.n, dtype=dtype).statistic
    log_e = float(np.logaddexp(test.statistic, excluded)) - HALF
    mixed = TestResult.of_e_process(log_e, test.n, cells=test.cells, strata=test.strata)
    leak = detectable_leak(scores, evidence.log_threshold + HALF, slack) if evidence.full else None
    parts = {name: value - HALF for name, value in outcome.details["components"].items()}
    return replace(outcome, tests=(mixed,), details={"components": parts}, detectable=leak)


@register(
    "joint.first_token",
    kinds=GENERATING,
    tests=1,
    after=("joint.every_token",),
    why_kept="bounds the total variation of the first token, whatever the deviation",
)
def first_token(evidence: DecoderEvidence, alpha: float) -> Outcome:
    """The first token of a run has the target's distribution.

    Why it holds: a lossless rule emits each token with probability min(p, q) from the draft and
    (p - q)+ from the residual, which add up to p (Leviathan et al. 2023, appendix A.1).

    What breaks it: every mistake in acceptance or residual, a draft distribution reported wrongly,
    transforms on one side only, rows of a batch mixed up.

    Error rate: a Dirichlet e-process on the counts by prompt, at its share, valid at every look.
    The bound on the total variation (mean over prompts) holds for any deviation, at each of the
    looks fixed beforehand; it fails with probability at most `alpha`.
    """
    strata = evidence.first_tokens()
    outcome = compare(
        strata,
        log_dirichlet(strata.counts, strata.laws),
        slack=evidence.case.slack,
        full=evidence.full,
        what="the first token",
        log_threshold=evidence.log_threshold,
    )
    found = tv_upper_bound_at_looks(strata.counts, strata.laws, alpha, evidence.looks)
    asked = evidence.case.target.vocab_size <= LARGEST_AGNOSTIC
    limit = TV_LIMIT if asked else None
    bound = Bound(
        "total variation of the first token", found.bound, alpha, found.n, limit, fixed_n=True
    )
    missing = None
    if asked and found.bound > TV_LIMIT and not evidence.full:
        missing = "more tokens"
    elif asked and found.bound > TV_LIMIT:
        runs = samples_needed(strata.laws, TV_LIMIT, alpha / evidence.looks)
        missing = (
            f"the bound on the first token's TV is {found.bound:.4f}, above {TV_LIMIT}; about "
            f"{runs * evidence.tokens / evidence.runs:,.0f} tokens per setting would reach it"
        )
    return replace(
        outcome,
        tv_bound=found.bound,
        bounds=(bound,),
        missing=missing,
    )


@register(
    "joint.stopped_run",
    kinds=GENERATING,
    tests=1,
    after=("joint.every_token",),
    why_kept="decides where nothing can be computed, and sees what leaves each token right",
)
def stopped_run(evidence: DecoderEvidence, alpha: float) -> Outcome:
    """The first K+2 tokens of a run, with the place where it stops, have their joint distribution.

    Why it holds: rounds compose, since each continues from committed tokens alone, and stopping
    looks at emitted tokens only (algorithms.md section 0, P3 and P9).

    What breaks it: wrong bonus tokens, coins or noise shared between positions, stale caches and
    histories, stops seen late; most of these leave the first token right.

    Error rate: a Dirichlet e-process on the runs by cell and prompt, at its share, valid at every
    look. Cells are fixed beforehand, by expected counts alone.
    """
    strata = evidence.joint()
    log_e = log_dirichlet(strata.counts, strata.laws) if strata.counts else 0.0
    depth = evidence.tallies[0].tree.length
    return compare(
        strata,
        log_e,
        slack=depth * evidence.case.slack,
        full=evidence.full,
        what="the cells of a run",
        log_threshold=evidence.log_threshold,
    )


@register(
    "joint.each_position",
    kinds=GENERATING,
    tests=1,
    after=("joint.every_token",),
    why_kept="needs no idea of the mistake, and names the position",
)
def each_position(evidence: DecoderEvidence, alpha: float) -> Outcome:
    """At every position of a run the token has the target's distribution given what came before.

    Why it holds: given the tokens before it, each token of a lossless run is drawn from the target
    alone, at whatever place of a block it stands (algorithms.md section 0, P4).

    What breaks it: the same mistakes as in every token. This one needs no idea of what they look
    like, and finds those that return in the same context.

    Error rate: an e-process that learns from earlier shards how each token is raised or lowered, by
    position and preceding token, at its share, valid at every look (`statistics.tilt`).
    """
    return compare(
        evidence.each_position(),
        evidence.log_positions,
        slack=evidence.case.slack,
        full=evidence.full,
        what="a token, given its position and the one before",
        log_threshold=evidence.log_threshold,
        learned=evidence.shards,
    )


def _bets(scores: TokenScores, slack: float) -> Outcome:
    mixture = log_mixture(scores.sums(), scores.bets, slack=slack)
    largest = sorted(mixture.components.items(), key=lambda item: -item[1])[:SHOWN]
    result = TestResult.of_e_process(
        mixture.log_e, int(scores.n.sum()), cells=len(mixture.components), strata=scores.strata
    )
    return Outcome(tests=(result,), details={"components": dict(largest)})


def _bands(scores: TokenScores, alpha: float) -> tuple[TestResult, ...]:
    """The randomised PIT in every order against its simultaneous band."""
    found = []
    for order, counts in zip(ORDER_NAMES, scores.fine, strict=True):
        band = pit_band(counts, alpha)
        n = int(counts.sum())
        found.append(TestResult(f"band {order}", band.distance, 0, band.p_value, n, len(counts)))
    return tuple(found)


def _directional_limit(case: DecoderCase) -> float | None:
    return case.leak_limit if case.target.vocab_size > LARGEST_AGNOSTIC else None


def _missing_directions(
    evidence: DecoderEvidence, bounds: tuple[Bound, ...], alpha: float
) -> str | None:
    over = [bound for bound in bounds if bound.limit is not None and bound.value > bound.limit]
    if not over:
        return None
    if not evidence.full:
        return "more tokens"
    worst = max(over, key=lambda bound: bound.value)
    limit = evidence.case.leak_limit
    variance = max(half[1] for half in evidence.tally.scores.halves) / max(worst.n, 1)
    needed = excess_samples_needed(limit, worst.alpha, min(0.25, variance))
    return (
        f"{worst.name} is at most {worst.value:.4f}, above {limit:g}; about {needed:,} tokens per "
        "setting would reach it"
    )
