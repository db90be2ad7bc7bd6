"""What a run returns: tokens, why each row ended, and what it cost."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad

from specverify.stopping import FinishReason


@dataclass
class Counters:
    """What a run cost, summed over its rows.

    Identities (algorithms.md section 3): `emitted` is the sum over rounds of `accepted + 1` less
    `cut`; `accepted_by_position` never increases; `accepted <= drafted`.
    """

    rounds: int = 0
    """Rounds in which a row took part, summed over rows."""
    target_passes: int = 0
    """Forward passes of the target over the whole batch, prefill included."""
    draft_passes: int = 0
    drafted: int = 0
    """Draft tokens offered to verification."""
    accepted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    """Entry `i` counts the rounds that accepted draft token `i` (0-based)."""
    emitted: int = 0
    cut: int = 0
    """Verified tokens thrown away because the row had stopped before them."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time by phase: prefill, draft, score, verify, commit."""
    peak_memory_bytes: int = 0
    """Peak memory of the process (CPU) or of the device (CUDA) seen at the end of the run."""


@dataclass
class DecoderOutput:
    """Result of one `generate` call on a batch of B prompts.

    `tokens` is all a subject must return; the rest is judged only where it is given.
    """

    tokens: Tensor
    """long [B, L], new tokens without the prompt, padded right with -1."""

    accepted: Tensor | None = None
    """long [B, rounds], draft tokens accepted in each round, -1 once a row has ended. The
    correction or bonus token is not counted and always belongs to its round."""

    drafted: Tensor | None = None
    """long [B, rounds], draft tokens offered in each round, -1 once a row has ended."""

    finish_reasons: list[FinishReason] | None = None

    logprobs: Tensor | None = None
    """float64 [B, L], log probability of each emitted token after transforms."""

    raw_logprobs: Tensor | None = None
    """float64 [B, L], the same before transforms."""

    target_probs: Tensor | None = None
    """floating [B, L, V], the target distribution after transforms that the decoder itself saw
    where each token was decided. It judges the rule alone: a stale cache agrees with itself."""

    draft_tokens: Tensor | None = None
    """long [B, rounds, K], the draft tokens offered in each round, padded right with -1."""

    draft_probs: Tensor | None = None
    """floating [B, rounds, K, V], the distribution q that each draft token was drawn from, one-hot
    for one that was not drawn; 0 where nothing was offered."""

    counters: Counters | None = None


def joined(outputs: Sequence[DecoderOutput]) -> DecoderOutput:
    """The rows of several outputs one after the other, what only some of them have left out.

    Tokens, counts of rounds, drafts and recorded distributions are kept.
    """
    if len(outputs) == 1:
        return outputs[0]
    return DecoderOutput(
        tokens=_stacked([output.tokens for output in outputs], -1),
        accepted=_stacked_known([output.accepted for output in outputs], -1),
        drafted=_stacked_known([output.drafted for output in outputs], -1),
        target_probs=_stacked_known([output.target_probs for output in outputs], 0),
        draft_tokens=_stacked_known([output.draft_tokens for output in outputs], -1),
        draft_probs=_stacked_known([output.draft_probs for output in outputs], 0),
    )


def first_rows(output: DecoderOutput, rows: int) -> DecoderOutput:
    """The first rows of an output, in the fields that `joined` keeps."""
    return chosen_rows(output, slice(rows))


def chosen_rows(output: DecoderOutput, rows: slice | Tensor) -> DecoderOutput:
    """Some rows of an output, or all in another order, in the fields that `joined` keeps."""
    kept = {
        name: None if (field := getattr(output, name)) is None else field[rows]
        for name in ("accepted", "drafted", "target_probs", "draft_tokens", "draft_probs")
    }
    return DecoderOutput(tokens=output.tokens[rows], **kept)


def _stacked_known(parts: Sequence[Tensor | None], padding: int) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return _stacked(known, padding) if len(known) == len(parts) else None


def _stacked(parts: Sequence[Tensor], padding: int) -> Tensor:
    """Tensors [B, ...] below each other, every other dimension padded to its longest."""
    widths = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
    padded = []
    for part in parts:
        missing = [most - size for most, size in zip(widths, part.shape[1:], strict=True)]
        # `pad` wants the last dimension first.
        padded.append(pad(part, [n for m in reversed(missing) for n in (0, m)], value=padding))
    return torch.cat(padded)
