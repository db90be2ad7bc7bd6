"""Chapter history: settings shape every token, each seen from its own prefix and no other."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from specverify.certification.probes.certain import certain_runs, only_run, ranked, wrong_at_times
from specverify.certification.probes.decoder_trial import DecoderTrial
from specverify.certification.probes.world import World, small_tables
from specverify.certification.registry import Outcome, register, takes_tiny_models
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings, TokenIds
from specverify.subjects.protocols import DECODERS

VOCAB_SIZE, ORDER, LENGTH, NUM_DRAFT_TOKENS = 5, 2, 12, 3
LONG = (4, 1) + (0, 1, 2, 3) * 25
"""Its first token comes again nowhere, further back than a window of 64 tokens reaches."""
PROMPTS = ((0, 1), (3, 2, 3, 4), LONG)
ROWS = ((1,), (3, 2, 3, 4), (0, 0, 2), (4, 1))
"""Of different lengths: the shorter ones are padded, with a token that means something."""


def grammar(emitted: TokenIds) -> TokenIds:
    """Two of five tokens, by the state of an automaton that every token before moves on.

    A token that should not be there, or is missing, is never made up for. There is an answer for
    prefixes outside the language too, so that a decoder that asks about a wrong one emits
    something wrong, and does not fail.
    """
    state = (sum(emitted) + len(emitted)) % 4
    return state, (state + 2) % VOCAB_SIZE


CERTAIN: dict[str, tuple[dict[str, Any], ...]] = {
    "repetition_penalty": ({"repetition_penalty": 3.0}, {"repetition_penalty": 0.4}),
    "presence_penalty": ({"presence_penalty": 1.5}, {"presence_penalty": -1.5}),
    "frequency_penalty": ({"frequency_penalty": 0.37},),
    "no_repeat_ngram_size": ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 3}),
    "bad_words": ({},),
    "allowed_tokens": ({"allowed_tokens": grammar},),
    "forced_tokens": ({"forced_tokens": {0: 2, 1: 4, 5: 0, 6: 3, 11: 1}},),
    "logit_bias": ({"logit_bias": {0: 1.5, 3: -2.5}},),
    "together": (
        {"repetition_penalty": 1.7, "frequency_penalty": 0.37, "no_repeat_ngram_size": 3},
    ),
}
"""Settings under which the first choice changes; the bad words are made of what would come out
without them."""

RANDOM: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 2.5},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.6},
    "min_p": {"min_p": 0.5},
    "typical_p": {"typical_p": 0.5},
    "epsilon_cutoff": {"epsilon_cutoff": 0.3},
    "eta_cutoff": {"eta_cutoff": 0.4},
    "top_n_sigma": {"top_n_sigma": 0.9},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.1},
    "logit_bias": {"logit_bias": {0: 1.5, 2: -1.0}},
    "repetition_penalty": {"repetition_penalty": 1.6},
    "presence_penalty": {"presence_penalty": 0.9},
    "frequency_penalty": {"frequency_penalty": 0.6},
    "temperature_then_top_p": {"temperature": 2.0, "top_p": 0.6},
    "temperature_then_min_p": {"temperature": 0.5, "min_p": 0.4},
    "top_k_then_top_p": {"top_k": 2, "top_p": 0.6},
}
"""Values that bite on the small table."""
THREE_TOKENS = "top_k_then_top_p"
"""Runs are of two tokens, since three may take a minute to follow where a setting is ignored; here
they are of three, and few tokens are left."""


@register(
    "history.own_prefix",
    kinds=DECODERS,
    evidence="probed",
    inputs=tuple(CERTAIN),
    needs=takes_tiny_models,
    after=("joint.run in exact/plain",),
    why_kept="localises: names the setting and the position in the block",
)
def own_prefix(trial: DecoderTrial, alpha: float) -> Outcome:
    """Every position of a block is transformed with the prompt and all tokens before it.

    Why it holds: the target's distribution at a position is that of decoding one token a pass,
    where the history holds all that was emitted. Draft tokens count from the position after their
    own (algorithms.md section 2).

    What breaks it: penalties, bans or a grammar that see the history as it was before the block,
    the whole block, the last token of each round only, a window, or the output without the prompt;
    settings that are applied to a part of the positions, or to none.

    Error rate: none. Only one run is possible, and it is compared token by token. The draft is the
    target, so whole blocks are accepted.
    """
    return certain_runs(trial, _runs(trial.input, _target()))


@register(
    "history.rejected_tokens",
    kinds=DECODERS,
    evidence="probed",
    inputs=tuple(name for name in CERTAIN if name != "logit_bias"),
    needs=takes_tiny_models,
    after=("history.own_prefix",),
    why_kept="localises: says that a history keeps tokens that were rejected",
)
def rejected_tokens(trial: DecoderTrial, alpha: float) -> Outcome:
    """A draft token that was rejected leaves no trace in what later positions see.

    Why it holds: it was never emitted, so one-token decoding would not have known it.

    What breaks it: counts, n-gram tables or a grammar's state that are updated while drafting or
    scoring and not taken back after a rejection.

    Error rate: none, as in `history.own_prefix`. The draft is wrong after two contexts in five.
    """
    return certain_runs(trial, _runs(trial.input, wrong_at_times(_target(), seed=2)))


@register(
    "history.rows",
    kinds=DECODERS,
    evidence="probed",
    inputs=tuple(name for name in CERTAIN if name != "logit_bias"),
    needs=takes_tiny_models,
    after=("history.own_prefix", "history.rejected_tokens"),
    why_kept="localises: says that a row sees the history of another, or padding",
)
def rows(trial: DecoderTrial, alpha: float) -> Outcome:
    """A row of a batch is transformed with its own tokens: not another row's, and no padding.

    Why it holds: rows are separate requests; what fills up shorter prompts is none of their text.

    What breaks it: padding counted as the token it is written with, the prompt length or the
    history of another row, counts that are shared.

    Error rate: none, as in `history.own_prefix`.
    """
    world = replace(_world(_target(), wrong_at_times(_target(), seed=2)), prompts=ROWS)
    return certain_runs(trial, _settled(trial.input, world))


@register(
    "history.settings",
    kinds=DECODERS,
    tests=1,
    evidence="probed",
    inputs=tuple(RANDOM),
    needs=takes_tiny_models,
    after=("joint.run in exact/plain",),
    why_kept="computes what each setting does, one by one, and names it",
)
def settings(trial: DecoderTrial, alpha: float) -> Outcome:
    """Each setting has the effect it is defined to have, on every token of a run.

    Why it holds: the contract is the target's distribution after the transforms, in their order,
    each with its own coins where it is random.

    What breaks it: a setting that is accepted and ignored, applied to draft tokens or to the bonus
    token only, at another value, in another order; one coin of XTC for a whole block.

    Error rate: none where the run is computed; otherwise an e-process at its share.
    """
    chosen = RANDOM[trial.input]
    return trial.follows(random_world(trial.input), f"a run under {_shown(chosen)}")


def random_world(name: str) -> World:
    """Where an input of `history.settings` is tried."""
    length = 3 if name == THREE_TOKENS else 2
    # The coins of XTC multiply the paths.
    world = World(*small_tables(2)) if name == "xtc" else World()
    return world.under(**{"max_new_tokens": length} | RANDOM[name])


def _target() -> TableModel:
    return ranked(VOCAB_SIZE, ORDER, seed=3)


def _world(target: TableModel, draft: TableModel) -> World:
    limit = SamplingSettings(max_new_tokens=LENGTH)
    return World(target, draft, limit, PROMPTS[:1], NUM_DRAFT_TOKENS)


def _runs(name: str, draft: TableModel) -> Iterator[tuple[str, World]]:
    for prompt in PROMPTS:
        yield from _settled(name, replace(_world(_target(), draft), prompts=(prompt,)))


def _settled(name: str, world: World) -> Iterator[tuple[str, World]]:
    """The world under each of the settings of an input."""
    for chosen in CERTAIN[name]:
        fields = _bad_words(world) if name == "bad_words" else chosen
        yield f"under {_shown(fields)}", world.under(**fields)


def _bad_words(world: World) -> dict[str, Any]:
    """What the target would emit first in each row: across the prompt's end, and within a block."""
    words = []
    for row, prompt in enumerate(world.prompts):
        plain = only_run(world, row)
        words += [(prompt[-1], plain[0]), tuple(plain[1:3]), tuple(plain[4:7])]
    return {"bad_words": tuple(words)}


def _shown(fields: dict[str, Any]) -> str:
    return ", ".join(
        f"{name}={'a grammar' if callable(value) else value}" for name, value in fields.items()
    )
