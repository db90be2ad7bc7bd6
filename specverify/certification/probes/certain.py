"""Runs that can come out in one way only, so that a single call is proof.

Logits are whole numbers in an order of their own after every context, sampled at temperature 0 and
close to it: whichever token comes first has all of the mass that a float can show. Settings that
change which one comes first change the run.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch

from specverify.certification.probes.decoder_trial import DecoderTrial
from specverify.certification.probes.world import World
from specverify.certification.registry import Outcome
from specverify.decoding.scoring import TeacherForced
from specverify.errors import UsageError
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.stopping import run_lengths

COLD = 1e-3
"""A temperature at which logits that are 0.04 apart are odds of 1 to 1e17."""
SHOWN = 3
LONGEST = 8
"""Tokens of a prompt that a reader is shown."""
_LEAST = 1 - 1e-9

Runs = Iterable[tuple[str, World]]
"""What is run, in words, and where."""


def ranked(vocab_size: int, order: int, seed: int) -> TableModel:
    """A table whose rows hold V whole numbers around 0, each row in another order."""
    ranks = np.tile(np.arange(vocab_size), ((vocab_size + 1) ** order, 1))
    shuffled = np.random.default_rng(seed).permuted(ranks, axis=1)
    # Half of them negative: penalties that divide treat the signs apart.
    return TableModel(torch.from_numpy(shuffled - vocab_size // 2).double(), order)


def wrong_at_times(table: TableModel, seed: int, share: float = 0.4) -> TableModel:
    """A draft that has the target's order of tokens the other way round after some contexts.

    So it is wrong there whatever tokens a constraint leaves.
    """
    rows = torch.from_numpy(np.random.default_rng(seed).random(table.num_contexts) < share)
    return TableModel(torch.where(rows[:, None], -table.logits, table.logits), table.order)


def only_run(world: World, row: int = 0) -> list[int]:
    """The one run that the target leaves possible.

    Raises:
        UsageError: another token has a probability that is more than rounding.
    """
    settings = world.of_row(row).model_copy(update={"temperature": COLD})
    forced = TeacherForced(world.target, world.prompts[row], settings)
    emitted: list[int] = []
    while not _ended(emitted, settings):
        law = forced(np.array([emitted], np.int64))[0]
        token = int(law.argmax())
        if law[token] < _LEAST:
            raise UsageError(
                f"after {emitted} the probabilities are {law.tolist()}; a run that is certain "
                "needs logits further apart"
            )
        emitted.append(token)
    return emitted


def cold(world: World) -> list[World]:
    """The world at temperature 0, and at one at which the first choice is as certain.

    Settings that leave a single token are as certain at their own temperature, and keep it.
    """

    def at(settings: SamplingSettings, temperature: float) -> SamplingSettings:
        if settings.top_k == 1:
            return settings
        return settings.model_copy(update={"temperature": temperature})

    return [
        replace(
            world,
            settings=at(world.settings, temperature),
            row_settings=world.row_settings
            and tuple(at(own, temperature) for own in world.row_settings),
        )
        for temperature in (0.0, COLD)
    ]


def certain_runs(trial: DecoderTrial, runs: Runs) -> Outcome:
    """Whether every run is the one that is possible, at temperature 0 and close to it.

    Args:
        trial: of the decoder; where it refuses a world, that one is left out.
        runs: worlds in which only one run is possible.
    """
    refusals: list[str] = []
    wrong: list[str] = []
    done = 0
    for what, world in runs:
        expected: list[list[int]] = []
        for here in cold(world):
            if (refused := here.refused_by(trial.subject)) is not None:
                refusals.append(refused)
                continue
            expected = expected or [only_run(world, row) for row in range(len(world.prompts))]
            tokens = trial.generate(here, trial.generator(done)).tokens.tolist()
            wrong += _differences(what, here, tokens, expected)
            done += 1
    if not done:
        return Outcome(not_applicable=refusals[0])
    more = () if len(wrong) <= SHOWN else (f"and {len(wrong) - SHOWN} more of {done} runs",)
    return Outcome(violations=(*wrong[:SHOWN], *more), details={"runs": done})


def _differences(
    what: str, world: World, tokens: list[list[int]], expected: list[list[int]]
) -> list[str]:
    found = []
    for row, (padded, right) in enumerate(zip(tokens, expected, strict=True)):
        emitted = [token for token in padded if token >= 0]
        if emitted != right:
            temperature = world.of_row(row).temperature
            found.append(
                f"{what}, K={world.num_draft_tokens}, temperature {temperature:g}: "
                f"{emitted} follows the prompt {_shown(world.prompts[row])}, and only {right} can"
            )
    return found


def _shown(prompt: Sequence[int]) -> str:
    if len(prompt) <= LONGEST:
        return str(list(prompt))
    return f"[..., {', '.join(map(str, prompt[-LONGEST:]))}] of {len(prompt)} tokens"


def _ended(emitted: list[int], settings: SamplingSettings) -> bool:
    length, _ = run_lengths(torch.tensor([emitted], dtype=torch.long), settings)
    return bool(length)
