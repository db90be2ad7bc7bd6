"""The distributions that the tokens ending first rounds should have, token by token."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specverify.certification.conditional import (
    WITH_CORRECTION,
    Array,
    correction_distribution,
)
from specverify.certification.contexts import Contexts
from specverify.certification.decoder_case import DecoderCase
from specverify.certification.laws import Laws
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
    laws: Laws,
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
        laws: along the runs, [N, L, V] each.
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
    bonus_laws = laws.p[bonus, accepted[bonus]]
    rounds.bonuses.add(_ends(case, prompt, tokens[bonus], accepted[bonus], bonus_laws))
    if algorithm in WITH_CORRECTION and drafted is not None:
        rows = (shown & (accepted < drafted)).nonzero().squeeze(1)
        _count_corrections(rounds, case, algorithm, prompt, tokens, laws, accepted, rows)


def _count_corrections(
    rounds: FirstRounds,
    case: DecoderCase,
    algorithm: str,
    prompt: int,
    tokens: Tensor,
    laws: Laws,
    accepted: Tensor,
    rejecting: Tensor,
) -> None:
    """Add the rounds of the rows that are `rejecting`, long [M]: they ended with a rejection."""
    places = accepted[rejecting]
    if algorithm == "block":
        due = torch.empty(len(rejecting), case.target.vocab_size, dtype=torch.float64)
        for position in places.unique().tolist():
            here = (places == position).nonzero().squeeze(1)
            rows = rejecting[here]
            p, q = (law[rows, : position + 1].numpy() for law in (laws.p, laws.q))
            prefixes = tokens[rows, :position].numpy()
            due[here] = _due(rounds, case, algorithm, p, q, prefixes, tokens[rows, position])
    else:
        # Only the place of the rejection counts, so all of them are one computation.
        p, q = (law[rejecting, places].numpy()[:, None] for law in (laws.p, laws.q))
        prefixes = np.zeros((len(rejecting), 0), np.int64)
        due = _due(rounds, case, algorithm, p, q, prefixes, tokens[rejecting, places])
    rounds.judged_corrections += len(rejecting)
    rounds.corrections.add(_ends(case, prompt, tokens[rejecting], places, due))


def _due(
    rounds: FirstRounds,
    case: DecoderCase,
    algorithm: str,
    p: Array,
    q: Array,
    prefixes: NDArray[np.int64],
    corrections: Tensor,
) -> Tensor:
    """Distributions that corrections should have; those that these exclude are counted."""
    due = correction_distribution(algorithm, p, q, prefixes)
    last = corrections.numpy()
    index = np.arange(len(last))
    # One of probability 0 is impossible or a near tie, which `DecoderCase.judge` decides.
    suspects = np.flatnonzero((due[index, last] == 0) & (p[index, -1, last] > 0))
    if len(suspects):
        # A token counts as excluded only if it stays so when p and q are off by as much as two
        # passes over the same prefix may differ.
        slack = math.exp(4 * case.tolerance)
        wide = correction_distribution(
            algorithm, slack * p[suspects], q[suspects], prefixes[suspects]
        )
        excluded = wide[np.arange(len(suspects)), last[suspects]] == 0
        rounds.excluded_corrections += int(excluded.sum())
    return torch.from_numpy(due)


def _ends(
    case: DecoderCase, prompt: int, tokens: Tensor, accepted: Tensor, laws: Tensor
) -> DrawnTokens:
    rows = torch.arange(len(tokens))
    groups = _contexts(case).groups(case.prompts[prompt], tokens, rows, accepted)
    last = tokens[rows, accepted]
    return DrawnTokens(groups.numpy(), last.numpy(), laws.numpy())


def round_end_label(case: DecoderCase, group: int) -> str:
    """The contexts in a group, as a reader wants them."""
    return _contexts(case).label(group)


def _contexts(case: DecoderCase) -> Contexts:
    return Contexts.told_apart(case.target.vocab_size, most_tokens=2)
