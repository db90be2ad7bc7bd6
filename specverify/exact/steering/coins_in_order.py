"""Coins that are still in the air: masked, and looked at one after the other.

A rule that stops at the first rejection reads its coins from left to right, by `cumprod` or by
counting rejections. What it does not read is not decided, so K coins have K + 1 outcomes for it; a
rule that reads all of them, such as block verification, gets all 2^K.
"""

from typing import Any

import torch
from torch import Tensor

from specverify.exact.steering.operation import Operation
from specverify.exact.steering.steering import Steering
from specverify.exact.steering.symbols import Counted, Symbol, Threshold

MASKS = {"bitwise_and": True, "logical_and": True, "bitwise_or": False, "logical_or": False}
"""Operations with a mask, and the value of the mask that leaves a coin as it is."""

NEGATIONS = frozenset({"bitwise_not", "logical_not"})
SCANS = frozenset({"cumprod", "cumsum"})
BOUNDED = {"lt": False, "le": False, "eq": False, "gt": True, "ge": True, "ne": True}
"""Comparisons, and what they give once the left side is too large."""

_TURNED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def negate(steering: Steering, operation: Operation, symbols: dict[int, Symbol]) -> Any:
    """Turn coins over."""
    coins = symbols.get(0)
    if not isinstance(coins, Threshold) or operation.args[0].dtype != torch.bool:
        return NotImplemented
    result = operation.run()
    steering.shadows.set(result, Threshold(coins.ids, coins.cut, ~coins.above))
    return result


def mask(steering: Steering, operation: Operation, symbols: dict[int, Symbol]) -> Any:
    """Combine coins with a mask of plain values."""
    if len(symbols) != 1:
        return NotImplemented
    ((place, coins),) = symbols.items()
    other = operation.args[1 - place]
    plain = isinstance(other, Tensor) and other.dtype == torch.bool
    if not isinstance(coins, Threshold) or not plain or (operation.in_place and place == 1):
        return NotImplemented
    result = operation.run()
    keeps = other == MASKS[operation.name]
    coins = coins.map(lambda field: field.expand(result.shape))
    ids = torch.where(keeps, coins.ids, -1)
    steering.shadows.set(result, Threshold(ids, coins.cut, coins.above))
    return result


def scan(steering: Steering, operation: Operation, symbols: dict[int, Symbol]) -> Any:
    """Multiply coins up, or count them, deciding only as many as it takes."""
    coins = symbols.get(0)
    if not isinstance(coins, Threshold) or operation.in_place:
        return NotImplemented
    tensor, dim = operation.args[0], operation.argument("dim")
    columns = tensor.movedim(dim, -1)
    stops = 0 if operation.name == "cumprod" else 1
    going = torch.ones(columns.shape[:-1], dtype=torch.bool)
    for column in columns.unbind(-1):
        steering.decide_where(column, going)
        going = going & (column != stops)
        if not bool(going.any()):
            break
    result = operation.run()
    left = steering.shadows.of(tensor)
    if left is not None and stops:
        # Counts after the first one: at least 1, and no more is known.
        floor = torch.ones_like(result, dtype=torch.long)
        kept = tensor.clone()  # of the coins as they are now, whatever is written over them
        steering.shadows.set(kept, left)
        steering.shadows.set(result, Counted(left.ids, floor, (kept, dim, result)))
    return result


def bound(steering: Steering, operation: Operation, symbols: dict[int, Symbol]) -> Any:
    """Compare counts with a number that what is known of them settles."""
    if len(symbols) != 1:
        return NotImplemented
    ((place, counts),) = symbols.items()
    if not isinstance(counts, Counted):
        return NotImplemented
    name = operation.name if place == 0 else _TURNED[operation.name]
    number = operation.args[1 - place]
    over = counts.floor >= number if name in ("lt", "ge") else counts.floor > number
    if not bool((over | (counts.ids < 0)).all()):
        return NotImplemented
    result = operation.run()
    return torch.where(counts.ids >= 0, BOUNDED[name], result)
