"""What a run returns: tokens, why each row ended, and what it cost."""

from dataclasses import dataclass, field

from torch import Tensor

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

    counters: Counters | None = None
