"""Chapter state, between calls: what was asked before leaves no trace."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specverify.certification.probes.decoder_trial import DecoderTrial, MakeModel
from specverify.certification.probes.ranks import LAW, Prompts, Ranked, certain, ranked, wrong_row
from specverify.certification.probes.together import mixed_outcome, tuples_apart
from specverify.certification.probes.world import World
from specverify.certification.registry import Outcome, register, takes_tiny_models
from specverify.models.table import TableModel
from specverify.subjects.protocols import DECODERS, Subject

BUILT_ON = ("joint.run in exact/plain", "joint.run in exact/greedy")

PROMPTS: Prompts = ((0, 1, 2),)
CALLS = 80
_QUARTERS = 4


def samples(subject: Subject) -> str | None:
    """Need of what is asked at temperatures above 0."""
    if subject.capabilities.algorithm == "greedy":
        return "the subject decodes greedily only"
    return takes_tiny_models(subject)


def lasting_models(trial: DecoderTrial) -> MakeModel | None:
    """Makes each model once: what is kept from call to call may be kept with the model."""
    if trial.takes_tables:
        return None
    from specverify.models.glass_box import GlassBoxModel

    made: dict[int, Any] = {}

    def make(table: TableModel) -> Any:
        if id(table) not in made:
            made[id(table)] = GlassBoxModel.from_table(table)
        return made[id(table)]

    return make


@register(
    "state.order_of_calls",
    kinds=DECODERS,
    needs=takes_tiny_models,
    evidence="probed",
    inputs=("prompts", "models", "settings", "block-length", "batch-size"),
    after=BUILT_ON,
    why_kept="localises: names what a call leaves to the next",
)
def order_of_calls(trial: DecoderTrial, alpha: float) -> Outcome:
    """What a call emits does not depend on the calls before it.

    Why it holds: a run's contract names its prompt, models and settings, nothing else.

    What breaks it: results, caches, settings or buffers that are kept under a key that leaves
    something out, or until the next call: the prompt without the model, the shape without the
    mask, the first settings for all.

    Error rate: none: the target leaves one outcome of each call. Some are made in turn,
    A, B, A and so on, that differ in what the case is named after.
    """
    calls = list(_variants(trial))
    if len(calls) < 2:
        return Outcome(not_applicable="the subject takes no two calls that differ in this")
    make = lasting_models(trial)
    for step, which in enumerate((0, 1, 0, 2, 3, 1, 2, 0)):
        made = calls[which % len(calls)]
        output = trial.generate(made.world, trial.generator(), rows=made.rows, make=make)
        fault = wrong_row(made.world, made.tables, output.tokens)
        if fault is not None:
            nth = f"call {step + 1} of a series that differs in {trial.input}: {fault}"
            return Outcome(
                violations=(f"at temperature {made.world.settings.temperature:g}, {nth}",)
            )
    return Outcome()


@register(
    "state.many_calls",
    kinds=DECODERS,
    tests=1,
    needs=samples,
    evidence="probed",
    inputs=("one-row", "rows"),
    after=BUILT_ON,
    why_kept="makes many calls of one subject, and tells their draws apart",
)
def many_calls(trial: DecoderTrial, alpha: float) -> Outcome:
    """Calls are independent of each other, and a late one is like the first.

    Why it holds: every call is handed a generator in a state of its own, and draws all it decides
    from there.

    What breaks it: results kept by prompt, buffers of draws that come back, a seed of its own at
    every call, state that fills up.

    Error rate: one e-process at its share, the mean of those of each quarter of the calls and of
    pairs of calls at several distances.
    """
    size = 1 if trial.input == "one-row" else 4
    if size > 1 and not trial.subject.capabilities.batch:
        return Outcome(not_applicable="the subject takes one row a call")
    tables, law = ranked(), np.array(LAW)
    world = tables.world(PROMPTS, 4)
    made: list[NDArray[np.int64]] = []
    make = lasting_models(trial)
    for call in range(CALLS):
        tokens = trial.generate(world, trial.generator(call), rows=size, make=make).tokens
        made.append(tables.ranks_of(PROMPTS * size, tokens).reshape(-1))
    ranks = np.full((CALLS, max(map(len, made))), -1)
    for call, row in enumerate(made):
        ranks[call, : len(row)] = row
    quarters = [
        np.bincount(part[part >= 0], minlength=len(law))
        for part in np.array_split(ranks, _QUARTERS)
    ]
    components = {"quarters": (quarters, [law] * _QUARTERS)}
    for apart in (1, 2, 3, 4, 5, 6, 8, 16, 40):
        cells, product = tuples_apart(ranks, law, apart)
        components[f"{apart} calls apart"] = ([cells], [product])
    return mixed_outcome(components, int((ranks >= 0).sum()), trial.share)


@dataclass(frozen=True)
class _Asked:
    """One call of a series."""

    tables: Ranked
    world: World
    rows: int | None = None


def _variants(trial: DecoderTrial) -> Iterator[_Asked]:
    """Calls that differ in what the input names, in all ways of decoding with one outcome."""
    tables, settings = certain(trial.subject)[-1]
    base = tables.world(PROMPTS, 9, **settings)
    if trial.input == "prompts":
        for prompt in ((0, 1, 2), (0, 1), (2, 3, 1, 0, 0)):
            yield _Asked(tables, replace(base, prompts=(prompt,)))
    elif trial.input == "models":
        for seed in range(3):
            other, same = certain(trial.subject, seed)[-1]
            yield _Asked(other, other.world(PROMPTS, 9, **same))
    elif trial.input == "settings":
        for greedy in (True, False):
            way, own = certain(trial.subject)[0 if greedy else -1]
            short = way.world(PROMPTS, 5 if greedy else 14, **own)
            stop = way.likeliest(PROMPTS[0], 3)[-1]
            stopped = short.under(**own, stop_token_ids=(stop,))
            yield from (
                _Asked(way, world)
                for world in (short, stopped)
                if world.refused_by(trial.subject) is None
            )
    elif trial.input == "block-length":
        for block in (4, 1, 6):
            yield _Asked(tables, replace(base, num_draft_tokens=block))
    elif trial.subject.capabilities.batch:
        many = replace(base, prompts=((0, 1, 2), (3,), (2, 2, 1, 0, 3)))
        for rows in (3, 1, 7):
            yield _Asked(tables, many, rows)
