"""Distributions over token sequences as dicts: compared, completed, composed from block kernels."""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from specverify.errors import UsageError
from specverify.exact.conditional import Conditional, IsEnd, checked_ends, checked_rows

Tokens: TypeAlias = tuple[int, ...]
Joint: TypeAlias = Mapping[Tokens, float]
"""Token sequences to probabilities; sequences left out have probability 0."""

BlockKernel: TypeAlias = Callable[[Tokens], Joint]
"""Emitted prefix to the distribution of the tokens the next round emits, at least one."""


def total_variation(a: Joint, b: Joint) -> float:
    """TV(a, b) = half the sum of |a - b|, over the union of their sequences."""
    return math.fsum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in a.keys() | b.keys()) / 2


def largest_ratio(a: Joint, b: Joint) -> float:
    """Largest a / b over sequences of positive a; infinite where b has no mass.

    A lossy rule with a declared bound (such as lenience l, a / b <= 1 / l) is checked by it.
    """
    ratios = (
        mass / b[key] if b.get(key, 0.0) > 0 else math.inf for key, mass in a.items() if mass > 0
    )
    return max(ratios, default=0.0)


def outside_support(a: Joint, b: Joint) -> dict[Tokens, float]:
    """Sequences with positive mass under a and none under b, with that mass, largest first."""
    outside = {key: mass for key, mass in a.items() if mass > 0 and not b.get(key, 0.0) > 0}
    return dict(sorted(outside.items(), key=lambda item: (-item[1], item[0])))


def complete(
    round_distribution: Joint, conditional: Conditional, length: int
) -> dict[Tokens, float]:
    """Continue the shorter tuples of one round autoregressively to `length` tokens.

    Rounds emit tuples of different length; completed, their joint distribution must be the
    target's (design.md section 1). A rule that emits fewer tokens than it could, chosen without
    looking at those withheld, passes; one that decides by them does not.

    Args:
        round_distribution: distribution of the emitted tuple, 1 to `length` tokens.
        conditional: target's next-token distributions, int64 [N, t] to [N, V].
        length: tokens to complete to, K + 1 for a block of K.

    Returns:
        Distribution over sequences of exactly `length` tokens.

    Raises:
        UsageError: a tuple of positive mass is empty or longer than `length`, the masses do not
            sum to 1 within 1e-6, or `conditional` misbehaves as in `PrefixTree.grow`.
    """
    _check_distribution(round_distribution, "round_distribution")
    levels: list[dict[Tokens, float]] = [{} for _ in range(length + 1)]
    for emitted, mass in round_distribution.items():
        if mass == 0:
            continue
        if not 1 <= len(emitted) <= length:
            raise UsageError(f"a round emitted {emitted}; it must emit 1 to {length} tokens")
        levels[len(emitted)][emitted] = mass
    for shorter, longer in itertools.pairwise(levels):
        if not shorter:
            continue
        probs = checked_rows(conditional(np.array(list(shorter), np.int64)), len(shorter))
        for (prefix, mass), row in zip(shorter.items(), probs, strict=True):
            for token in np.flatnonzero(row).tolist():
                key = (*prefix, token)
                longer[key] = longer.get(key, 0.0) + mass * float(row[token])
    return levels[length]


def joint_of_block_kernel(
    kernel: BlockKernel, length: int, is_end: IsEnd | None = None
) -> dict[Tokens, float]:
    """Compose a memoryless block kernel into the stopped distribution of the first tokens.

    Dynamic programming over prefixes (algorithms.md section 0, P3): mass(prefix + block) +=
    mass(prefix) kernel(prefix)(block); a block is cut at its first token that ends the run, or at
    `length`. Equals the autoregressive `PrefixTree.sequences` if and only if the rule is lossless
    over that many tokens.

    Args:
        kernel: distribution of the tokens one round emits after a prefix, each tuple nonempty.
            It may depend on nothing but the prefix.
        length: tokens to compose to, at least 1.
        is_end: stopping rule on prefixes; none stop when omitted.

    Returns:
        Distribution over sequences that ended or have `length` tokens.

    Raises:
        UsageError: length < 1, the kernel emits an empty tuple or masses that do not sum to 1
            within 1e-6, or `is_end` returns another shape.
    """
    if length < 1:
        raise UsageError(f"a joint distribution needs at least one token, got length={length}")
    ends: dict[Tokens, bool] = {}

    def stops(prefix: Tokens) -> bool:
        if prefix not in ends:
            ends[prefix] = bool(checked_ends(is_end, np.array([prefix], np.int64))[0])
        return len(prefix) == length or ends[prefix]

    joint: dict[Tokens, float] = {}
    levels: list[dict[Tokens, float]] = [{} for _ in range(length)]
    levels[0][()] = 1.0
    for level in levels:
        for prefix, reach in level.items():
            blocks = kernel(prefix)
            _check_distribution(blocks, f"the kernel after {prefix}")
            for block, mass in blocks.items():
                if mass == 0:
                    continue
                if not block:
                    raise UsageError(f"the kernel after {prefix} emits nothing; it must emit")
                cut = len(block)
                for size in range(1, len(block) + 1):
                    if stops(prefix + block[:size]):
                        cut = size
                        break
                emitted = prefix + block[:cut]
                store = joint if stops(emitted) else levels[len(emitted)]
                store[emitted] = store.get(emitted, 0.0) + reach * mass
    return joint


def _check_distribution(masses: Joint, what: str) -> None:
    total = math.fsum(masses.values())
    if min(masses.values(), default=0.0) < 0 or not abs(total - 1) <= 1e-6:
        raise UsageError(f"{what} sums to {total!r}; probabilities are nonnegative and sum to 1")
