"""The distributions that the tokens ending first rounds should have, token by token."""

import math

import numpy as np
import torch
from torch import Tensor

from specverify.certification.conditional import WITH_CORRECTION, correction_distribution
from specverify.certification.contexts import Contexts
from specverify.certification.decoder_case import DecoderCase
from specverify.sampling.context_tally import DrawnTokens
from specverify.sampling.first_rounds import FirstRounds


def new_first_rounds(case: DecoderCase) -> FirstRounds:
    """An empty tally for a case."""
    return FirstRounds(_contexts(case).count, case.target.vocab_size)


def count_first_rounds(
    rounds: FirstRounds,
    case: DecoderCase,
    algorithm: str | None,
    prompt: int,
    tokens: Tensor,
    probs: Tensor,
    accepted: Tensor,
    drafted: Tensor | None,
) -> None:
    """Add the first rounds of some runs.

    Args:
        rounds: what they are added to.
        case: of the runs.
        algorithm: the subject declares; None leaves its corrections out.
        prompt: index of their prompt.
        tokens: long [N, L], emitted tokens, padded right with -1.
        probs: float64 [N, L, V], the target's teacher-forced distributions along the runs.
        accepted: long [N], draft tokens accepted in the first round.
        drafted: long [N], draft tokens offered; where a subject does not say, only a round that
            accepted K is certain to have been accepted in full.
    """
    rounds.count_accepted(accepted.numpy())
    if algorithm is None:
        return
    lengths = (tokens >= 0).sum(1)
    # A run that stopped inside the block never showed the token that ended its round.
    shown = (lengths > accepted) & (accepted < case.length)
    offered = case.num_draft_tokens if drafted is None else drafted
    bonus = (shown & (accepted == offered)).nonzero().squeeze(1)
    laws = probs[bonus, accepted[bonus]]
    rounds.bonuses.add(_ends(case, prompt, tokens[bonus], accepted[bonus], laws))
    if algorithm in WITH_CORRECTION and drafted is not None:
        rows = (shown & (accepted < drafted)).nonzero().squeeze(1)
        _count_corrections(
            rounds, case, algorithm, prompt, tokens[rows], probs[rows], accepted[rows]
        )


def _count_corrections(
    rounds: FirstRounds,
    case: DecoderCase,
    algorithm: str,
    prompt: int,
    tokens: Tensor,
    probs: Tensor,
    accepted: Tensor,
) -> None:
    """Add rounds that ended with a rejection."""
    drafts = case.draft_forced[prompt].along(tokens[:, : case.length])
    # A token counts as excluded only if it stays so when p and q are off by as much as two passes
    # over the same prefix may differ.
    slack = math.exp(4 * case.tolerance)
    for position in accepted.unique().tolist():
        rows = (accepted == position).nonzero().squeeze(1)
        p, q = (path[rows, : position + 1].numpy() for path in (probs, drafts))
        prefixes = tokens[rows, :position].numpy()
        last = tokens[rows, position].numpy()
        laws = correction_distribution(algorithm, p, q, prefixes)
        wide = correction_distribution(algorithm, slack * p, q, prefixes)
        index = np.arange(len(rows))
        # One of probability 0 is impossible or a near tie, which `DecoderCase.judge` decides.
        excluded = (wide[index, last] == 0) & (p[index, -1, last] > 0)
        rounds.judged_corrections += len(rows)
        rounds.excluded_corrections += int(excluded.sum())
        ends = _ends(case, prompt, tokens[rows], accepted[rows], torch.from_numpy(laws))
        rounds.corrections.add(ends)


def _ends(
    case: DecoderCase, prompt: int, tokens: Tensor, accepted: Tensor, laws: Tensor
) -> DrawnTokens:
    groups = _contexts(case).groups(case.prompts[prompt], tokens, accepted)
    last = tokens[torch.arange(len(tokens)), accepted]
    return DrawnTokens(groups.numpy(), last.numpy(), laws.numpy())


def round_end_label(case: DecoderCase, group: int) -> str:
    """The contexts in a group, as a reader wants them."""
    return _contexts(case).label(group)


def _contexts(case: DecoderCase) -> Contexts:
    return Contexts.told_apart(case.target.vocab_size, most_tokens=2)
