"""Chapter accounting: the log probabilities that are reported with the tokens."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from specverify.certification.probes.along import emitted, first_of, logprobs_along, picked
from specverify.certification.probes.decoder_trial import DecoderTrial
from specverify.certification.probes.world import World, small_tables
from specverify.certification.registry import Outcome, register, takes_tiny_models
from specverify.decoding.output import DecoderOutput
from specverify.settings import SamplingSettings
from specverify.subjects.protocols import DECODERS

TOLERANCES = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-1}
"""Nats that a reported value may be off, by its dtype: some ten times what rounding does."""
ALGORITHMIC = 1e-9
"""The same for float64 values of a decoder whose models are float64."""

SETTINGS: dict[str, SamplingSettings] = {
    "plain": SamplingSettings(),
    "tempered": SamplingSettings(temperature=0.7),
    "filtered": SamplingSettings(temperature=0.8, top_k=3),
    "penalty": SamplingSettings(repetition_penalty=1.4),
}
_LENGTH, _BLOCK, _VOCAB_SIZE = 24, 3, 5
_PROMPTS = ((0, 1), (2,), (3, 4, 1))


@register(
    "accounting.logprobs",
    kinds=DECODERS,
    evidence="probed",
    inputs=tuple(SETTINGS),
    needs=takes_tiny_models,
)
def logprobs(trial: DecoderTrial, alpha: float) -> Outcome:
    """Reported log probabilities are the target's, after transforms and before, token for token.

    Why it holds: `logprobs` are those of the distribution that the token was emitted from, which
    is the target's under the run's settings whatever was drafted; `raw_logprobs` are those of the
    logits as they are.

    What breaks it: values of the draft model for accepted tokens, of the residual for corrections,
    of the row before or after, values before temperature or truncation reported as transformed,
    probabilities in place of logarithms.

    Error rate: none. They are held against a fresh prefill, within 1e-9 where models and values
    are float64, 1e-4 otherwise, 1e-2 for float16 and 1e-1 for bfloat16.
    """
    target, draft = small_tables(_VOCAB_SIZE)
    settings = SETTINGS[trial.input].model_copy(update={"max_new_tokens": _LENGTH})
    world = World(target, draft, settings, _PROMPTS, _BLOCK)
    alone = [replace(world, prompts=(prompt,)) for prompt in _PROMPTS]
    if (refused := alone[0].refused_by(trial.subject)) is not None:
        return Outcome(not_applicable=refused)
    worlds = [world] if trial.subject.capabilities.batch else alone
    violations: list[str] = []
    for number, part in enumerate(worlds):
        output = trial.generate(part, trial.generator(number))
        if output.logprobs is None and output.raw_logprobs is None:
            return Outcome(not_applicable="the subject reports no log probabilities")
        violations += _deviations(trial, part, output)
    return Outcome(violations=tuple(violations[:2]))


def _deviations(trial: DecoderTrial, world: World, output: DecoderOutput) -> Iterator[str]:
    for row, tokens in enumerate(emitted(output.tokens)):
        transformed, raw = logprobs_along(world, row, tokens)
        for name, law in (("logprobs", transformed), ("raw_logprobs", raw)):
            reported: Tensor | None = getattr(output, name)
            if reported is None:
                continue
            values, right = reported[row, : len(tokens)].double(), picked(law, tokens)
            tolerance = _tolerance(trial, reported.dtype)
            # NaN is wrong too; a token that the target excludes is right with -inf.
            wrong = ~((values == right) | ((values - right).abs() <= tolerance))
            if bool(wrong.any()):
                at = first_of(wrong)
                named = _named(world, row, tokens, values, wrong)
                yield (
                    f"{name} of token {int(tokens[at])} after "
                    f"{[*world.prompts[row], *tokens[:at].tolist()]} is {float(values[at]):.6g}, "
                    f"and the target gives {float(right[at]):.6g}; {int(wrong.sum())} of "
                    f"{len(wrong)} values are wrong{named}"
                )


def _named(world: World, row: int, tokens: Tensor, values: Tensor, wrong: Tensor) -> str:
    """What the wrong values are instead, if it is one of the usual things."""
    transformed, raw = logprobs_along(world, row, tokens)
    drafted = replace(world, target=world.draft)
    of_draft, raw_of_draft = logprobs_along(drafted, row, tokens)
    others = {
        "those before all transforms": picked(raw, tokens),
        "those after transforms": picked(transformed, tokens),
        "those of the draft model": picked(of_draft, tokens),
        "those of the draft model before transforms": picked(raw_of_draft, tokens),
        "probabilities": picked(transformed, tokens).exp(),
        "their negatives": -picked(transformed, tokens),
        "all 0": torch.zeros_like(values),
        "those of the token before": picked(transformed, tokens).roll(1),
        "those of the token after": picked(transformed, tokens).roll(-1),
    }
    # A token that neither has beside it, at an end of the run, says nothing.
    inner = wrong.clone()
    inner[0] = inner[-1] = False
    looked_at = inner if bool(inner.any()) else wrong
    for name, other in others.items():
        if bool(((values - other).abs() <= TOLERANCES[torch.float32])[looked_at].all()):
            return f": they are {name}"
    return ""


def _tolerance(trial: DecoderTrial, dtype: torch.dtype) -> float:
    if trial.takes_tables and dtype == torch.float64:
        return ALGORITHMIC
    return TOLERANCES.get(dtype, TOLERANCES[torch.float32])
