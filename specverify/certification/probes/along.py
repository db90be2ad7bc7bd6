"""What the target says about the tokens of a run, from a fresh prefill."""

import torch
from torch import Tensor

from specverify.certification.probes.world import World
from specverify.decoding.scoring import TeacherForced

_SAMPLING = ("top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_n_sigma")


def processed(world: World, row: int, tokens: Tensor) -> Tensor:
    """Log probabilities after penalties, bans and biases, at temperature 1 without truncation.

    They differ from the logits that greedy decoding looks at by a constant in each row.

    Args:
        world: what was decoded.
        row: of its prompts.
        tokens: long [L], emitted.

    Returns:
        float64 [L, V], each row given the tokens before it.
    """
    neutral = dict.fromkeys(_SAMPLING) | {"temperature": 1.0, "xtc_probability": 0.0}
    settings = world.settings.model_copy(update=neutral)
    forced = TeacherForced(world.target, world.prompts[row], settings)
    return forced.along(tokens[None])[0].log()


def logprobs_along(world: World, row: int, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Log probabilities [L, V] of the run's settings, and those before all transforms."""
    forced = TeacherForced(world.target, world.prompts[row], world.settings)
    transformed, raw = forced.along_with_raw(tokens[None])
    return transformed[0].log(), raw[0].log()


def emitted(tokens: Tensor) -> list[Tensor]:
    """The rows of padded tokens [B, L] without their padding."""
    return [row[row >= 0] for row in tokens]


def picked(table: Tensor, tokens: Tensor) -> Tensor:
    """Entries [L] of a table [L, V] at the tokens [L]."""
    return table.gather(1, tokens[:, None]).squeeze(1)


def first_of(wrong: Tensor) -> int:
    """Index of the first true entry."""
    return int(torch.nonzero(wrong)[0, 0])
