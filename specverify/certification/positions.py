"""Every token of a run held against its own distribution, by its position in the run."""

from torch import Tensor

from specverify.certification.contexts import Contexts
from specverify.certification.decoder_case import DecoderCase
from specverify.certification.laws import law_rows
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
    present = tokens[:, : probs.shape[1]] >= 0
    rows, positions = present.nonzero(as_tuple=True)
    groups = contexts.groups(case.prompts[prompt], tokens, rows, positions)
    tally.add(
        DrawnTokens(
            (groups + positions * contexts.count).numpy(),
            tokens[rows, positions].numpy(),
            law_rows(probs, present).numpy(),
        )
    )


def position_label(case: DecoderCase, group: int) -> str:
    """Position and context of a group, as a reader wants them."""
    contexts = _contexts(case)
    position, context = divmod(group, contexts.count)
    return f"as token {position + 1} of a run, {contexts.label(context)}"


def _contexts(case: DecoderCase) -> Contexts:
    return Contexts.told_apart(case.target.vocab_size, most_tokens=1, places=case.length)
