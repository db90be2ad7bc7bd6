"""Draws from categorical distributions that can never return an impossible outcome."""

import torch
from torch import Generator, Tensor

_COUNTING_LIMIT = 64
"""Up to this many categories counting comparisons beats a binary search on CPU."""


def draw(probs: Tensor, generator: Generator | None = None) -> Tensor:
    """Draw one index per row by inverting the cumulative distribution in float64.

    The index is the first whose cumulative sum lies strictly above `u * total`, so an index of
    probability 0 is never returned, whatever u; rows need not be normalised exactly.

    Args:
        probs: nonnegative [..., V].
        generator: source of the one float64 uniform per row; torch's global one when None.

    Returns:
        long [...].

    Raises:
        ValueError: there is no category, or a row sums to 0, to infinity, or holds NaN.
    """
    if probs.shape[-1] == 0:
        raise ValueError(
            f"probabilities of shape {list(probs.shape)} have no category to draw; the last "
            "dimension is the vocabulary"
        )
    cumulative = probs.double().cumsum(-1)
    total = cumulative[..., -1:]
    smallest = _checked_smallest(total) if total.numel() else 1.0
    u = torch.rand(total.shape, dtype=torch.float64, device=probs.device, generator=generator)
    level = u * total
    if smallest < torch.finfo(torch.float64).tiny:
        # A subnormal product may round up to the total itself, beyond which no index lies.
        level = torch.minimum(level, torch.nextafter(total, torch.zeros_like(total)))
    if probs.shape[-1] <= _COUNTING_LIMIT:
        index = (cumulative <= level).sum(-1)
    else:
        index = torch.searchsorted(cumulative, level, right=True).squeeze(-1)
    # On CPU the sum runs from left to right: where a probability is 0 it does not move. A parallel
    # scan associates neighbours differently and may move by an ulp.
    return index if probs.device.type == "cpu" else _possible(probs, index)


def _checked_smallest(total: Tensor) -> float:
    """Return the smallest row sum, after checking that all are positive and finite."""
    smallest, largest = (bound.item() for bound in total.aminmax())
    if not (smallest > 0 and largest < torch.inf):
        bad = total[~((total > 0) & total.isfinite())]
        raise ValueError(
            f"a row of probabilities sums to {bad[0].item()}; every row needs a positive, "
            "finite sum: check the transforms for a row with every token masked, or logits of NaN"
        )
    return smallest


def _possible(probs: Tensor, index: Tensor) -> Tensor:
    """Move each index back to the nearest one of positive probability."""
    positions = torch.arange(probs.shape[-1], device=probs.device)
    latest = torch.where(probs > 0, positions, 0).cummax(-1).values
    return latest.gather(-1, index.unsqueeze(-1)).squeeze(-1)
