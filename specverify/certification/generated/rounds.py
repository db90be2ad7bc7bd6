"""Rounds of verification and draft blocks."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from numpy.typing import NDArray
from torch import Tensor

from specverify.certification.generated.pairs_of_rows import row_pairs
from specverify.certification.generated.rows import Row, distributions
from specverify.errors import UsageError
from specverify.exact.conditional import Conditional
from specverify.exact.round import Round

Table = tuple[Row, ...]
"""Rows after every prefix of one length, in the order of `Round.p`."""


@dataclass(frozen=True)
class RoundTables:
    """The numbers of a round, which can be written down, compared and hashed."""

    target: tuple[Table, ...]
    """By depth 0 to K, [V^depth, V]."""
    draft: tuple[Table, ...]
    """By depth 0 to K - 1."""
    dtype: str = "float64"
    one_hot: bool = False
    """See `Round`."""

    @property
    def vocab_size(self) -> int:
        """V."""
        return len(self.target[0][0])

    @property
    def num_draft_tokens(self) -> int:
        """K."""
        return len(self.draft)

    @cached_property
    def round(self) -> Round:
        """What a rule is handed."""
        return Round(
            _looked_up(self.target),
            _looked_up(self.draft),
            self.vocab_size,
            self.num_draft_tokens,
            getattr(torch, self.dtype),
            self.one_hot,
        )


@st.composite
def round_tables(
    draw: DrawFn,
    *,
    vocab_sizes: SearchStrategy[int] | None = None,
    num_draft_tokens: SearchStrategy[int] | None = None,
    zeros: bool = True,
    dtypes: tuple[str, ...] = ("float64", "float32"),
    one_hot: SearchStrategy[bool] | None = None,
    own_rows: SearchStrategy[bool] | None = None,
    kinds: tuple[str, ...] | None = None,
) -> RoundTables:
    """The tables of a round.

    Args:
        draw: of Hypothesis.
        vocab_sizes: V; 2 to 4 when omitted.
        num_draft_tokens: K; 1 to 3 when omitted.
        zeros: whether tokens may be impossible.
        dtypes: of what the rule is handed, the simplest first.
        one_hot: whether the draft is deterministic; never when omitted.
        own_rows: whether each prefix has rows of its own, or one row serves all of one length;
            either when omitted.
        kinds: how the rows of target and draft lie to each other, of `PAIR_KINDS`; unrelated
            simple rows when omitted.

    Raises:
        UsageError: a deterministic draft was asked for together with kinds, which decide about it.
    """
    if one_hot is not None and kinds is not None:
        raise UsageError("give one_hot or kinds, not both: 'one-hot draft' is one of the kinds")
    size = draw(st.integers(2, 4) if vocab_sizes is None else vocab_sizes)
    width = draw(st.integers(1, 3) if num_draft_tokens is None else num_draft_tokens)
    dtype = draw(st.sampled_from(dtypes))
    deterministic = one_hot is not None and draw(one_hot)
    own = draw(st.booleans() if own_rows is None else own_rows)
    if kinds is not None:
        related = row_pairs(size, kinds=kinds, zeros=zeros)
        return _related(draw, related, size, width, dtype, own=own)
    rows = distributions(size, zeros=zeros)
    sure = st.sampled_from(np.eye(size).tolist()).map(tuple) if deterministic else rows

    def table(strategy: SearchStrategy[Row], depth: int) -> Table:
        if not own:
            return (draw(strategy),) * size**depth
        return tuple(draw(strategy) for _ in range(size**depth))

    # Target and draft in turn, so that what decides the first token is drawn, and shrunk, first.
    target, draft = [], []
    for depth in range(width):
        target.append(table(rows, depth))
        draft.append(table(sure, depth))
    target.append(table(rows, width))
    return RoundTables(tuple(target), tuple(draft), dtype, deterministic)


def _related(
    draw: DrawFn,
    pairs: SearchStrategy[tuple[Row, Row]],
    size: int,
    width: int,
    dtype: str,
    *,
    own: bool,
) -> RoundTables:
    """Tables whose rows are drawn in pairs, one pair after each prefix."""
    target, draft = [], []
    for depth in range(width + 1):
        count = size**depth
        drawn = [draw(pairs) for _ in range(count if own else 1)] * (1 if own else count)
        target.append(tuple(p for p, _ in drawn))
        draft.append(tuple(q for _, q in drawn))
    return RoundTables(tuple(target), tuple(draft[:-1]), dtype)


def rounds(
    *,
    vocab_sizes: SearchStrategy[int] | None = None,
    num_draft_tokens: SearchStrategy[int] | None = None,
    zeros: bool = True,
    dtypes: tuple[str, ...] = ("float64", "float32"),
    one_hot: SearchStrategy[bool] | None = None,
    kinds: tuple[str, ...] | None = None,
) -> SearchStrategy[Round]:
    """Rounds with a row of its own after each prefix, or one row for all of one length.

    Without `kinds` probabilities are whole numbers over 8, or over another power of two for
    vocabularies above 4 tokens.

    Args:
        vocab_sizes: see `round_tables`.
        num_draft_tokens: see `round_tables`.
        zeros: see `round_tables`.
        dtypes: see `round_tables`.
        one_hot: see `round_tables`.
        kinds: see `round_tables`.
    """
    return round_tables(
        vocab_sizes=vocab_sizes,
        num_draft_tokens=num_draft_tokens,
        zeros=zeros,
        dtypes=dtypes,
        one_hot=one_hot,
        kinds=kinds,
    ).map(lambda tables: tables.round)


@dataclass(frozen=True)
class DraftBlocks:
    """Arguments of a rule for a batch of rows, without the generator."""

    draft_tokens: Tensor
    """long [B, K], possible under the draft."""
    draft_probs: Tensor | None
    """[B, K, V]; None for deterministic drafts."""
    target_probs: Tensor
    """[B, K+1, V]."""


@st.composite
def draft_blocks(draw: DrawFn, round: SearchStrategy[Round] | None = None) -> DraftBlocks:
    """Some of the draft blocks of one round, as a rule is handed them.

    Args:
        draw: of Hypothesis.
        round: whose blocks; any round when omitted.
    """
    chosen = draw(rounds() if round is None else round)
    last = len(chosen.blocks) - 1
    rows = draw(st.lists(st.integers(0, last), min_size=1, max_size=4))
    return DraftBlocks(*chosen.inputs(chosen.blocks[rows]))


def _looked_up(tables: tuple[Table, ...]) -> Conditional:
    arrays = [np.array(table, np.float64) for table in tables]

    def rows(prefixes: NDArray[np.int64]) -> NDArray[np.float64]:
        depth, size = prefixes.shape[1], arrays[0].shape[1]
        return arrays[depth][prefixes @ size ** np.arange(depth - 1, -1, -1)]

    return rows
