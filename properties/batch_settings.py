"""Chapter batch: rows of a call have settings of their own, as requests of different users do."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from specverify.certification.probes.certain import certain_runs, ranked, wrong_at_times
from specverify.certification.probes.decoder_trial import DecoderTrial
from specverify.certification.probes.world import ONE_CONTRACT, World, small_tables
from specverify.certification.registry import Outcome, register
from specverify.properties.batch import samples_rows, takes_rows
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import DECODERS, Subject

BUILT_ON = ("joint.run in exact/plain", "joint.run in exact/greedy", "batch.rows")

SIZES = (3, 9, 33)
"""Rows of a call."""
_PROMPTS = ((0, 1, 2), (3,), (2, 2, 1, 0, 3), (1, 0), (3, 1, 0, 2, 2, 1))
_VOCAB_SIZE, _ORDER, _SEED = 5, 2, 41
_LONGEST = 14
_FAVOUR = 50.0
"""What is added to the logit of a row's own token, so that it comes first after any prefix."""
_HOT = 100.0
"""Temperature of rows that have one outcome at any, beside rows that would then have many."""

_DIFFER: dict[str, Callable[[int], dict[str, Any]]] = {
    "limits": lambda row: {"max_new_tokens": 1 + 5 * row % _LONGEST},
    "stops": lambda row: {"stop_token_ids": (row % _VOCAB_SIZE,)},
    "biases": lambda row: {
        "logit_bias": {row % _VOCAB_SIZE: _FAVOUR},
        "max_new_tokens": 2 + 3 * row % _LONGEST,
    },
    "temperatures": lambda row: {"temperature": _HOT, "top_k": 1} if row % 3 == 1 else {},
}
"""What rows differ in."""

_LAWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "temperatures": ({"temperature": 0.5}, {"temperature": 1.6}),
    "greedy": ({"temperature": 0.0}, {"temperature": 1.0}),
    "lengths": ({"max_new_tokens": 3}, {"max_new_tokens": 1}),
    "filters": ({"top_k": 1}, {}),
    "penalties": ({}, {"presence_penalty": 1.5}),
    "bonuses": ({"presence_penalty": -1.5}, {}),
}
"""Settings of two rows with one prompt."""


def takes_row_settings(subject: Subject) -> str | None:
    """Need of what is asked about rows with settings of their own."""
    return takes_rows(subject) or _one_contract(subject)


def samples_row_settings(subject: Subject) -> str | None:
    """Need of what is asked about such rows at temperatures above 0."""
    return samples_rows(subject) or _one_contract(subject)


def _one_contract(subject: Subject) -> str | None:
    return None if subject.capabilities.row_settings else ONE_CONTRACT


@register(
    "batch.own_settings",
    kinds=DECODERS,
    needs=takes_row_settings,
    evidence="probed",
    inputs=tuple(f"{what}-{size}" for what in _DIFFER for size in SIZES),
    after=BUILT_ON,
)
def own_settings(trial: DecoderTrial, alpha: float) -> Outcome:
    """Each row of a batch keeps to its own settings, whatever those of its neighbours are.

    Why it holds: rows are requests of different users. Here each row has one outcome, at
    temperature 0 and close to it: where it ends, or which token it favours, is its own. Or it is
    cold beside hot rows that are left one token each.

    What breaks it: the settings of one row for all, settings that stay in place when rows are
    sorted or the batch is compacted, all of them or the temperatures alone, a batch that runs to
    the longest limit or the first stop.

    Error rate: none, one call is proof.
    """
    what, _, size = trial.input.rpartition("-")
    target = ranked(_VOCAB_SIZE, _ORDER, _SEED)
    settings = [
        SamplingSettings(**{"max_new_tokens": _LONGEST, **_DIFFER[what](row)})
        for row in range(int(size))
    ]
    prompts = [_PROMPTS[row % len(_PROMPTS)] for row in range(int(size))]
    world = World(target, wrong_at_times(target, _SEED), settings[0], tuple(prompts), 3)
    orders = (settings, prompts), (settings[::-1], prompts[::-1])
    return certain_runs(
        trial,
        (
            (f"rows that differ in {what}", replace(world, prompts=tuple(p), row_settings=tuple(s)))
            for s, p in orders
        ),
    )


@register(
    "batch.own_settings_law",
    kinds=DECODERS,
    tests=1,
    needs=samples_row_settings,
    evidence="probed",
    inputs=tuple(_LAWS),
    after=(*BUILT_ON, "batch.two_rows"),
)
def own_settings_law(trial: DecoderTrial, alpha: float) -> Outcome:
    """Two rows with different settings have the distributions that each has under its own.

    Why it holds: as `batch.own_settings`, for rows that are sampled.

    What breaks it: temperatures or penalties read from the first row, a batch that is greedy
    because one of its rows is, a bonus token under its neighbour's settings.

    Error rate: none where the two can be computed together; otherwise an e-process at its share.
    """
    own = tuple(SamplingSettings(**{"max_new_tokens": 2, **row}) for row in _LAWS[trial.input])
    world = World(*small_tables(2), own[0], ((0, 1), (0, 1)), 1, own)
    return trial.follows(world, f"two rows that differ in their settings, {trial.input},")
