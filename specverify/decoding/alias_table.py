"""Alias tables: a draw from any of many distributions for one uniform and two look-ups.

Walker 1974; Vose 1991, "A linear algorithm for generating random numbers with a given
distribution". Drawing is written for numpy: every step is one pass over a buffer that is reused.

Precision: uniforms lie on the grid of 2^-53, scaling them by a power of two is exact, and cell
boundaries are rounded to that grid. A distribution over V tokens is met within V * 2^-51 in total
variation (4e-15 at V = 8). A token of probability 0 has an empty cell and is nobody's alias: it
cannot be drawn.
"""

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray


class AliasTable:
    """Draws from R distributions at once; each outcome names a token and the next context.

    With M the next power of two from V, a uniform times M falls into one of M cells, each split
    between its own token and one alias (Vose 1991). An outcome is an integer whose low `bits` bits
    hold the token and whose high bits hold the next context times M: the *offset* of the row to
    draw from next.

    Args:
        probs: float64 [R, V], nonnegative rows that sum to 1.
        successors: integers [R, V], the context after each token.
        bits: width of the token field.
    """

    def __init__(
        self, probs: NDArray[np.float64], successors: NDArray[np.int64], bits: int
    ) -> None:
        rows, vocab_size = probs.shape
        self.cells = num_cells(vocab_size)
        pad = [(0, 0), (0, self.cells - vocab_size)]
        share, alias = _split_cells(np.pad(probs, pad))
        outcomes = (np.pad(successors, pad) * self.cells << bits) | np.arange(self.cells)
        # Entry 2 * cell + 1 is the cell's own token: the bit that is set below the boundary.
        pairs = np.stack([np.take_along_axis(outcomes, alias, 1), outcomes], -1)
        tokens = np.stack([alias, np.broadcast_to(np.arange(self.cells), alias.shape)], -1)
        self.boundaries = (share + np.arange(self.cells)).ravel()
        self.outcomes = pairs.ravel()
        self.tokens = tokens.reshape(rows, 2 * self.cells)

    def draw(
        self,
        offsets: NDArray[np.int64],
        generator: Generator,
        scratch: "Scratch",
        out: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Draw one outcome per entry of `offsets` into `out`.

        Returns:
            Where in `outcomes` each was found; overwritten by the next draw.
        """
        uniform, cell, index = scratch.uniform, scratch.cell, scratch.index
        generator.random(out=uniform)
        np.multiply(uniform, self.cells, out=uniform)
        np.copyto(index, uniform, casting="unsafe")
        np.add(index, offsets, out=index)
        # Indices are valid by construction; the default mode would buffer the output to check.
        # The sign of uniform - boundary is 1 below the boundary, and becomes the lowest bit.
        np.take(self.boundaries, index, out=cell, mode="wrap")
        np.subtract(uniform, cell, out=cell)
        sign = cell.view(np.uint64)
        np.right_shift(sign, 63, out=sign)
        np.add(index, index, out=index)
        np.add(index, sign.view(np.int64), out=index)
        np.take(self.outcomes, index, out=out, mode="wrap")
        return index

    def probabilities(self, vocab_size: int) -> NDArray[np.float64]:
        """The distributions [R, V] that `draw` really has, from the table it reads."""
        rows = len(self.tokens)
        own = self.boundaries.reshape(rows, self.cells) - np.arange(self.cells)
        weights = np.stack([1 - own, own], -1).reshape(rows, -1) / self.cells
        probs = np.zeros((rows, self.cells))
        np.add.at(probs, (np.arange(rows)[:, None], self.tokens), weights)
        return probs[:, :vocab_size]


class Scratch:
    """Buffers of one row each, allocated once a batch: fresh ones would cost page faults."""

    def __init__(self, rows: int) -> None:
        self.uniform = np.empty(rows)
        self.cell = np.empty(rows)
        self.index = np.empty(rows, np.int64)
        self.offsets = np.empty(rows, np.int64)


def num_cells(vocab_size: int) -> int:
    """The power of two from `vocab_size` upwards: scaling a uniform by it is exact."""
    return 1 << (vocab_size - 1).bit_length()


def _split_cells(probs: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Share of each cell that is its own token's, and the token that has the rest, [R, M] each.

    Every step fills the emptiest open cell from the fullest, in all rows at once. The fullest has
    at least 1 up to rounding, so a token of probability 0 is never an alias.
    """
    rows, cells = probs.shape
    every = np.arange(rows)
    mass = probs * (cells / probs.sum(1, keepdims=True))
    closed = np.zeros(probs.shape, bool)
    share = np.ones(probs.shape)
    alias = np.tile(np.arange(cells), (rows, 1))
    for _ in range(cells - 1):
        low = np.where(closed, np.inf, mass).argmin(1)
        closed[every, low] = True
        high = np.where(closed, -np.inf, mass).argmax(1)
        kept = mass[every, low]
        share[every, low] = kept
        alias[every, low] = high
        mass[every, high] -= 1.0 - kept
    return share, alias
