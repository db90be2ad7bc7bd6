"""Draft trees, as kernels that verify several continuations at once are handed them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from torch import Tensor

from specverify.certification.generated.pairs_of_rows import PAIR_KINDS, row_pairs
from specverify.certification.generated.rows import Row, distributions
from specverify.errors import UsageError
from specverify.lookup import did_you_mean

ROOT = -1
"""Parent of the first draft tokens: the text they continue, which is no node."""

TREE_SHAPES = ("chain", "star", "any")
"""What a tree looks like: one path, as without a tree; leaves under the root alone; nodes under any
node before them, which may come out as one of the others."""

Path = tuple[int, ...]
"""Draft tokens from the root to a node, its own included; empty for the root."""


@dataclass(frozen=True)
class DraftTree:
    """A tree of N draft tokens over V, as numbers that can be written down, compared and hashed.

    Nodes are in topological order: parents come before their children. Nodes with one path, as
    equal siblings have, have the same rows.

    Raises:
        UsageError: lengths do not match, a parent does not come before its child, or a token lies
            outside the vocabulary.
    """

    tokens: tuple[int, ...]
    """[N], token ids."""
    parents: tuple[int, ...]
    """[N], index of the node that each continues; `ROOT`, -1, for the first ones."""
    target: tuple[Row, ...]
    """[N + 1, V], the target's row after the text before the tree, then after each node."""
    draft: tuple[Row, ...]
    """[N + 1, V], in the same order: what the children of the root, then of each node are drawn
    from. Those of leaves are there too, though nothing was drawn from them."""
    dtype: str = "float64"
    """Of the probabilities as tensors."""

    def __post_init__(self) -> None:
        count = len(self.tokens)
        rows = len(self.target), len(self.draft)
        if not count or len(self.parents) != count or rows != (count + 1, count + 1):
            raise UsageError(
                f"{count} tokens, {len(self.parents)} parents, {rows[0]} rows of the target and "
                f"{rows[1]} of the draft; give N >= 1 tokens, N parents, N + 1 rows of each"
            )
        if any(len(row) != self.vocab_size for row in (*self.target, *self.draft)):
            lengths = sorted({len(row) for row in (*self.target, *self.draft)})
            raise UsageError(f"rows have {lengths} entries; all of a tree are over one vocabulary")
        for node, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            if not ROOT <= parent < node:
                raise UsageError(
                    f"parents[{node}]={parent}; a parent comes before its child: an index from 0 "
                    f"to {node - 1}, or {ROOT} for the root"
                )
            if not 0 <= token < self.vocab_size:
                raise UsageError(
                    f"tokens[{node}]={token} lies outside 0 to {self.vocab_size - 1}, the "
                    "vocabulary of its rows"
                )

    @property
    def vocab_size(self) -> int:
        """V."""
        return len(self.target[0])

    @property
    def num_nodes(self) -> int:
        """N, the root not counted."""
        return len(self.tokens)

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """[N], the draft tokens that lead to each node."""
        found: list[Path] = []
        for token, parent in zip(self.tokens, self.parents, strict=True):
            found.append((*(() if parent == ROOT else found[parent]), token))
        return tuple(found)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """[N + 1], nodes under the root, then under each node, in their order."""
        found: list[list[int]] = [[] for _ in range(self.num_nodes + 1)]
        for node, parent in enumerate(self.parents):
            found[parent + 1].append(node)
        return tuple(map(tuple, found))

    @property
    def depth(self) -> int:
        """Draft tokens on the longest path."""
        return max(map(len, self.paths))

    @property
    def width(self) -> int:
        """Most children of the root or of a node."""
        return max(map(len, self.children))

    @property
    def distinct(self) -> bool:
        """Whether siblings have different tokens."""
        return len(set(self.paths)) == self.num_nodes

    @property
    def token_ids(self) -> Tensor:
        """Long [N]."""
        return torch.tensor(self.tokens)

    @property
    def parent_indices(self) -> Tensor:
        """Long [N], -1 under the root."""
        return torch.tensor(self.parents)

    @property
    def target_probs(self) -> Tensor:
        """[N + 1, V], see `target`; row i + 1 decides about the children of node i."""
        return torch.tensor(self.target, dtype=getattr(torch, self.dtype))

    @property
    def draft_probs(self) -> Tensor:
        """[N + 1, V], see `draft`; `draft_probs[parent_indices + 1]` are the rows [N, V] that the
        nodes were drawn from, before those of their siblings that came first were taken out."""
        return torch.tensor(self.draft, dtype=getattr(torch, self.dtype))

    @property
    def attention_mask(self) -> Tensor:
        """Bool [N, N], whether node i sees node j: its ancestors and itself."""
        mask = torch.eye(self.num_nodes, dtype=torch.bool)
        for node, parent in enumerate(self.parents):
            if parent != ROOT:
                mask[node] |= mask[parent]
        return mask


def trees(
    *,
    vocab_sizes: SearchStrategy[int] | None = None,
    depth: int = 3,
    width: int = 3,
    nodes: int = 8,
    distinct: bool = True,
    shapes: Sequence[str] = TREE_SHAPES,
    zeros: bool = True,
    dtypes: tuple[str, ...] = ("float64", "float32"),
    kinds: tuple[str, ...] | None = None,
) -> SearchStrategy[DraftTree]:
    """Draft trees whose tokens are possible under the draft; they shrink to one token of two.

    On the way there they become chains, a node being put under the last one where it may be, and
    their probabilities halves.

    Args:
        vocab_sizes: V; 2 to 4 when omitted.
        depth: draft tokens on a path, at most.
        width: children of a node, at most; no more than the draft has possible tokens where
            siblings are distinct.
        nodes: N at most.
        distinct: whether siblings have different tokens, as if drawn without replacement;
            otherwise the same token may be offered twice.
        shapes: which of `TREE_SHAPES` there may be, the simplest first.
        zeros: whether tokens may be impossible.
        dtypes: of the probabilities as tensors, the simplest first.
        kinds: how the rows of target and draft lie to each other, of `PAIR_KINDS`; unrelated
            simple rows when omitted.

    Raises:
        UsageError: a limit is below 1, or a shape or kind is not known.
    """
    for name, limit in (("depth", depth), ("width", width), ("nodes", nodes)):
        if limit < 1:
            raise UsageError(f"{name}={limit}; a draft tree has one draft token at least: give 1")
    _check_names("shape", shapes, TREE_SHAPES)
    if kinds is not None:
        _check_names("kind", kinds, PAIR_KINDS)
    sizes = st.integers(2, 4) if vocab_sizes is None else vocab_sizes
    limits = _Limits(depth, width, nodes, distinct)
    return _trees(sizes, limits, tuple(shapes), zeros=zeros, dtypes=dtypes, kinds=kinds)


def _check_names(what: str, given: Sequence[str], known: tuple[str, ...]) -> None:
    if not given:
        raise UsageError(f"{what}s is empty; name one at least of {', '.join(known)}")
    for name in given:
        if name not in known:
            raise UsageError(
                f"no {what} {name!r}{did_you_mean(name, known)}; choose of {', '.join(known)}"
            )


@dataclass(frozen=True)
class _Limits:
    depth: int
    width: int
    nodes: int
    distinct: bool


@st.composite
def _trees(
    draw: DrawFn,
    sizes: SearchStrategy[int],
    limits: _Limits,
    shapes: tuple[str, ...],
    *,
    zeros: bool,
    dtypes: tuple[str, ...],
    kinds: tuple[str, ...] | None,
) -> DraftTree:
    size, shape = draw(sizes), draw(st.sampled_from(shapes))
    dtype = draw(st.sampled_from(dtypes))
    rows = distributions(size, zeros=zeros)
    pairs = st.tuples(rows, rows) if kinds is None else row_pairs(size, kinds=kinds, zeros=zeros)
    most = {"chain": limits.depth, "star": limits.width}.get(shape, limits.nodes)
    most = min(most, limits.nodes)
    count = draw(st.integers(min(2, most) if shape == "star" else 1, most))
    growing = _Growing(limits, shape, draw(pairs))
    while len(growing.tokens) < count and (free := growing.free()):
        # A node costs as many choices wherever it stands. What costs fewer is smaller to
        # Hypothesis: trees would shrink towards rows that leave no choice, or equal siblings.
        parent = [*free][draw(st.integers(0, limits.nodes)) % len(free)]
        under = free[parent]
        path = growing.put(parent, under[draw(st.integers(0, size - 1)) % len(under)])
        growing.rows.setdefault(path, draw(pairs))
    every = [growing.rows[path] for path in growing.paths]
    target, draft = (tuple(pair[model] for pair in every) for model in (0, 1))
    return DraftTree(tuple(growing.tokens), tuple(growing.parents), target, draft, dtype)


class _Growing:
    """A tree while nodes are put under it.

    Args:
        limits: what it must not exceed.
        shape: of `TREE_SHAPES`.
        first: rows of target and draft under the root.
    """

    def __init__(self, limits: _Limits, shape: str, first: tuple[Row, Row]) -> None:
        self.limits, self.shape = limits, shape
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.paths: list[Path] = [()]
        """Of the root, then of the nodes."""
        self.rows: dict[Path, tuple[Row, Row]] = {(): first}
        """Of target and draft, by path: what stands there depends on nothing else."""

    def free(self) -> dict[int, list[int]]:
        """Tokens that may come under a node, by node: the last one first, the root last of all."""
        last = len(self.tokens) - 1
        among = {"chain": [last], "star": [ROOT]}.get(self.shape, list(range(last, ROOT - 1, -1)))
        found = {node: self._under(node) for node in among}
        return {node: tokens for node, tokens in found.items() if tokens}

    def put(self, parent: int, token: int) -> Path:
        """Add a node, and give its path."""
        path = (*self.paths[parent + 1], token)
        self.tokens.append(token)
        self.parents.append(parent)
        self.paths.append(path)
        return path

    def _under(self, node: int) -> list[int]:
        path = self.paths[node + 1]
        taken = [t for t, p in zip(self.tokens, self.parents, strict=True) if p == node]
        if len(path) >= self.limits.depth or len(taken) >= self.limits.width:
            return []
        _, draft = self.rows[path]
        possible = [token for token, mass in enumerate(draft) if mass > 0]
        if self.limits.distinct:
            return [token for token in possible if token not in taken]
        return possible
