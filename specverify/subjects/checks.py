"""What a subject's return value must look like before anything is concluded from it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from specverify.decoding.output import DecoderOutput
from specverify.errors import SubjectError
from specverify.quoting import a_type
from specverify.subjects.draft_checks import reported_drafts

_SUM_TOLERANCE = 1e-2
"""How far the sum of a recorded distribution may be off 1: half-width ones are."""

_PADDING = "the only id below 0 is -1, as padding to the right of what was emitted"


class UndefinedLogits(SubjectError):
    """A transform returned logits that mean no distribution: NaN, +inf or all of them -inf."""


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
    _check_tokens(tokens, vocab_size, what)
    return tokens


def _check_tokens(tokens: Tensor, vocab_size: int, what: str) -> None:
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


def decoder_output(
    value: Any, rows: int, vocab_size: int, *, what: str, always_one_more: bool = True
) -> DecoderOutput:
    """Check what a decoder returned, shapes first and then values.

    Args:
        value: what the subject returned.
        rows: B.
        vocab_size: V.
        what: how messages name the value.
        always_one_more: see `check_output`.

    Raises:
        SubjectError: see `readable_output` and `check_output`.
    """
    output = readable_output(value, rows, vocab_size, what=what)
    check_output(output, vocab_size, what=what, always_one_more=always_one_more)
    return output


def readable_output(value: Any, rows: int, vocab_size: int, *, what: str) -> DecoderOutput:
    """Check types and shapes of what a decoder returned; a bare tensor stands for the tokens.

    Tensors are copied, since a subject may return the same buffers from every call.

    Raises:
        SubjectError: some field has another type or shape than `DecoderOutput` says.
    """
    output = DecoderOutput(tokens=value) if isinstance(value, Tensor) else value
    if not isinstance(output, DecoderOutput):
        raise SubjectError(
            f"{what} is {a_type(value)}; return a specverify DecoderOutput or the tensor "
            "of emitted tokens [B, L], without the prompt"
        )
    tokens = _integers(output.tokens, rows, f"{what}.tokens")
    accepted, drafted = (
        None if counts is None else _integers(counts, rows, f"{what}.{name}")
        for name, counts in (("accepted", output.accepted), ("drafted", output.drafted))
    )
    if accepted is not None and drafted is not None:
        accepted, drafted = _one_width(accepted, drafted)
    for name in ("logprobs", "raw_logprobs"):
        _check_logprobs(getattr(output, name), tokens, f"{what}.{name}")
    _check_probs(output.target_probs, tokens, vocab_size, f"{what}.target_probs")
    draft_tokens, draft_probs = reported_drafts(output, rows, vocab_size, drafted, what=what)
    logprobs, raw_logprobs, target_probs = (
        None if recorded is None else recorded.detach().clone()
        for recorded in (output.logprobs, output.raw_logprobs, output.target_probs)
    )
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
        draft_tokens=draft_tokens,
        draft_probs=draft_probs,
        logprobs=logprobs,
        raw_logprobs=raw_logprobs,
        target_probs=target_probs,
        counters=output.counters,
    )


def check_output(
    output: DecoderOutput, vocab_size: int, *, what: str, always_one_more: bool = True
) -> None:
    """Check the values of a readable output, which may be that of several calls joined.

    A round may draft, and accept, more tokens than it was asked to: how many is the decoder's own
    schedule, and changes no distribution.

    Args:
        output: what `readable_output` gave.
        vocab_size: V.
        what: how messages name it.
        always_one_more: whether every round ends with a correction or a bonus token, as a declared
            algorithm says; otherwise a round that accepted its whole block may lack the bonus.

    Raises:
        SubjectError: `tokens` is not right (see `emitted_tokens`), or the counts of rounds
            contradict their definition in `DecoderOutput`.
    """
    _check_tokens(output.tokens, vocab_size, f"{what}.tokens")
    accepted, drafted = output.accepted, output.drafted
    if drafted is not None:
        _check_counts(drafted, f"{what}.drafted")
    if accepted is None:
        return
    _check_counts(accepted, f"{what}.accepted")
    if drafted is not None:
        _check_accepted_within_drafted(accepted, drafted, what)
    optional = torch.zeros_like(accepted)
    if not always_one_more:
        optional = accepted == (accepted if drafted is None else drafted)
    lengths = (output.tokens >= 0).sum(1)
    _check_rounds(accepted, lengths, f"{what}.accepted", optional & (accepted > 0))


def _check_probs(probs: Tensor | None, tokens: Tensor, vocab_size: int, what: str) -> None:
    """Recorded distributions: one for each emitted token, each summing to 1."""
    if probs is None:
        return
    shape = (*tokens.shape, vocab_size)
    if not isinstance(probs, Tensor) or probs.shape != shape or not probs.is_floating_point():
        found = list(probs.shape) if isinstance(probs, Tensor) else type(probs).__name__
        raise SubjectError(
            f"{what} is {found}; return floating-point distributions {list(shape)}, one for each "
            "emitted token"
        )
    emitted = probs[tokens >= 0].double()
    off = ((emitted.sum(1) - 1).abs() > _SUM_TOLERANCE) | (emitted < 0).any(1)
    if bool((off | emitted.isnan().any(1)).any()):
        raise SubjectError(
            f"{what} holds rows that are no distributions (a sum of "
            f"{float(emitted[off | emitted.isnan().any(1)][0].sum())}); record probabilities after "
            "transforms, not logits"
        )


def transformed_logits(value: Any, logits: Tensor, *, what: str, copy: bool = True) -> Tensor:
    """Check what a transform returned for `logits`: same shape, floats, finite or -inf.

    Raises:
        UndefinedLogits: NaN, +inf, or a row on which every token is masked.
        SubjectError: anything else.
    """
    if not isinstance(value, Tensor):
        raise SubjectError(f"{what} is {a_type(value)}; return the logits as a tensor")
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
            raise UndefinedLogits(
                f"{what}{entries.nonzero()[0].tolist()} is {fault}; logits are finite, or -inf for "
                "a token that must not be drawn"
            )
    masked = (value == -torch.inf).all(-1)
    if bool(masked.any()):
        raise UndefinedLogits(
            f"{what}{masked.nonzero()[0].tolist()} is -inf throughout; a transform must leave at "
            "least one token"
        )
    # The transform may return the same buffer from every call.
    return value.detach().clone() if copy else value.detach()


def _integers(value: Any, rows: int, what: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise SubjectError(
            f"{what} is {a_type(value)}; return an integer tensor with one row a sequence"
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
    # A copy: the subject may return the same buffer from every call.
    return value.detach().to(torch.long, copy=True)


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


def _check_counts(counts: Tensor, what: str) -> None:
    if bool((counts < -1).any()):
        row, column = (counts < -1).nonzero()[0].tolist()
        raise SubjectError(
            f"{what}[{row}, {column}] is {int(counts[row, column])}; it counts draft tokens (the "
            "correction or bonus token is not one), and -1 marks rounds after the end of a row"
        )
    _check_padding(counts, what)


def _check_rounds(accepted: Tensor, lengths: Tensor, what: str, optional: Tensor) -> None:
    """A round emits `accepted + 1` tokens, and only the last one of a row may be cut.

    Where `optional`, bool [B, rounds], the one more may be missing.
    """
    emitted = accepted + 1
    most = emitted.sum(1)
    last = (accepted >= 0).sum(1).sub(1).clamp(min=0)
    certain = emitted - optional.long()
    least = certain.sum(1)
    if emitted.shape[1]:
        least -= certain.gather(1, last[:, None]).squeeze(1)
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
    if accepted.shape[1] == drafted.shape[1]:
        return accepted, drafted
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
