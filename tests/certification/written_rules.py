"""Token verification as users write it, with the randomness that a test is about."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

Coins = Callable[..., Tensor]
"""Ratios [B, K] and the generator, if there is one, to coins [B, K]."""
Last = Callable[..., Tensor]
"""Weights [B, V] and the generator to tokens [B]."""


def coins(ratio: Tensor, generator: Generator) -> Tensor:
    return torch.rand(ratio.shape, dtype=ratio.dtype, generator=generator)


def last(weights: Tensor, generator: Generator) -> Tensor:
    return torch.multinomial(weights, 1, generator=generator)[:, 0]


def token_rule(coins: Coins = coins, last: Last = last) -> Callable[..., Tensor]:
    """A rule that takes its randomness from `coins` and `last`."""

    def rule(tokens: Tensor, q: Tensor, p: Tensor, *generator: Generator) -> Tensor:
        index = tokens[..., None]
        ratio = p[:, :-1].gather(2, index)[..., 0] / q.gather(2, index)[..., 0]
        accepted = (coins(ratio, *generator) < ratio).long().cumprod(1).sum(1)
        return emitted(tokens, accepted, last(after(q, p, accepted), *generator))

    return rule


def after(q: Tensor, p: Tensor, accepted: Tensor) -> Tensor:
    """Weights [B, V] of the token that ends a round; p where rounding has emptied the residual."""
    weights = torch.cat([(p[:, :-1] - q).clamp(min=0), p[:, -1:]], 1)
    weights = torch.where(weights.sum(-1, keepdim=True) > 0, weights, p)
    return weights[torch.arange(len(p)), accepted]


def emitted(tokens: Tensor, accepted: Tensor, final: Tensor) -> Tensor:
    """Accepted draft tokens and the last one, [B, K+1]."""
    at = accepted[:, None]
    out = torch.cat([tokens, final[:, None]], 1).scatter(1, at, final[:, None])
    return out.masked_fill(torch.arange(out.shape[1]) > at, -1)


def one_noise(tokens: Tensor, q: Tensor, p: Tensor, generator: Generator) -> Tensor:
    """The same exponential noise for the token after every prefix, of which one is emitted."""
    index = tokens[..., None]
    ratio = p[:, :-1].gather(2, index)[..., 0] / q.gather(2, index)[..., 0]
    accepted = (coins(ratio, generator) < ratio).long().cumprod(1).sum(1)
    weights = torch.cat([(p[:, :-1] - q).clamp(min=0), p[:, -1:]], 1)
    weights = torch.where(weights.sum(-1, keepdim=True) > 0, weights, p)
    noise = torch.empty(len(p), 1, p.shape[2], dtype=p.dtype).exponential_(generator=generator)
    final = (weights / noise).argmax(-1)
    return emitted(tokens, accepted, final[torch.arange(len(p)), accepted])


def fed(tokens: Any, q: Any, p: Any, *, accept: Any, final: Any) -> Any:
    """A rule on numpy arrays that is handed its coins."""
    rows, index = np.arange(len(tokens)), tokens[..., None]
    ratio = np.take_along_axis(p[:, :-1], index, 2) / np.take_along_axis(q, index, 2)
    accepted = np.cumprod(accept < ratio[..., 0], 1).sum(1)
    weights = np.concatenate([np.maximum(p[:, :-1] - q, 0), p[:, -1:]], 1)[rows, accepted]
    weights = np.where(weights.sum(1, keepdims=True) > 0, weights, p[rows, accepted])
    summed = np.cumsum(weights, 1)
    out = np.concatenate([tokens, tokens[:, :1]], 1)
    out[rows, accepted] = (final[:, None] * summed[:, -1:] < summed).argmax(1)
    out[np.arange(out.shape[1]) > accepted[:, None]] = -1
    return out
