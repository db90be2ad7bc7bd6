"""What the drafts that a decoder reports must look like before anything is concluded from them."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from specverify.decoding.output import DecoderOutput
from specverify.errors import SubjectError


def reported_drafts(
    output: DecoderOutput, rows: int, vocab_size: int, drafted: Tensor | None, *, what: str
) -> tuple[Tensor | None, Tensor | None]:
    """Check reported draft tokens and the distributions they are said to be drawn from.

    Whether those are distributions, and of these tokens, is for a property to judge.

    Args:
        output: what the subject returned.
        rows: B.
        vocab_size: V.
        drafted: long [B, rounds], draft tokens offered as counted by the subject, if it does.
        what: how messages name the output.

    Returns:
        Copies of both, long [B, rounds, K] and floating [B, rounds, K, V]; None where not reported.

    Raises:
        SubjectError: a wrong shape, dtype or token id, a gap in a block, probabilities without
            tokens, or another number of tokens than `drafted` says.
    """
    if output.draft_tokens is None:
        if output.draft_probs is not None:
            raise SubjectError(
                f"{what} has draft_probs and no draft_tokens; a distribution is judged by the "
                "token drawn from it: return both, or neither"
            )
        return None, None
    tokens = _tokens(output.draft_tokens, rows, vocab_size, f"{what}.draft_tokens")
    if drafted is not None:
        _check_counts(tokens, drafted, what)
    probs = output.draft_probs
    if probs is None:
        return tokens, None
    shape = (*tokens.shape, vocab_size)
    if not isinstance(probs, Tensor) or probs.shape != shape or not probs.is_floating_point():
        raise SubjectError(
            f"{what}.draft_probs is {_described(probs)}; return floating-point distributions "
            f"{list(shape)}, one for each entry of draft_tokens"
        )
    return tokens, probs.detach().clone()


def _tokens(value: object, rows: int, vocab_size: int, what: str) -> Tensor:
    whole = isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex())
    if not isinstance(value, Tensor) or not whole or value.ndim != 3 or len(value) != rows:
        raise SubjectError(
            f"{what} is {_described(value)}; return an integer tensor [{rows}, rounds, K], padded "
            "right with -1"
        )
    tokens = value.detach().long().clone()
    outside = (tokens < -1) | (tokens >= vocab_size)
    if bool(outside.any()):
        place = outside.nonzero()[0].tolist()
        raise SubjectError(
            f"{what}{place} is {int(tokens[tuple(place)])}, but token ids run from 0 to "
            f"{vocab_size - 1}, and -1 marks places without a draft token"
        )
    resumed = (tokens[:, :, :-1] < 0) & (tokens[:, :, 1:] >= 0)
    if bool(resumed.any()):
        raise SubjectError(
            f"{what}{resumed.nonzero()[0].tolist()} is -1 and a token follows it; keep the draft "
            "tokens of a round together on the left"
        )
    return tokens


def _check_counts(tokens: Tensor, drafted: Tensor, what: str) -> None:
    counts, offered = (tokens >= 0).sum(2), drafted.clamp(min=0)
    width = max(counts.shape[1], offered.shape[1])
    counts, offered = (pad(x, (0, width - x.shape[1])) for x in (counts, offered))
    if not torch.equal(counts, offered):
        row, column = (counts != offered).nonzero()[0].tolist()
        raise SubjectError(
            f"{what}.draft_tokens[{row}, {column}] holds {int(counts[row, column])} tokens and "
            f"{what}.drafted[{row}, {column}] is {int(offered[row, column])}; both tell what the "
            "round offered"
        )


def _described(value: object) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{value.dtype} {list(value.shape)}"
