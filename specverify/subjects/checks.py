"""What a subject's return value must look like before anything is concluded from it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from specverify.decoding.output import DecoderOutput
from specverify.errors import SubjectError

_PADDING = "the only id below 0 is -1, as padding to the right of what was emitted"


def emitted_tokens(value: Any, rows: int, vocab_size: int, *, what: str) -> Tensor:
    """Check a tensor of emitted tokens.

    Args:
        value: what the subject returned.
        rows: B.
        vocab_size: V.
        what: how messages name the value.

    Returns:
        long [B, L].

    Raises:
        SubjectError: not an integer tensor [B, L], an id outside -1 to V-1, -1 before a token, or
            a row without any token.
    """
    tokens = _integers(value, rows, what)
    outside = (tokens < -1) | (tokens >= vocab_size)
    if bool(outside.any()):
        row, column = outside.nonzero()[0].tolist()
        raise SubjectError(
            f"{what}[{row}, {column}] is {int(tokens[row, column])}, but token ids run from 0 to "
            f"{vocab_size - 1}; {_PADDING}"
        )
    _check_padding(tokens, what)
    silent = (tokens < 0).all(1)
    if bool(silent.any()):
        raise SubjectError(
            f"{what}[{int(silent.nonzero()[0, 0])}] holds no token; every call must emit at least "
            "one token for each row (the correction or the bonus token, if nothing else)"
        )
    return tokens


def decoder_output(value: Any, rows: int, vocab_size: int, *, what: str) -> DecoderOutput:
    """Check what a decoder returned; a bare tensor of tokens stands for an output without extras.

    A round may draft, and accept, more tokens than it was asked to: how many is the decoder's own
    schedule, and changes no distribution.

    Raises:
        SubjectError: `tokens` is not right (see `emitted_tokens`), or an optional field
            contradicts its definition in `DecoderOutput`.
    """
    output = DecoderOutput(tokens=value) if isinstance(value, Tensor) else value
    if not isinstance(output, DecoderOutput):
        raise SubjectError(
            f"{what} is a {type(value).__name__}; return a specverify DecoderOutput or the tensor "
            "of emitted tokens [B, L], without the prompt"
        )
    tokens = emitted_tokens(output.tokens, rows, vocab_size, what=f"{what}.tokens")
    lengths = (tokens >= 0).sum(1)
    drafted = output.drafted
    if drafted is not None:
        drafted = _counts(drafted, rows, f"{what}.drafted")
    accepted = output.accepted
    if accepted is not None:
        accepted = _counts(accepted, rows, f"{what}.accepted")
        _check_rounds(accepted, lengths, f"{what}.accepted")
        if drafted is not None:
            accepted, drafted = _one_width(accepted, drafted)
            _check_accepted_within_drafted(accepted, drafted, what)
    for name in ("logprobs", "raw_logprobs"):
        _check_logprobs(getattr(output, name), tokens, f"{what}.{name}")
    reasons = output.finish_reasons
    if reasons is not None and (not isinstance(reasons, Sequence) or len(reasons) != rows):
        count = len(reasons) if isinstance(reasons, Sequence) else type(reasons).__name__
        raise SubjectError(
            f"{what}.finish_reasons has {count} entries for {rows} rows; give a list of one each"
        )
    return DecoderOutput(
        tokens=tokens,
        accepted=accepted,
        drafted=drafted,
        finish_reasons=reasons,
        logprobs=output.logprobs,
        raw_logprobs=output.raw_logprobs,
        counters=output.counters,
    )


def transformed_logits(value: Any, logits: Tensor, *, what: str) -> Tensor:
    """Check what a transform returned for `logits`: same shape, floats, finite or -inf.

    Raises:
        SubjectError: anything else, or a row on which every token is masked.
    """
    if not isinstance(value, Tensor):
        raise SubjectError(f"{what} is a {type(value).__name__}; return the logits as a tensor")
    if value.shape != logits.shape:
        raise SubjectError(
            f"{what} has shape {list(value.shape)}; it must be that of the logits handed in, "
            f"{list(logits.shape)}"
        )
    _check_readable(value, what)
    if not value.is_floating_point():
        raise SubjectError(f"{what} has dtype {value.dtype}; return floating-point logits")
    for fault, entries in (("NaN", value.isnan()), ("+inf", value == torch.inf)):
        if bool(entries.any()):
            raise SubjectError(
                f"{what}{entries.nonzero()[0].tolist()} is {fault}; logits are finite, or -inf for "
                "a token that must not be drawn"
            )
    masked = (value == -torch.inf).all(-1)
    if bool(masked.any()):
        raise SubjectError(
            f"{what}{masked.nonzero()[0].tolist()} is -inf throughout; a transform must leave at "
            "least one token"
        )
    return value.detach()


def _integers(value: Any, rows: int, what: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise SubjectError(
            f"{what} is a {type(value).__name__}; return an integer tensor with one row a sequence"
        )
    if value.ndim != 2 or value.shape[0] != rows:
        single = value.ndim == 1 or (value.ndim == 2 and value.shape[0] == 1)
        hint = ". If it takes one row a call, declare batch=False, or say --one-row-a-call"
        raise SubjectError(
            f"{what} has shape {list(value.shape)}; the call had {rows} rows, so it must be "
            f"[{rows}, L]{hint if single and rows > 1 else ''}"
        )
    _check_readable(value, what)
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise SubjectError(f"{what} has dtype {value.dtype}; it must hold integers: use .long()")
    return value.detach().long()


def _check_readable(value: Tensor, what: str) -> None:
    if value.is_meta or value.layout != torch.strided:
        kind = "on the meta device" if value.is_meta else f"of layout {value.layout}"
        raise SubjectError(
            f"{what} is a tensor {kind}, whose entries cannot be read; return a dense tensor "
            "that holds data"
        )


def _check_padding(values: Tensor, what: str) -> None:
    resumed = (values[:, :-1] < 0) & (values[:, 1:] >= 0)
    if bool(resumed.any()):
        row, column = resumed.nonzero()[0].tolist()
        raise SubjectError(
            f"{what}[{row}, {column}] is -1 and a value follows it; {_PADDING}: keep the row's "
            "entries together on the left"
        )


def _counts(value: Any, rows: int, what: str) -> Tensor:
    counts = _integers(value, rows, what)
    if bool((counts < -1).any()):
        row, column = (counts < -1).nonzero()[0].tolist()
        raise SubjectError(
            f"{what}[{row}, {column}] is {int(counts[row, column])}; it counts draft tokens (the "
            "correction or bonus token is not one), and -1 marks rounds after the end of a row"
        )
    _check_padding(counts, what)
    return counts


def _check_rounds(accepted: Tensor, lengths: Tensor, what: str) -> None:
    """A round emits `accepted + 1` tokens, and only the last one of a row may be cut."""
    emitted = accepted + 1
    most = emitted.sum(1)
    last = (accepted >= 0).sum(1).sub(1).clamp(min=0)
    least = most - emitted.gather(1, last[:, None]).squeeze(1) if emitted.shape[1] else most
    wrong = (lengths > most) | (lengths <= least)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0, 0])
        raise SubjectError(
            f"{what}[{row}] is {accepted[row].tolist()}, which makes {int(least[row]) + 1} to "
            f"{int(most[row])} tokens, but the row has {int(lengths[row])}; a round emits its "
            "accepted draft tokens and one more. Leave the field out if it is not known"
        )


def _one_width(accepted: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
    """Both padded right with -1 to the wider of the two."""
    width = max(accepted.shape[1], drafted.shape[1])
    first, second = (pad(x, (0, width - x.shape[1]), value=-1) for x in (accepted, drafted))
    return first, second


def _check_accepted_within_drafted(accepted: Tensor, drafted: Tensor, what: str) -> None:
    rounds, offers = (accepted >= 0).sum(1), (drafted >= 0).sum(1)
    if not torch.equal(rounds, offers):
        row = int((rounds != offers).nonzero()[0, 0])
        raise SubjectError(
            f"{what}.accepted[{row}] has {int(rounds[row])} rounds and {what}.drafted[{row}] "
            f"{int(offers[row])}; both have one entry for each round"
        )
    wrong = accepted > drafted
    if bool(wrong.any()):
        row, column = wrong.nonzero()[0].tolist()
        raise SubjectError(
            f"{what}.accepted[{row}, {column}] is {int(accepted[row, column])}, more than the "
            f"{int(drafted[row, column])} draft tokens offered in that round"
        )


def _check_logprobs(value: Any, tokens: Tensor, what: str) -> None:
    if value is None:
        return
    if not isinstance(value, Tensor) or value.shape != tokens.shape:
        shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise SubjectError(
            f"{what} has shape {shape}; it needs one log probability for each entry of tokens "
            f"{list(tokens.shape)}"
        )
