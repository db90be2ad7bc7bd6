"""Exact distributions of rules that take their uniforms as arguments, by bisecting over them."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from specverify.errors import CannotSteer, UsageError
from specverify.exact.boxes import Boxes, Ints, constant_boxes
from specverify.exact.distribution import MASS_TOLERANCE, JointDistribution
from specverify.exact.fed_kernel import FedKernel
from specverify.exact.joint import Tokens
from specverify.exact.round import Round

_BITS = {"float64": 53, "float32": 24}
_POSITIONAL = ("draft_tokens", "draft_probs", "target_probs")
_BLOCKS_AT_ONCE = 1 << 10
_CHECKED_ROWS = 1 << 9


@dataclass(frozen=True)
class Coins:
    """The uniforms a kernel takes as keyword arguments, one entry an argument.

    A float64 coin is k / 2^53, a float32 coin k / 2^24, for an integer k from 0 up to below 1:
    what `torch.rand` and numpy's `random` return on CPU.
    """

    shapes: Mapping[str, str]
    """Argument to shape, made of B (rows), K (draft tokens), K+1 and numbers, B first:
    `{"accept": "[B,K]", "final": "[B]"}`. The fewest boxes are needed if a coin stands before
    those that are looked at only after it. Empty for a kernel that uses no randomness."""
    dtype: Literal["float64", "float32"] = "float64"
    arrays: Literal["torch", "numpy"] = "torch"
    """What the kernel is called with, inputs and coins alike."""
    _sizes: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.dtype not in _BITS:
            raise UsageError(f"coins of dtype {self.dtype!r}; choose float64 or float32")
        if self.arrays not in ("torch", "numpy"):
            raise UsageError(f"coins as arrays={self.arrays!r}; choose torch or numpy")
        sizes = {name: _symbols(name, shape) for name, shape in self.shapes.items()}
        object.__setattr__(self, "_sizes", sizes)

    @property
    def bits(self) -> int:
        """A coin has 2^bits values."""
        return _BITS[self.dtype]

    def dimensions(self, num_draft_tokens: int) -> dict[str, tuple[int, ...]]:
        """Shape of each argument for one row, without B."""
        values = {"K": num_draft_tokens, "K+1": num_draft_tokens + 1}
        return {
            name: tuple(values[s] if s in values else int(s) for s in symbols)
            for name, symbols in self._sizes.items()
        }

    def count(self, num_draft_tokens: int) -> int:
        """Coins a row."""
        return sum(math.prod(shape) for shape in self.dimensions(num_draft_tokens).values())

    def draw(self, rows: int, num_draft_tokens: int, generator: torch.Generator) -> dict[str, Any]:
        """Random coins on the same grid, as keyword arguments for `rows` rows."""
        shape = (rows, self.count(num_draft_tokens))
        points = torch.randint(1 << self.bits, shape, generator=generator, device=generator.device)
        return self.feed(points.cpu().numpy(), num_draft_tokens)

    def feed(self, points: Ints, num_draft_tokens: int) -> dict[str, Any]:
        """Integer coins [N, m], arguments one after the other, as keyword arguments."""
        values = np.ldexp(points.astype(np.float64), -self.bits).astype(self.dtype)
        arguments, start = {}, 0
        for name, shape in self.dimensions(num_draft_tokens).items():
            stop = start + math.prod(shape)
            array = values[:, start:stop].reshape(len(points), *shape).copy()
            arguments[name] = array if self.arrays == "numpy" else torch.from_numpy(array)
            start = stop
        return arguments


def fed_distribution(
    kernel: Callable[..., Any],
    round: Round,
    coins: Coins,
    *,
    seed: int = 0,
    maximum_calls: int = 20_000,
    rows_per_call: int | None = None,
) -> JointDistribution:
    """Compute what a kernel emits over a whole round, drafts included, from its answers alone.

    For one draft block the emitted tuple is a piecewise constant function of the m coins of a row,
    each an integer on its grid. The grid is cut into boxes on which the tuple is constant, every
    boundary bisected to the last bit, and masses are exact volumes (statistics.md section 4). All
    draft blocks and boxes are rows of the same calls; cost grows with the boxes a block needs,
    about V (K + 1) for a rule with one final draw.

    What it cannot see: a region inside a box with the same tuple on all sides is found only by
    chance. One of a share w of a row's coins is missed with probability about (1 - w)^256, one of
    a share w of its box with about (1 - w)^12. The corners of every box are looked at (64 of
    them at most), so boundaries between different tuples are not left to chance, nor is what
    happens only at the coin 0 or at the largest coin while the other coins are at their ends. A
    rule that compares a combination of coins cannot be cut into boxes and is refused.

    Args:
        kernel: called as `kernel(draft_tokens, draft_probs, target_probs, **coins)` with long
            [N, K], [N, K, V] (None for a deterministic draft) and [N, K+1, V] for any number of
            rows; returns the emitted tokens, integers [N, K+1] padded right with -1.
        round: the pair of distributions; every draft block becomes a row.
        coins: the uniforms `kernel` takes.
        seed: of the points looked at.
        maximum_calls: calls of the kernel after which it gives up.
        rows_per_call: most rows a call, 16,384 or fewer at a large vocabulary when omitted.

    Returns:
        Distribution of the emitted tuple, not completed. `crashes` has the mass of what the kernel
        raised; each place that raises is listed with the first message seen there.

    Raises:
        SubjectError: the kernel returned something of another type, shape or range.
        CannotSteer: it gives different answers to the same row (hidden randomness, rows that
            depend on each other, a global generator that moves), needs too many boxes or calls, or
            masses do not sum to 1.
        UsageError: a limit below 1, or bfloat16 probabilities for numpy.
    """
    if maximum_calls < 1 or (rows_per_call is not None and rows_per_call < 1):
        raise UsageError(
            f"maximum_calls={maximum_calls} and rows_per_call={rows_per_call} must be at least 1"
        )
    if coins.arrays == "numpy" and round.dtype == torch.bfloat16:
        raise UsageError("numpy has no bfloat16; give the round another dtype, or arrays='torch'")
    axes = coins.count(round.num_draft_tokens)
    fed = FedKernel(
        kernel,
        round,
        lambda points: coins.feed(points, round.num_draft_tokens),
        numpy_arrays=coins.arrays == "numpy",
        maximum_calls=maximum_calls,
        rows_per_call=rows_per_call,
    )
    generator = np.random.default_rng(seed)
    states = fed.check_rows(*_mixed(len(round.blocks), axes, coins.bits, generator), generator)
    parts: dict[int, list[float]] = defaultdict(list)
    for start in range(0, len(round.blocks), _BLOCKS_AT_ONCE):
        blocks = np.arange(start, min(start + _BLOCKS_AT_ONCE, len(round.blocks)))
        boxes = constant_boxes(
            lambda rows, points, blocks=blocks: fed.outcomes(blocks[rows], points),
            lambda rows, points, codes, blocks=blocks: fed.confirm(blocks[rows], points, codes),
            len(blocks),
            axes,
            coins.bits,
            generator,
        )
        for code, mass in _masses(boxes, round.block_probabilities[blocks], axes * coins.bits):
            parts[code].append(mass)
    fed.check_untouched(states)
    return _joint(fed, {code: math.fsum(masses) for code, masses in parts.items()})


def _symbols(name: str, shape: str) -> tuple[str, ...]:
    """The dimensions of a declared shape after B."""
    if not name.isidentifier() or name in _POSITIONAL:
        raise UsageError(
            f"coins named {name!r}; a kernel takes its coins as keyword arguments, besides "
            f"{', '.join(_POSITIONAL)}"
        )
    inner = shape.replace(" ", "")
    symbols = inner[1:-1].split(",")
    if not (inner.startswith("[") and inner.endswith("]")) or symbols[0] != "B":
        raise UsageError(
            f"coins {name}={shape!r}; write the shape as '[B]', '[B,K]', '[B,K+1]' or '[B,1]': in "
            "brackets, B first, since every row needs coins of its own"
        )
    for symbol in symbols[1:]:
        if symbol == "V":
            raise UsageError(
                f"coins {name}={shape!r} are one noise a token (a race), which decides along no "
                "single coin and cannot be bisected; draw the token from one uniform, or leave "
                "coins undeclared and let specverify branch or sample"
            )
        if symbol not in ("K", "K+1") and not (symbol.isdecimal() and int(symbol) > 0):
            raise UsageError(
                f"coins {name}={shape!r} has the unknown dimension {symbol!r}; after B stand K, "
                "K+1 or a positive number"
            )
    return tuple(symbols[1:])


def _mixed(blocks: int, axes: int, bits: int, generator: np.random.Generator) -> tuple[Ints, Ints]:
    """Draft blocks and coins in a random mix, a quarter of the coins at an end of the grid."""
    rows = generator.permutation(np.resize(np.arange(blocks), _CHECKED_ROWS))
    points = generator.integers(0, 1 << bits, (len(rows), axes))
    ends = generator.integers(0, 2, points.shape) * ((1 << bits) - 1)
    return rows, np.where(generator.random(points.shape) < 0.25, ends, points)


def _masses(boxes: Boxes, block_probabilities: np.ndarray, bits: int) -> list[tuple[int, float]]:
    """Outcome and probability, one pair for each outcome of each row."""
    volumes: dict[tuple[int, int], int] = defaultdict(int)
    totals: dict[int, int] = defaultdict(int)
    for row, code, volume in zip(
        boxes.rows.tolist(), boxes.outcomes.tolist(), boxes.volumes(), strict=True
    ):
        volumes[row, code] += volume
        totals[row] += volume
    whole = 1 << bits
    if set(totals.values()) != {whole} or len(totals) != len(block_probabilities):
        raise CannotSteer("the boxes found do not cover all coins exactly once")
    # Division of Python integers rounds once, however large they are.
    return [
        (code, float(block_probabilities[row]) * (volume / whole))
        for (row, code), volume in volumes.items()
    ]


def _joint(fed: FedKernel, masses: Mapping[int, float]) -> JointDistribution:
    probabilities: dict[Tokens, float] = {}
    crashes: dict[str, float] = defaultdict(float)
    for code, mass in sorted(masses.items()):
        if mass == 0:
            continue
        if code < 0:
            crashes[fed.crash(code)] += mass
        else:
            probabilities[fed.tokens(code)] = mass
    joint = JointDistribution(probabilities, "coins", fed.calls, dict(crashes))
    if not abs(joint.total - 1) <= MASS_TOLERANCE:
        raise CannotSteer(f"the masses found sum to {joint.total!r}, not to 1")
    return joint
