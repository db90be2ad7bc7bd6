"""Chapter vocabulary: target and draft need not have the same tokens, nor the same ids for them.

A rule is handed rows of one width, so a draft that lacks tokens is all it can be asked about. A
decoder is told by the vocabularies of its models which ids mean the same; where it takes
transformers models only, those come without a tokenizer.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from specverify.certification.probes.decoder_trial import DecoderTrial
from specverify.certification.probes.rule_trial import RuleTrial
from specverify.certification.probes.suited import refusal, refuses, suited_round, suited_world
from specverify.certification.probes.world import World
from specverify.certification.registry import Outcome, register, takes_tiny_models
from specverify.errors import SubjectError
from specverify.exact.conditional import Conditional
from specverify.exact.round import Round
from specverify.models.table import TableModel
from specverify.models.vocabulary import Vocabulary
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import DECODERS, RULES, Subject

LACKING = ("first", "last")
"""Tokens that the draft never proposes."""
WIDER = ("target", "draft")
"""Whose logits have columns that no token stands behind."""
PERMUTED = ("rotated", "reversed")
_NAMES = ("a", "b", "c")
_IDS = {"rotated": (1, 2, 0), "reversed": (2, 1, 0)}
_PADDING = 1
_NO_TOKENIZER = "it takes transformers models, which are handed over without a tokenizer here"


@register(
    "vocabulary.lacking_draft_of_rule",
    kinds=RULES,
    tests=1,
    evidence="probed",
    inputs=LACKING,
    after=("joint.round in exact/random-V3-K1-float64",),
    lossy=True,
    why_kept="asks a kernel about translated vocabularies, where a draft lacks tokens always",
)
def lacking_of_rule(trial: RuleTrial, alpha: float) -> Outcome:
    """A draft that lacks tokens changes nothing of what a round emits.

    Why it holds: the residual gives a token with q = 0 all of its p.

    What breaks it: a residual over the draft's tokens, ratios or logarithms of 0 that turn into
    NaN, an id of the shorter list used in the longer one.

    Error rate: none where the round is computed; otherwise an e-process at its share.
    """
    round = Round.random(4, 2, seed=14)
    round = suited_round(replace(round, draft=_without(round.draft, trial.input)), trial.subject)
    return trial.follows(round, f"one round with a draft that lacks the {trial.input} of 4 tokens")


@register(
    "vocabulary.lacking_draft",
    kinds=DECODERS,
    tests=1,
    evidence="probed",
    inputs=LACKING,
    needs=takes_tiny_models,
    after=("joint.run in exact/plain",),
    why_kept="asks a loop about translated vocabularies, where a draft lacks tokens always",
)
def lacking(trial: DecoderTrial, alpha: float) -> Outcome:
    """A draft that lacks tokens, at logits of -inf, changes nothing of what a run emits.

    Why it holds: every round does (`vocabulary.lacking_draft_of_rule`); the draft reads tokens that
    it would not propose like all others.

    What breaks it: the draft's mask applied to the target, a draft that is not shown what it lacks.

    Error rate: none where the run is computed; otherwise an e-process at its share.
    """
    world = World(settings=SamplingSettings(max_new_tokens=2), num_draft_tokens=1)
    logits = world.draft.logits.clone()
    logits[:, _lacked(trial.input, logits.shape[1])] = -torch.inf
    changed = replace(world, draft=TableModel(logits, world.draft.order))
    what = f"a run with a draft that lacks the {trial.input} of 3 tokens"
    return trial.follows(suited_world(changed, trial.subject), what)


@register(
    "vocabulary.padded_logits",
    kinds=DECODERS,
    tests=1,
    evidence="probed",
    inputs=WIDER,
    needs=takes_tiny_models,
    after=("joint.run in exact/plain",),
    why_kept="tries models whose logits are wider than the other's, as real pairs are",
)
def padded_logits(trial: DecoderTrial, alpha: float) -> Outcome:
    """A target or a draft whose logits are wider than the other's is decoded as it is, or refused.

    The columns behind the last token have mass, as untrained ones have. The target's are part of
    its distribution; the draft's can be no token of the target.

    Why it holds: what the draft lacks has q = 0, what the target lacks has p = 0.

    What breaks it: the target's logits cut to the draft's width, a q that is cut and not
    normalised again.

    Error rate: none where the run is computed; otherwise an e-process at its share. A subject that
    refuses such a pair is not judged.
    """
    narrow, wide = Vocabulary(_NAMES), Vocabulary((*_NAMES, *[None] * _PADDING))
    target, draft = (wide, narrow) if trial.input == "target" else (narrow, wide)
    world = _named_world(_named(target, seed=31), _named(draft, seed=32), trial.subject)
    what = f"a run with {_PADDING} more column in the {trial.input}'s logits"
    return _follows_or_refuses(trial, world, what)


@register(
    "vocabulary.permuted_draft",
    kinds=DECODERS,
    tests=1,
    evidence="probed",
    inputs=PERMUTED,
    needs=takes_tiny_models,
    after=("joint.run in exact/plain",),
    why_kept="tries a draft that numbers tokens otherwise, as real pairs do",
)
def permuted_draft(trial: DecoderTrial, alpha: float) -> Outcome:
    """A draft that numbers the same tokens otherwise changes nothing of what a run emits.

    Why it holds: tokens and q are mapped by one permutation; a decoder that maps neither has a
    poor draft, and is right as well.

    What breaks it: tokens mapped and q left as it is, or the other way round.

    Error rate: none where the run is computed; otherwise an e-process at its share. A subject that
    refuses such a pair is not judged.
    """
    if not trial.takes_tables:
        return Outcome(not_applicable=_NO_TOKENIZER)
    names = tuple(_NAMES[i] for i in _IDS[trial.input])
    target = _named(Vocabulary(_NAMES), seed=33)
    world = _named_world(target, _named(Vocabulary(names), seed=34), trial.subject)
    return _follows_or_refuses(trial, world, f"a run with a draft of {trial.input} ids")


def _follows_or_refuses(trial: DecoderTrial, world: World, what: str) -> Outcome:
    if world.refused_by(trial.subject) is None:
        said = refusal(lambda: trial.generate(world, trial.generator(1)))
        if said is not None:
            return Outcome(not_applicable=f"the subject refuses such a pair: {said}")
    try:
        return trial.follows(world, what)
    except SubjectError as error:
        # Some runs get by without the wider part.
        if not all(map(refuses, trial.failures or [error])):
            raise
        return Outcome(not_applicable=f"the subject refuses such a pair: {error}")


def _named(vocabulary: Vocabulary, seed: int) -> TableModel:
    table = TableModel.random(vocabulary.size, 1, seed)
    return TableModel(table.logits, 1, vocabulary=vocabulary)


def _named_world(target: TableModel, draft: TableModel, subject: Subject) -> World:
    settings = SamplingSettings(max_new_tokens=2)
    world = World(target, draft, settings, prompts=((0, 1),), num_draft_tokens=1)
    return suited_world(world, subject)


def _lacked(which: str, size: int) -> int:
    return 0 if which == "first" else size - 1


def _without(draft: Conditional, which: str) -> Conditional:
    def rows(prefixes: NDArray[np.int64]) -> NDArray[np.float64]:
        q = np.array(draft(prefixes), np.float64)
        q[:, _lacked(which, q.shape[1])] = 0
        return q / q.sum(1, keepdims=True)

    return rows
