"""Chapter proposal: the q that is reported is the q that was sampled."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specverify.certification.probes.decoder_trial import DecoderTrial
from specverify.certification.probes.sampled_runs import reported_runs
from specverify.certification.probes.world import World, small_tables
from specverify.certification.registry import Outcome, register, takes_tiny_models
from specverify.certification.seen_from import HALF, threshold_of
from specverify.certification.worst_cells import Strata, compare
from specverify.decoding.output import DecoderOutput
from specverify.settings import SamplingSettings
from specverify.statistics.cells import log_cells
from specverify.subjects.protocols import DECODERS

UNREPORTED_DRAFTS = (
    "the subject does not report its draft tokens with the distributions they were drawn from"
)

VOCAB_SIZE, TOKENS, NUM_DRAFT_TOKENS = 5, 4, 2
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "filtered": {"temperature": 0.7, "top_k": 3},
}
"""With transforms there is a raw q to be reported by mistake."""

SUM_TOLERANCE = 1e-2
"""How far from 1 the sum of a reported q may be: half-width ones are."""
ALIKE = 3
"""Decimals in which reported distributions agree that are taken for one."""


@dataclass(frozen=True)
class Drafts:
    """All N draft tokens of some runs."""

    tokens: NDArray[np.int64]
    """[N]."""
    q: NDArray[np.float64]
    """[N, V], what was reported for each."""
    before: NDArray[np.int64]
    """[N], the draft tokens before it in its block, as a number in base V + 1 that begins with a
    1."""

    @property
    def own(self) -> NDArray[np.float64]:
        """Reported probability of each token, [N]."""
        return self.q[np.arange(len(self.tokens)), self.tokens]


@register(
    "proposal.reported_q",
    kinds=DECODERS,
    tests=1,
    evidence="probed",
    inputs=tuple(SETTINGS),
    needs=takes_tiny_models,
    why_kept="localises: says that the draft, and not the rule, is at fault",
)
def reported_q(trial: DecoderTrial, alpha: float) -> Outcome:
    """Draft tokens are drawn from the distributions that are reported for them.

    Why it holds: acceptance and residual make up for the q they are given, whatever it is, and for
    no other (Leviathan et al. 2023, appendix A.1).

    What breaks it: the most likely draft token reported with its whole softmax, a q taken before
    top-k or at another temperature, tokens chosen or dropped after they were drawn, a q of another
    position. A decoder may report wrongly what it uses rightly: then only its report is wrong, and
    is to be mended or left out.

    Error rate: a Dirichlet e-process over groups of draft tokens with the same q and the same draft
    tokens before them, and one on tokens with q = 0 beyond what coins of exactly 0 explain,
    together at its share, valid at every look. None where a row is no distribution.
    """
    world = _world(trial.input)
    if (refused := world.refused_by(trial.subject)) is not None:
        return Outcome(not_applicable=refused)
    runs = reported_runs(trial, world, _unreported)
    if isinstance(runs, str):
        return Outcome(not_applicable=runs)
    drafts = _drafts(runs)
    if (wrong := _no_distribution(drafts)) is not None:
        return Outcome(violations=(wrong,))
    strata, hits = _strata(drafts), int((drafts.own == 0).sum())
    dtype, n = trial.subject.capabilities.coin_dtype, len(drafts.tokens)
    threshold = threshold_of(alpha)
    outcome = compare(
        strata,
        log_cells(strata.counts, strata.laws, n, dtype=dtype, hits=hits),
        what="the draft tokens",
        log_threshold=None if threshold is None else threshold + HALF,
    )
    return replace(outcome, findings=(_impossible(drafts),)) if hits else outcome


def _world(name: str) -> World:
    target, draft = small_tables(VOCAB_SIZE)
    settings = SamplingSettings(max_new_tokens=TOKENS)
    return World(target, draft, settings, num_draft_tokens=NUM_DRAFT_TOKENS).under(**SETTINGS[name])


def _unreported(output: DecoderOutput) -> str | None:
    reported = output.draft_tokens is not None and output.draft_probs is not None
    return None if reported else UNREPORTED_DRAFTS


def _drafts(output: DecoderOutput) -> Drafts:
    assert output.draft_tokens is not None
    assert output.draft_probs is not None
    tokens = output.draft_tokens.cpu().numpy()
    q = output.draft_probs.double().cpu().numpy()
    before = np.ones_like(tokens)
    for place in range(1, tokens.shape[2]):
        before[:, :, place] = before[:, :, place - 1] * (q.shape[3] + 1) + tokens[:, :, place - 1]
    offered = tokens >= 0
    return Drafts(tokens[offered], q[offered], before[offered])


def _no_distribution(drafts: Drafts) -> str | None:
    sums = drafts.q.sum(1)
    # NaN is no distribution either, and compares false.
    right = (drafts.q >= 0).all(1) & (np.abs(sums - 1) <= SUM_TOLERANCE)
    if right.all():
        return None
    row = int(np.flatnonzero(~right)[0])
    shown = ", ".join(f"{x:.4g}" for x in drafts.q[row])
    return (
        f"{int((~right).sum()):,} of {len(right):,} reported q are no distributions, such as "
        f"[{shown}], which sums to {sums[row]:.4g}"
    )


def _impossible(drafts: Drafts) -> str:
    hits = np.flatnonzero(drafts.own == 0)
    shown = ", ".join(f"{x:.4g}" for x in drafts.q[hits[0]])
    return (
        f"{len(hits):,} of {len(drafts.tokens):,} draft tokens have probability 0 under the q "
        f"reported for them, such as token {int(drafts.tokens[hits[0]])} under [{shown}]"
    )


def _strata(drafts: Drafts) -> Strata:
    """Draft tokens by the reported q and by those before them in the block.

    Both are fixed before the token is drawn. Distributions that agree up to rounding are one, that
    of their mean, which is what their tokens are drawn from on average.
    """
    size = drafts.q.shape[1]
    keys = np.column_stack([drafts.before, np.rint(drafts.q * 10**ALIKE).astype(np.int64)])
    _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    sums = np.zeros((len(first), size))
    np.add.at(sums, group, drafts.q)
    cells = np.bincount(group * size + drafts.tokens, minlength=len(first) * size)
    counts = cells.reshape(-1, size)
    laws = sums / sums.sum(1, keepdims=True)
    before = [_digits(int(drafts.before[row]), size + 1) for row in first]

    def label(stratum: int, cell: int) -> str:
        return f"draft token {cell} after the draft tokens {before[stratum]}"

    return Strata(list(counts), list(laws), label)


def _digits(number: int, base: int) -> list[int]:
    """Digits after the leading 1."""
    digits = []
    while number > 1:
        number, digit = divmod(number, base)
        digits.append(digit)
    return digits[::-1]
