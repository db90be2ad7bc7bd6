"""Chapter invariance, to the draft: it may change the cost and never the distribution."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from specverify.certification.probes.decoder_trial import DecoderTrial
from specverify.certification.probes.rule_trial import RuleTrial
from specverify.certification.probes.suited import suited_round, suited_world
from specverify.certification.probes.world import World, small_tables
from specverify.certification.registry import Outcome, register, takes_tiny_models
from specverify.exact.conditional import Conditional
from specverify.exact.round import Round
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import DECODERS, RULES

Rows = NDArray[np.float64]

DRAFTS = ("target", "one-hot", "unlikely", "uniform", "disjoint", "hotter", "colder")
"""What the draft is: the target itself, its most or its least likely token, all tokens alike, what
the target excludes, and the target at twice and at half the temperature."""
_LONGER = ("target", "hotter")
_POWERS = {"hotter": 0.5, "colder": 2.0}


@register(
    "invariance.draft_of_rule",
    kinds=RULES,
    tests=1,
    evidence="probed",
    inputs=DRAFTS,
    after=("joint.round in exact/random-V3-K2-float64",),
    lossy=True,
    why_kept="localises: names the draft under which a rule is wrong",
)
def draft_of_rule(trial: RuleTrial, alpha: float) -> Outcome:
    """Whatever the draft is, one round has the target's joint distribution.

    Why it holds: acceptance and residual make up for any q (Leviathan et al. 2023, appendix A.1).

    What breaks it: a rule that is right for the drafts it was tried with only, such as one-hot
    ones, or those close to the target.

    Error rate: none where the round is computed; otherwise an e-process at its share.
    """
    round = suited_round(Round.random(3, 2, seed=11), trial.subject)
    changed = replace(
        round,
        target=_row_by_row(round.target, trial.input, 0),
        draft=_row_by_row(round.target, trial.input, 1),
    )
    return trial.follows(changed, f"one round with the draft {trial.input!r}")


@register(
    "invariance.draft",
    kinds=DECODERS,
    tests=1,
    evidence="probed",
    inputs=DRAFTS,
    needs=takes_tiny_models,
    after=("joint.run in exact/plain",),
    why_kept="localises: names the draft under which runs are wrong",
)
def draft(trial: DecoderTrial, alpha: float) -> Outcome:
    """Whatever the draft is, a run has the target's distribution.

    Two tokens, the second of which is a bonus token, or follows a correction; over two token ids
    three, so that a token behind the bonus token is seen.

    Why it holds: every round does (`invariance.draft_of_rule`), and rounds compose.

    What breaks it: a loop that takes the draft's word where the two agree, or fails where they
    share no token.

    Error rate: none where the run is computed; otherwise an e-process at its share.
    """
    size, length = (2, 3) if trial.input in _LONGER else (3, 2)
    settings = SamplingSettings(max_new_tokens=length)
    world = World(*small_tables(size), settings, num_draft_tokens=1)
    rows = _changed(world.target.logits.softmax(1).numpy(), trial.input)
    target, drafted = (TableModel(torch.from_numpy(p).log(), world.target.order) for p in rows)
    changed = suited_world(replace(world, target=target, draft=drafted), trial.subject)
    return trial.follows(changed, f"a run with the draft {trial.input!r}")


def _row_by_row(target: Conditional, kind: str, which: int) -> Conditional:
    def rows(prefixes: NDArray[np.int64]) -> Rows:
        return _changed(np.asarray(target(prefixes), np.float64), kind)[which]

    return rows


def _changed(p: Rows, kind: str) -> tuple[Rows, Rows]:
    """Rows [N, V] of a target and a draft, from those of a target."""
    size = p.shape[1]
    if kind == "one-hot":
        return p, np.eye(size)[p.argmax(1)]
    if kind == "unlikely":
        return p, np.eye(size)[p.argmin(1)]
    if kind == "uniform":
        return p, np.full_like(p, 1 / size)
    if kind == "disjoint":
        # The target loses its least likely token, which is the only one that is drafted.
        apart = np.eye(size)[p.argmin(1)]
        return _normalised(p * (1 - apart)), apart
    if kind == "target":
        return p, p
    return p, _normalised(p ** _POWERS[kind])


def _normalised(weights: Rows) -> Rows:
    return weights / weights.sum(1, keepdims=True)
