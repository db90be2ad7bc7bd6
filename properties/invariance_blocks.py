"""Chapter invariance, to the number of draft tokens a round offers.

A subject is handed one K a call. Block lengths that change within a run or between rows are the
subject's own affair: no protocol asks a rule for ragged blocks or a decoder for a schedule, and a
decoder that has one must pass here as any other.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from specverify.certification.probes.decoder_trial import DecoderTrial
from specverify.certification.probes.rule_trial import RuleTrial
from specverify.certification.probes.suited import refusal, suited_round, suited_world
from specverify.certification.probes.world import World, small_tables
from specverify.certification.registry import Outcome, register, takes_tiny_models
from specverify.exact.conditional import Conditional
from specverify.exact.round import Round
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import DECODERS, RULES

LENGTHS_OF_RULE = ("K0", "K1", "K2", "K3", "K5", "K6", "K1-after-K3", "K3-after-K1")
"""K of the round; after another K, where the rule has decided such a round before."""
LENGTHS = ("K0", "K1", "K2", "K3", "K6", "K6-of-7", "K2-after-K1")
"""K for a run of 3 tokens, 7 where it is said; longer blocks than that must be cut."""
_TOKENS = 3
_CERTAIN = ("K2", "K3", "K6", "K2-after-K1")
"""Where the draft is certain of its tokens, since every doubt doubles the paths of a run."""
_THINNED = 4


@register(
    "invariance.block_length_of_rule",
    kinds=RULES,
    tests=1,
    evidence="probed",
    inputs=LENGTHS_OF_RULE,
    after=(
        "joint.round in exact/random-V3-K1-float64",
        "joint.round in exact/random-V3-K2-float64",
    ),
    lossy=True,
)
def block_length_of_rule(trial: RuleTrial, alpha: float) -> Outcome:
    """Whatever the number of draft tokens is, one round has the target's joint distribution.

    A round without draft tokens is not decided by every rule: one that raises is not asked.

    Why it holds: a rule decides position after position, each by its own rows and its own coin.

    What breaks it: buffers, loops and coins of a fixed width, a K kept from an earlier call.

    Error rate: none where the round is computed; otherwise an e-process at its share.
    """
    length, before = _lengths(trial.input)
    what = f"one round of {length} draft tokens"
    round = _round(length, trial)
    if before is not None:
        earlier = _round(before, trial)
        trial.call(*earlier.inputs(earlier.blocks), trial.generator(1))
        what += f", after one of {before},"
    if length == 0:
        given = round.inputs(round.blocks)
        said = refusal(lambda: trial.call(*given, trial.generator(1)))
        if said is not None:
            return Outcome(not_applicable=f"the rule refuses a round without draft tokens: {said}")
    return trial.follows(round, what)


@register(
    "invariance.block_length",
    kinds=DECODERS,
    tests=1,
    evidence="probed",
    inputs=LENGTHS,
    needs=takes_tiny_models,
    after=("joint.run in exact/plain",),
    why_kept="localises: names the block length at which runs are wrong",
)
def block_length(trial: DecoderTrial, alpha: float) -> Outcome:
    """Whatever the number of draft tokens a round is, a run has the target's distribution.

    K may be larger than what is left of the run. K = 0 asks for no drafts at all: a decoder that
    answers must be right, one that raises refuses and emits nothing wrong.

    Why it holds: every round does, whatever K is (algorithms.md section 0, P2).

    What breaks it: a block that runs past the end, coins or buffers of a fixed width, a loop that
    is another one without drafts, a K kept from an earlier call.

    Error rate: none where the run is computed; otherwise an e-process at its share.
    """
    length, before = _lengths(trial.input.removesuffix("-of-7"))
    world = _long_world() if trial.input.endswith("-of-7") else _short_world(length, trial.input)
    world = suited_world(world, trial.subject)
    what = f"a run with num_draft_tokens={length}"
    if before is not None:
        trial.generate(replace(world, num_draft_tokens=before), trial.generator(1))
        what += f", after one with {before},"
    if length == 0 and world.refused_by(trial.subject) is None:
        said = refusal(lambda: trial.generate(world, trial.generator(1)))
        if said is not None:
            return Outcome(not_applicable=f"the subject refuses num_draft_tokens=0: {said}")
    return trial.follows(world, what)


def _lengths(input: str) -> tuple[int, int | None]:
    """K, and K of the call before."""
    now, _, before = input.partition("-after-")
    return int(now[1:]), int(before[1:]) if before else None


def _round(length: int, trial: RuleTrial) -> Round:
    """A round at V = 2.

    From K = 4 on the draft is certain of all but its first and its last two tokens: 8 blocks, which
    a rule that takes one row a call decides in reasonable time too.
    """
    round = Round.random(2, length, seed=11)
    if length >= _THINNED:
        round = replace(round, draft=_certain_inside(round.draft, length))
    return suited_round(round, trial.subject)


def _certain_inside(draft: Conditional, length: int) -> Conditional:
    def rows(prefixes: NDArray[np.int64]) -> NDArray[np.float64]:
        q = np.asarray(draft(prefixes), np.float64)
        return np.eye(2)[q.argmax(1)] if 1 <= prefixes.shape[1] < length - 2 else q

    return rows


def _short_world(length: int, input: str) -> World:
    target, draft = small_tables(2)
    if input in _CERTAIN:
        kept = draft.logits == draft.logits.amax(1, keepdim=True)
        draft = TableModel(torch.where(kept, 0.0, -torch.inf), draft.order)
    settings = SamplingSettings(max_new_tokens=_TOKENS)
    return World(target, draft, settings, num_draft_tokens=length)


def _long_world() -> World:
    """A run of 7 tokens, of which the first, the fifth and the last are chosen from two.

    Every position has tokens of its own and the draft is certain of all, so few paths see a whole
    block of 6 and what follows it.
    """
    follow = {0: (2,), 1: (2,), 2: (3,), 3: (4,), 4: (5, 6), 5: (7,), 6: (7,), 7: (0, 1)}
    follow[8] = (0, 1)  # the prompt
    target = _chain(follow, {4: 0.35, 7: 0.2, 8: 0.6})
    draft = _chain(follow, dict.fromkeys(follow, 1.0))
    settings = SamplingSettings(max_new_tokens=7)
    return World(target, draft, settings, prompts=((8,),), num_draft_tokens=6)


def _chain(follow: dict[int, tuple[int, ...]], first: dict[int, float]) -> TableModel:
    """A table of order 1: what may follow each token, and with which probability the first does."""
    size = len(follow)
    probs = torch.full((size + 1, size), 1 / size, dtype=torch.float64)
    probs[:size] = 0
    for token, choices in follow.items():
        mass = first.get(token, 1.0)
        probs[token, choices[-1]] = 1 - mass
        probs[token, choices[0]] = mass
    return TableModel(probs.log(), 1)
