"""What a row emits once its number of accepted draft tokens is known."""

import torch
from torch import Generator, Tensor

from specverify.categorical import draw
from specverify.verification.checks import RoundInputs
from specverify.verification.protocol import Verified
from specverify.verification.residual import residual


def last_distribution(
    inputs: RoundInputs, accepted: Tensor, weight: Tensor | None = None
) -> Tensor:
    """Distribution of the token that ends the round.

    Args:
        inputs: the round.
        accepted: long [B], draft tokens accepted.
        weight: [B], the probability of the accepted prefix (block verification); 1 when omitted.

    Returns:
        float64 [B, V]: the residual where a draft token was rejected, the target's own
        distribution where all were accepted.
    """
    rows = torch.arange(len(accepted), device=accepted.device)
    p = inputs.p[rows, accepted]
    width = inputs.tokens.shape[1]
    if width == 0:
        return p
    position = accepted.clamp(max=width - 1)
    if inputs.q is None:
        token = inputs.index[rows, position].unsqueeze(1)
        q = torch.zeros_like(p).scatter_(1, token, 1.0)
    else:
        q = inputs.q[rows, position]
    rejected = (accepted < inputs.counts).unsqueeze(1)
    return torch.where(rejected, residual(p, q, weight), p)


def emit(
    inputs: RoundInputs,
    accepted: Tensor,
    generator: Generator | None,
    weight: Tensor | None = None,
) -> Verified:
    """Draw the correction or the bonus token and put it behind the accepted tokens."""
    return assemble(inputs, accepted, draw(last_distribution(inputs, accepted, weight), generator))


def assemble(inputs: RoundInputs, accepted: Tensor, last: Tensor) -> Verified:
    """Put `last`, long [B], behind the accepted draft tokens and pad with -1."""
    padded = torch.nn.functional.pad(inputs.tokens, (0, 1), value=-1)
    position = torch.arange(padded.shape[1], device=padded.device)
    end = accepted.unsqueeze(1)
    tokens = torch.where(position < end, padded, -1)
    return Verified(tokens.scatter_(1, end, last.unsqueeze(1)), accepted)


def leading(kept: Tensor) -> Tensor:
    """Number of true entries before the first false one, bool [B, K] to long [B]."""
    return kept.long().cumprod(1).sum(1)


def coins(inputs: RoundInputs, generator: Generator | None) -> Tensor:
    """Independent uniforms in [0, 1), float64 [B, K], one for each draft token."""
    return torch.rand(
        inputs.tokens.shape, dtype=torch.float64, device=inputs.p.device, generator=generator
    )
