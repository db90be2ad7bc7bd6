"""Questions about drawn tokens to which every possible token gives the same answer."""

from typing import Any

from torch import Tensor

from specverify.exact.steering.operation import Operation, replaced
from specverify.exact.steering.steering import Steering
from specverify.exact.steering.symbols import Pending, Symbol

QUESTIONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isin"})
_MOST = 64
"""Draws asked about one by one; more are simply taken."""


def ask(steering: Steering, operation: Operation, symbols: dict[int, Symbol]) -> Any:
    """Answer without drawing where the draw does not matter, such as whether it is padding.

    Returns:
        The answers, or NotImplemented if one of them depends on what is drawn.
    """
    if len(symbols) != 1 or operation.in_place:
        return NotImplemented
    ((place, tokens),) = symbols.items()
    if not isinstance(tokens, Pending) or (operation.name == "isin" and place != 0):
        return NotImplemented
    other = operation.args[1 - place]
    alone = operation.name == "isin" or not isinstance(other, Tensor) or other.numel() == 1
    places = (tokens.ids >= 0).nonzero()
    if not alone or len(places) > _MOST:
        return NotImplemented
    result = operation.run()
    for index in places.unbind():
        at = tuple(index.tolist())
        possible = steering.draws.possible(int(tokens.ids[at])).to(operation.args[place].dtype)
        answers = operation.func(*replaced(operation.args, place, possible), **operation.kwargs)
        answers = answers.reshape(-1)
        if bool((answers != answers[0]).any()):
            return NotImplemented
        result[at] = answers[0]
    return result
