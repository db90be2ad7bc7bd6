"""Races: the largest of w/E, or of log w + Gumbel noise, is a draw with probabilities w."""

from typing import Any

import torch
from torch import Tensor

from specverify.exact.steering.arithmetic import NORMALISED
from specverify.exact.steering.operation import Operation
from specverify.exact.steering.source_line import current_line
from specverify.exact.steering.steering import Steering
from specverify.exact.steering.symbols import (
    LARGEST_WINS,
    SMALLEST_WINS,
    Noise,
    Opaque,
    Pending,
    Symbol,
)

RACES = frozenset({"argmax", "argmin", "max", "min", "topk"})


def race(steering: Steering, operation: Operation, symbols: dict[int, Symbol]) -> Any:
    """Find the winner.

    The noise counts as ideal: ties and the grid of the floats are left out, which is why half-width
    races are refused. Rows without a positive weight, or with NaN or infinity among the weights,
    have the winner that the plain values have, whatever the noise.
    """
    noise, tensor = symbols[0], operation.args[0]
    if not isinstance(noise, Noise) or noise.form is None or noise.log_weight is None:
        raise steering.refuse(f"{operation.name} of random numbers that are no race")
    smallest = operation.name in ("argmin", "min") or not operation.argument(
        "largest", default=True
    )
    if noise.form not in (SMALLEST_WINS if smallest else LARGEST_WINS):
        raise steering.refuse(f"{operation.name} finds the loser of a race")
    if tensor.dtype not in (torch.float32, torch.float64):
        raise steering.refuse(
            f"a race in {tensor.dtype}, whose ties change its probabilities; use float32"
        )
    if operation.name == "topk" and operation.argument("k") != 1:
        raise steering.refuse("topk of more than one winner of a race")
    result = operation.run()
    if isinstance(result, Tensor) and operation.name in ("max", "min"):
        steering.shadows.set(result, Opaque(torch.zeros(result.shape, dtype=torch.long)))
        return result
    winners = result if isinstance(result, Tensor) else result[1]
    dim = operation.argument("dim", default=-1 if operation.name == "topk" else None)
    keep = operation.name == "topk" or bool(operation.argument("keepdim", default=False))
    if dim is None:
        dim, keep = 0, False
        noise, tensor = noise.map(torch.Tensor.flatten), tensor.flatten()
    squeezed = winners.squeeze(dim) if keep else winners
    _attach(
        steering,
        noise.map(lambda field: field.movedim(dim, -1)),
        tensor.movedim(dim, -1),
        squeezed,
        smallest=smallest,
    )
    if not isinstance(result, Tensor):
        steering.shadows.set(result[0], Opaque(torch.zeros(result[0].shape, dtype=torch.long)))
    return result


def _attach(
    steering: Steering, noise: Noise, values: Tensor, winners: Tensor, *, smallest: bool
) -> None:
    """Attach draws to `winners` [...], from noise and plain values [..., n]."""
    weight = noise.log_weight
    assert weight is not None
    fixed = noise.ids < 0
    hopeless = values == (torch.inf if smallest else -torch.inf)
    if noise.form == "inv":
        hopeless |= values == 0
    if bool((fixed & ~hopeless).any()):
        raise steering.refuse("a race in which some of the runners are plain numbers")
    weight = torch.where(fixed, -torch.inf, weight)
    best = weight.amax(-1)  # NaN wherever a weight is
    raced = best.isfinite()
    if not bool(raced.any()):
        _check_decided(steering, values[~raced])
        return
    _check_decided(steering, values[~raced])
    ids = torch.where(fixed, noise.ids.amax(-1, keepdim=True), noise.ids)[raced]
    row = steering.path.row(ids)
    if bool((row != row[:, :1]).any()) or bool((row < 0).any()):
        raise steering.refuse("the rows of a batch share the noise of a race")
    alone = -1 - torch.arange(weight.shape[-1])
    if _repeats(torch.where(fixed, alone, noise.ids)[raced]):
        raise steering.refuse("one noise element runs twice in the same race")
    _check_together(steering, noise, raced & ~fixed.all(-1))
    draws = steering.draws.add(
        weight[raced].softmax(-1),
        torch.arange(weight.shape[-1]),
        row[:, 0],
        current_line(),
        ids,
    )
    pending = torch.full(winners.shape, -1)
    pending[raced] = draws
    steering.shadows.set(winners, Pending(pending))


def _check_together(steering: Steering, noise: Noise, raced: Tensor) -> None:
    """Runners that a softmax has scaled are comparable within that softmax only."""
    taken = 0
    for step in noise.steps:
        if step is NORMALISED:
            together = torch.where(noise.ids < 0, -1, noise.operands[taken])[raced]
            others = torch.where(together < 0, together.amax(-1, keepdim=True), together)
            if bool((others != others[:, :1]).any()):
                raise steering.refuse("a race among numbers that several softmaxes have scaled")
        taken += step.operands


def _check_decided(steering: Steering, values: Tensor) -> None:
    """Rows without a race are decided by plain values: NaN, infinity, or nothing but zeros."""
    if values.numel() and bool((values.isfinite().all(-1) & (values != 0).any(-1)).any()):
        raise steering.refuse("a race without a positive weight")


def _repeats(ids: Tensor) -> bool:
    """Whether an element stands twice in a row of [..., n]; as a rule they stand in order."""
    if bool((ids.diff(dim=-1) > 0).all()):
        return False
    return bool((ids.sort(-1).values.diff(dim=-1) == 0).any())
