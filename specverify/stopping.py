"""When a run ends: stop tokens, stop sequences, the length limit.

A run ends with the first token after which one of these holds, and that token is the last one
emitted:

- it is one of `stop_token_ids` (transforms make these impossible before `min_new_tokens`);
- more than `min_new_tokens` tokens are out and the emitted ones end with a stop sequence; a
  sequence never reaches back into the prompt;
- `max_new_tokens` are out.
"""

from typing import Literal

import torch
from torch import Tensor

from specverify.settings import SamplingSettings

FinishReason = Literal["stop_token", "stop_sequence", "length"]
REASONS: tuple[FinishReason, ...] = ("stop_token", "stop_sequence", "length")


def stop_codes(
    tokens: Tensor, prompt_lengths: Tensor, starts: Tensor, count: int, settings: SamplingSettings
) -> Tensor:
    """Say at which of `count` consecutive tokens of each row a run would end, and why.

    Args:
        tokens: long [B, W], prompt without padding followed by emitted tokens.
        prompt_lengths: long [B].
        starts: long [B], index of the first token looked at.
        count: tokens looked at per row.
        settings: the stopping rules.

    Returns:
        int8 [B, count]: 0 where the run goes on, else 1 + the index of the reason in `REASONS`.
    """
    positions = starts[:, None] + torch.arange(count, device=tokens.device)
    emitted = positions + 1 - prompt_lengths[:, None]
    looked_at = tokens.gather(1, positions)
    codes = torch.zeros(positions.shape, dtype=torch.int8, device=tokens.device)
    codes[emitted >= settings.max_new_tokens] = 3
    for sequence in settings.stop_sequences:
        ends_here = (emitted > settings.min_new_tokens) & (emitted >= len(sequence))
        for back, token in enumerate(reversed(sequence)):
            ends_here &= tokens.gather(1, (positions - back).clamp(min=0)) == token
        codes[ends_here] = 2
    if settings.stop_token_ids:
        stop_ids = torch.tensor(settings.stop_token_ids, device=tokens.device)
        codes[torch.isin(looked_at, stop_ids)] = 1
    return codes


def run_lengths(emitted: Tensor, settings: SamplingSettings) -> tuple[Tensor, Tensor]:
    """Find where each row of emitted tokens had to end.

    Args:
        emitted: long [B, L], padded right with -1.
        settings: the stopping rules.

    Returns:
        The required number of tokens [B] (0 if no token so far ends the run) and the code of the
        reason [B], as `stop_codes` gives it.
    """
    rows, width = emitted.shape
    zeros = torch.zeros(rows, dtype=torch.long, device=emitted.device)
    if width == 0:
        return zeros, zeros.to(torch.int8)
    codes = stop_codes(emitted, zeros, zeros, width, settings)
    codes[emitted < 0] = 0
    ends = codes != 0
    first = ends.int().argmax(1)
    code = codes.gather(1, first[:, None]).squeeze(1)
    return torch.where(ends.any(1), first + 1, zeros), code
