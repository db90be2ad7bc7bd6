"""Chapter state, within a run: what a decoder keeps from round to round is what was emitted."""

from typing import Any

import torch
from torch import Generator, Tensor

from specverify.certification.exact_calls import MAXIMUM_RUNS, SteeredCalls, check_tokens
from specverify.certification.exact_evidence import Comparison
from specverify.certification.exact_outcome import distance_outcome, unless_crashed
from specverify.certification.probes.decoder_trial import DecoderTrial
from specverify.certification.probes.ranks import Prompts, certain, wrong_row
from specverify.certification.probes.suited import refusal, refuses
from specverify.certification.probes.world import World, small_tables
from specverify.certification.registry import Outcome, register, takes_tiny_models
from specverify.decoding.output import DecoderOutput
from specverify.errors import SubjectError
from specverify.exact.programs import program_distribution
from specverify.models.table import TableModel
from specverify.properties.state_calls import lasting_models, samples
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import DECODERS

BUILT_ON = ("joint.run in exact/plain", "joint.run in exact/greedy")

PROMPTS: Prompts = ((0, 1, 2), (3,))
LONG = 32
"""Tokens of a run in which every place of a block sees rejections."""
TURNS, TURN = 8, 4
"""Short turns: what was wrongly kept must lie close to the end of a text to be looked at."""


_REFUSABLE = ("sliding-window", "recurrent")
_REFUSED = "the subject refuses a cache of this kind: {}"


@register(
    "state.rollback",
    kinds=DECODERS,
    needs=takes_tiny_models,
    evidence="probed",
    inputs=("tables", "glass-box", "sliding-window", "recurrent"),
    after=BUILT_ON,
    why_kept="one run is proof, on each kind of cache",
)
def rollback(trial: DecoderTrial, alpha: float) -> Outcome:
    """After each rejection the run goes on from what was emitted, whatever keeps the past.

    Why it holds: after a round cache, positions and mask are those of a fresh pass over the
    emitted tokens (algorithms.md section 4, I1 and I4). A glass-box model emits something else as
    soon as it sees a wrong token, position or slot; one with a sliding window has forgotten what a
    late roll-back would need (I6), and a recurrent state cannot be cropped at all: refusing it, at
    once or when it comes to that, is right, and going on with it is not.

    What breaks it: crops of the wrong length (C1 to C3), position ids that count rejected tokens
    (C4), a roll-back that does nothing once the window is full (mlx-swift-lm issue 424) or where
    the cache cannot be rewound (mlx-lm pull request 1109).

    Error rate: none: the target leaves one outcome, at temperature 0 and at 1, and the draft is
    often wrong.
    """
    refused = _models_refused(trial)
    if refused is not None:
        return Outcome(not_applicable=refused)
    prompts = PROMPTS if trial.subject.capabilities.batch else PROMPTS[:1]
    for tables, settings in certain(trial.subject):
        for block in (1, 4):
            world = tables.world(prompts, LONG, num_draft_tokens=block, **settings)
            try:
                output = trial.generate(world, trial.generator(), make=_makers(world)[trial.input])
            except SubjectError as error:
                if trial.input in _REFUSABLE and refuses(error):
                    return Outcome(not_applicable=_REFUSED.format(error))
                raise
            fault = wrong_row(world, tables, output.tokens)
            if fault is not None:
                return Outcome(violations=(told(world, fault),))
    return Outcome()


@register(
    "state.continued",
    kinds=DECODERS,
    needs=takes_tiny_models,
    evidence="probed",
    inputs=("turns", "sampled"),
    after=BUILT_ON,
    why_kept="continues a text from call to call, as conversations do",
)
def continued(trial: DecoderTrial, alpha: float) -> Outcome:
    """A run that is continued from what it emitted is like one that never stopped.

    Why it holds: the target's distribution depends on the text alone, not on which call wrote it.

    What breaks it: a cache kept from call to call that holds rejected tokens of the last round, or
    lacks its last one (algorithms.md section 4, I8 and I12; vLLM issue 43559); text that is cut
    where the last call stopped.

    Error rate: none.
    """
    if trial.input == "sampled":
        return _continued_sampled(trial)
    prompts = PROMPTS if trial.subject.capabilities.batch else PROMPTS[:1]
    make = lasting_models(trial)
    for tables, settings in certain(trial.subject):
        texts = prompts
        for turn in range(TURNS):
            world = tables.world(texts, TURN, **settings)
            tokens = trial.generate(world, trial.generator(turn), make=make).tokens
            fault = wrong_row(world, tables, tokens)
            if fault is not None:
                where = "" if turn == 0 else f", continuing what it emitted {turn} times,"
                return Outcome(violations=(told(world, f"{where} {fault}".strip()),))
            # Between turns the user adds a word, as in a conversation.
            said = ((turn * 2 + 1) % tables.target.vocab_size,) * (turn % 2)
            texts = tuple(
                (*text, *row[row >= 0].tolist(), *said)
                for text, row in zip(texts, tokens, strict=True)
            )
    return Outcome()


def _models_refused(trial: DecoderTrial) -> str | None:
    """Why there are no models of this kind for the subject, None if it decodes on them.

    A decoder may refuse a cache that it cannot rewind, which is found out by a run that stays
    inside any window.
    """
    takes = trial.subject.capabilities.models
    needed = "language_model" if trial.input == "tables" else "transformers"
    if needed not in takes:
        return f"the subject does not take models of the class {needed}"
    if trial.input not in _REFUSABLE:
        return None
    tables, settings = certain(trial.subject)[0]
    world = tables.world(PROMPTS[1:], 1, num_draft_tokens=1, **settings)
    make = _makers(world)[trial.input]
    said = refusal(lambda: trial.generate(world, trial.generator(), make=make))
    return None if said is None else _REFUSED.format(said)


def _makers(world: World) -> dict[str, Any]:
    """What makes the models of each kind; the draft is an ordinary one where it may be."""
    from specverify.models.glass_box import GlassBoxModel, RecurrentGlassBoxModel
    from specverify.models.sliding_glass_box import SlidingGlassBoxModel

    def recurrent(table: TableModel) -> Any:
        kind = RecurrentGlassBoxModel if table is world.target else GlassBoxModel
        return kind.from_table(table)

    return {
        "tables": None,
        "glass-box": GlassBoxModel.from_table,
        "sliding-window": SlidingGlassBoxModel.from_table,
        "recurrent": recurrent,
    }


def _continued_sampled(trial: DecoderTrial) -> Outcome:
    """The joint distribution of two tokens and two more from a second call."""
    if (refused := samples(trial.subject)) is not None:
        return Outcome(not_applicable=refused)
    part = SamplingSettings(max_new_tokens=2)
    world = World(*small_tables(2), part, ((0, 1),), 1)
    calls = SteeredCalls(trial.subject, trial.time_limit)
    target, draft = trial.models(world)

    def emitted(ids: Tensor, source: Generator) -> Tensor:
        value = calls(
            target, draft, ids.clone(), torch.ones_like(ids), part.model_copy(), 1, source
        )
        tokens = value.tokens if isinstance(value, DecoderOutput) else value
        # A copy, since the next call may overwrite it, without padding beyond the two tokens.
        return tokens[:, : part.max_new_tokens].clone()

    def program(source: Generator) -> Tensor:
        ids, _ = world.batch
        first = emitted(ids, source)
        return torch.cat([first, emitted(torch.cat([ids, first], 1), source)], 1)

    joint = program_distribution(program, seed=trial.seed, maximum_runs=MAXIMUM_RUNS)
    check_tokens(trial.subject, joint, world.target.vocab_size)
    trial.note(calls.remarks(joint))
    whole = world.under(max_new_tokens=4)
    missing = sum(joint.crashes.values())
    compared = Comparison.of_runs(joint.probabilities, whole.expected(), missing)
    what = "a run of two tokens, continued by a second call for two more,"
    return unless_crashed(distance_outcome(compared, joint, trial.tolerance, what), joint)


def told(world: World, fault: str) -> str:
    """A fault, with how the run was made."""
    how = f"temperature {world.settings.temperature:g}, K={world.num_draft_tokens}"
    return f"at {how}: {fault}"
