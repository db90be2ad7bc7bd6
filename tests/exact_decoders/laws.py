"""What token verification emits, by the definition and in numpy: independent of what is tested."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Tokens: TypeAlias = tuple[int, ...]
Law: TypeAlias = dict[Tokens, float]
Row = Callable[[Tokens], NDArray[np.float64]]
"""Emitted prefix to the distribution of the next token, [V]."""
Offered = Callable[[Tokens, int], bool]
"""Whether a draft token is offered after a prefix, or ends the block before itself."""


def everything(prefix: Tokens, token: int) -> bool:
    return True


def token_round(
    p: Row, drawn: Row, reported: Row, prefix: Tokens, count: int, offered: Offered = everything
) -> Law:
    """One round of token verification of `count` drafts from `drawn`, judged by `reported`."""
    target = p(prefix)
    if count == 0:
        return {(token,): float(mass) for token, mass in enumerate(target)}
    draft, q = drawn(prefix), reported(prefix)
    excess = np.maximum(target - q, 0)
    correction = excess / excess.sum() if excess.sum() > 0 else target
    law: Law = {}
    for drafted, chance in enumerate(draft):
        if not offered(prefix, drafted):
            for token, mass in enumerate(target):
                law[token,] = law.get((token,), 0.0) + chance * mass
            continue
        ratio = target[drafted] / q[drafted] if q[drafted] > 0 else float(target[drafted] > 0)
        accepted = chance * min(1.0, ratio)
        for token, mass in enumerate(correction):
            law[token,] = law.get((token,), 0.0) + (chance - accepted) * mass
        if accepted > 0:
            after = token_round(p, drawn, reported, (*prefix, drafted), count - 1, offered)
            for block, mass in after.items():
                key = (drafted, *block)
                law[key] = law.get(key, 0.0) + accepted * mass
    return law


def run(kernel: Callable[[Tokens, int], Law], num_draft_tokens: int, length: int) -> Law:
    """Rounds until `length` tokens are out; no round drafts more than can still be emitted.

    Args:
        kernel: emitted prefix and number of draft tokens to what the round emits.
        num_draft_tokens: K.
        length: tokens of a run.
    """
    law: Law = {}
    open_ = {(): 1.0}
    while open_:
        prefix, reach = open_.popitem()
        for block, mass in kernel(prefix, min(num_draft_tokens, length - 1 - len(prefix))).items():
            if mass > 0:
                emitted = prefix + block
                store = law if len(emitted) == length else open_
                store[emitted] = store.get(emitted, 0.0) + reach * mass
    return law
