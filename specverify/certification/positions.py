"""Every token of a run held against its own distribution, by its position in the run."""

import torch
from torch import Tensor

from specverify.certification.contexts import Contexts
from specverify.certification.decoder_case import DecoderCase
from specverify.sampling.context_tally import ContextTally, DrawnTokens


def new_positions(case: DecoderCase) -> ContextTally:
    """An empty tally for a case: groups by position, within each by the last token."""
    return ContextTally(case.length * _contexts(case).count, case.target.vocab_size)


def count_positions(
    tally: ContextTally, case: DecoderCase, prompt: int, tokens: Tensor, probs: Tensor
) -> None:
    """Add runs.

    Args:
        tally: what they are added to.
        case: of the runs.
        prompt: index of their prompt.
        tokens: long [N, L], emitted tokens, padded right with -1.
        probs: float64 [N, min(L, length), V], the target's distributions along the runs.
    """
    contexts = _contexts(case)
    for position in range(probs.shape[1]):
        rows = (tokens[:, position] >= 0).nonzero().squeeze(1)
        depths = torch.full((len(rows),), position)
        groups = contexts.groups(case.prompts[prompt], tokens[rows], depths)
        drawn = tokens[rows, position]
        laws = probs[rows, position]
        possible = laws.gather(1, drawn[:, None]).squeeze(1) > 0
        tally.add(
            DrawnTokens(
                (groups + position * contexts.count)[possible].numpy(),
                drawn[possible].numpy(),
                laws[possible].numpy(),
            )
        )


def position_label(case: DecoderCase, group: int) -> str:
    """Position and context of a group, as a reader wants them."""
    contexts = _contexts(case)
    position, context = divmod(group, contexts.count)
    return f"as token {position + 1} of a run, {contexts.label(context)}"


def _contexts(case: DecoderCase) -> Contexts:
    return Contexts.told_apart(case.target.vocab_size, most_tokens=1, places=case.length)
