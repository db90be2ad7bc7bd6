"""Rounds on which a rule's exact distribution is computed: random ones and degenerate ones."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specverify.exact.conditional import Conditional
from specverify.exact.round import Round

Row = NDArray[np.float64]
Rows = tuple[Row, Row]
"""A row of the target and one of the draft, [V] each."""

DTYPES = (torch.float64, torch.float32)
RANDOM = {
    torch.float64: ((4, 3), (6, 2), (3, 2), (3, 1)),
    torch.float32: ((4, 2), (3, 1)),
}
"""V and K of the random rounds, the largest one first."""
VOCAB_SIZE, NUM_DRAFT_TOKENS = 4, 2
"""V and K of the degenerate ones: all rows at all positions are of one kind."""


@dataclass(frozen=True)
class RoundCase:
    """One round that a rule is asked to decide."""

    id: str
    round: Round
    rows_compared: bool = False
    """Whether rows of one call are compared with each other too."""
    edge_coins: bool = False
    """Whether the rule is also run with coins at the ends of every interval."""

    @property
    def num_draft_tokens(self) -> int:
        """K."""
        return self.round.num_draft_tokens

    @property
    def size(self) -> str:
        """V and K, for a reader."""
        return f"V={self.round.vocab_size}, K={self.round.num_draft_tokens}"


def exact_rounds(algorithm: str | None = None) -> list[RoundCase]:
    """The rounds for a rule; the same for every seed, so that each can be run again by its id.

    Args:
        algorithm: the rule declares; a greedy rule is asked about targets that have one possible
            token only, as temperature 0 makes them.
    """
    cases = []
    for dtype in DTYPES:
        suffix = f"-{str(dtype).removeprefix('torch.')}"
        if algorithm != "greedy":
            for size, count in RANDOM[dtype]:
                round = Round.random(size, count, seed=size + count, dtype=dtype)
                id = f"exact/random-V{size}-K{count}{suffix}"
                cases.append(RoundCase(id, round, (size, count) == (3, 2), (size, count) == (3, 1)))
        for kind, make in KINDS.items():
            if algorithm != "greedy" or kind in _ONE_TARGET:
                round = degenerate(make, kind, dtype)
                # Where probabilities are 0, what a coin of 0 does depends on the coin's dtype only.
                edges = kind == "zeros" and dtype == torch.float64
                cases.append(RoundCase(f"exact/{kind}{suffix}", round, edge_coins=edges))
    return cases


def degenerate(make: "MakeRows", kind: str, dtype: torch.dtype) -> Round:
    """A round all of whose rows `make` has made; `kind` seeds them."""
    generator = np.random.default_rng(zlib.crc32(kind.encode()))
    resolution = np.float64 if dtype == torch.float64 else np.float32
    tables: list[tuple[Row, Row]] = []
    for depth in range(NUM_DRAFT_TOKENS + 1):
        rows = [make(generator, resolution) for _ in range(VOCAB_SIZE**depth)]
        tables.append((np.stack([p for p, _ in rows]), np.stack([q for _, q in rows])))
    target = _looked_up([p for p, _ in tables])
    draft = _looked_up([q for _, q in tables])
    return Round(target, draft, VOCAB_SIZE, NUM_DRAFT_TOKENS, dtype)


def _looked_up(tables: list[Row]) -> Conditional:
    """The conditional with these rows, by depth and code of the prefix."""

    def rows(prefixes: NDArray[np.int64]) -> Row:
        depth = prefixes.shape[1]
        powers = VOCAB_SIZE ** np.arange(depth - 1, -1, -1)
        return tables[depth][prefixes @ powers]

    return rows


def _random(generator: np.random.Generator) -> Row:
    return _normalised(np.exp(generator.normal(size=VOCAB_SIZE)))


def _normalised(weights: Row) -> Row:
    return weights / weights.sum()


def _one_hot(generator: np.random.Generator) -> Row:
    return np.eye(VOCAB_SIZE)[generator.integers(VOCAB_SIZE)]


def _equal(generator: np.random.Generator, _: type[np.floating]) -> Rows:
    p = _random(generator)
    return p, p


def _ulp_apart(generator: np.random.Generator, resolution: type[np.floating]) -> Rows:
    """One entry of the draft is a neighbour of the target's: the residual is one ulp, or empty."""
    p = _random(generator).astype(resolution)
    q = p.copy()
    token = generator.integers(VOCAB_SIZE)
    q[token] = np.nextafter(p[token], resolution(generator.integers(2)))
    return p.astype(np.float64), q.astype(np.float64)


def _one_hot_target(generator: np.random.Generator, _: type[np.floating]) -> Rows:
    return _one_hot(generator), _random(generator)


def _one_hot_draft(generator: np.random.Generator, _: type[np.floating]) -> Rows:
    return _random(generator), _one_hot(generator)


def _one_hot_both(generator: np.random.Generator, _: type[np.floating]) -> Rows:
    return _one_hot(generator), _one_hot(generator)


def _zeros(generator: np.random.Generator, _: type[np.floating]) -> Rows:
    """One token is impossible under the target, another one under the draft."""
    p, q = _random(generator), _random(generator)
    impossible, undrafted = generator.permutation(VOCAB_SIZE)[:2]
    p[impossible] = q[undrafted] = 0
    return _normalised(p), _normalised(q)


def _disjoint(generator: np.random.Generator, _: type[np.floating]) -> Rows:
    """No token is possible under both."""
    inside = np.isin(np.arange(VOCAB_SIZE), generator.permutation(VOCAB_SIZE)[: VOCAB_SIZE // 2])
    return _normalised(_random(generator) * inside), _normalised(_random(generator) * ~inside)


def _ties(generator: np.random.Generator, _: type[np.floating]) -> Rows:
    """Dyadic probabilities: ratios of exactly 1, 1/2 and 2, and entries that are equal."""
    weights = np.array([0.5, 0.25, 0.125, 0.125])
    return generator.permutation(weights), generator.permutation(weights)


def _subnormal(generator: np.random.Generator, resolution: type[np.floating]) -> Rows:
    """A token of subnormal probability under the target, another one under the draft."""
    p, q = _random(generator), _random(generator)
    first, second = generator.permutation(VOCAB_SIZE)[:2]
    p[first] = q[second] = 0
    p, q = _normalised(p), _normalised(q)
    p[first] = q[second] = float(np.finfo(resolution).smallest_subnormal) * 1000
    return p, q


MakeRows = Callable[[np.random.Generator, type[np.floating]], Rows]
KINDS: dict[str, MakeRows] = {
    "equal": _equal,
    "ulp-apart": _ulp_apart,
    "one-hot-target": _one_hot_target,
    "one-hot-draft": _one_hot_draft,
    "one-hot-both": _one_hot_both,
    "zeros": _zeros,
    "disjoint": _disjoint,
    "ties": _ties,
    "subnormal": _subnormal,
}
"""Degenerate rows by kind."""
_ONE_TARGET = ("one-hot-target", "one-hot-both")
