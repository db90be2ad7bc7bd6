"""Pairs of table models, prompts, and worlds for a decoder."""

from dataclasses import dataclass
from functools import cached_property

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from torch import Tensor

from specverify.certification.generated.rows import Row, distributions
from specverify.certification.probes.world import World
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings

Prompts = tuple[tuple[int, ...], ...]


def table_model(rows: tuple[Row, ...], order: int = 1) -> TableModel:
    """A table model with these next-token distributions after its contexts, [(V + 1)^order, V]."""
    return TableModel(torch.tensor(rows, dtype=torch.float64).log(), order)


@st.composite
def table_rows(
    draw: DrawFn, vocab_size: int, order: int = 1, *, zeros: bool = False
) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """Next-token distributions of a target and a draft after every context.

    A context that holds the place before a sequence takes the row in which that place is the first
    token: a prompt fills it.

    Args:
        draw: of Hypothesis.
        vocab_size: V.
        order: tokens the next one depends on.
        zeros: whether tokens may be impossible.
    """
    rows = distributions(vocab_size, zeros=zeros)
    contexts = [
        _without_start(context, vocab_size, order) for context in range((vocab_size + 1) ** order)
    ]
    drawn = {context: (draw(rows), draw(rows)) for context in sorted(set(contexts))}
    target, draft = ([drawn[context][model] for context in contexts] for model in (0, 1))
    return tuple(target), tuple(draft)


def _without_start(context: int, vocab_size: int, order: int) -> int:
    """The context with the first token at the places before the sequence."""
    base = vocab_size + 1
    digits = (context // base**place % base for place in range(order))
    return sum((digit % vocab_size) * base**place for place, digit in enumerate(digits))


@st.composite
def table_pairs(
    draw: DrawFn,
    vocab_size: int | None = None,
    order: int | None = None,
    *,
    zeros: bool = True,
) -> tuple[TableModel, TableModel]:
    """A target and a draft over one vocabulary; see `table_rows`."""
    size = draw(st.integers(2, 4)) if vocab_size is None else vocab_size
    depth = draw(st.integers(1, 2)) if order is None else order
    target, draft = draw(table_rows(size, depth, zeros=zeros))
    return table_model(target, depth), table_model(draft, depth)


def prompts(
    vocab_size: int, *, rows: int | None = None, longest: int = 4
) -> SearchStrategy[Prompts]:
    """Prompts of one to `longest` tokens, one for each row of a batch; they differ in length."""
    least, most = (1, 3) if rows is None else (rows, rows)
    tokens = st.lists(st.integers(0, vocab_size - 1), min_size=1, max_size=longest).map(tuple)
    return st.lists(tokens, min_size=least, max_size=most).map(tuple)


@st.composite
def padded_prompts(
    draw: DrawFn, vocab_size: int, *, rows: int | None = None, longest: int = 4
) -> tuple[Tensor, Tensor]:
    """Prompts as a batch: ids long [B, T], padded on the left with any token, and their mask."""
    chosen = draw(prompts(vocab_size, rows=rows, longest=longest))
    width = max(map(len, chosen)) + draw(st.integers(0, 2))
    ids = torch.full((len(chosen), width), draw(st.integers(0, vocab_size - 1)))
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(chosen):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return ids, mask


@dataclass(frozen=True)
class WorldTables:
    """The numbers of a world, which can be written down and compared."""

    target: tuple[Row, ...]
    """After every context, [(V + 1)^order, V]."""
    draft: tuple[Row, ...]
    order: int
    prompts: Prompts
    num_draft_tokens: int
    settings: SamplingSettings

    def __hash__(self) -> int:
        # Settings compare, but do not hash: they hold a dict.
        return hash((self.target, self.draft, self.prompts, self.num_draft_tokens))

    @cached_property
    def world(self) -> World:
        """What a decoder is handed."""
        return World(
            table_model(self.target, self.order),
            table_model(self.draft, self.order),
            self.settings,
            self.prompts,
            self.num_draft_tokens,
        )


@st.composite
def world_tables(
    draw: DrawFn,
    settings: SearchStrategy[SamplingSettings] | None = None,
    *,
    vocab_sizes: SearchStrategy[int] | None = None,
    num_draft_tokens: SearchStrategy[int] | None = None,
    lengths: SearchStrategy[int] | None = None,
    orders: SearchStrategy[int] | None = None,
    rows: SearchStrategy[int] | None = None,
    longest: int = 2,
    zeros: bool = False,
) -> WorldTables:
    """The tables of a world.

    Args:
        draw: of Hypothesis.
        settings: of the run, whose length limit is drawn apart; neutral when omitted.
        vocab_sizes: V; 2 or 3 when omitted.
        num_draft_tokens: K; 1 or 2 when omitted.
        lengths: tokens of a run; 2 or 3 when omitted.
        orders: tokens the next one depends on; 1 when omitted.
        rows: of the batch; 1 when omitted.
        longest: tokens of a prompt.
        zeros: whether tokens may be impossible.
    """
    size = draw(st.integers(2, 3) if vocab_sizes is None else vocab_sizes)
    width = draw(st.integers(1, 2) if num_draft_tokens is None else num_draft_tokens)
    length = draw(st.integers(2, 3) if lengths is None else lengths)
    order = draw(st.just(1) if orders is None else orders)
    count = draw(st.just(1) if rows is None else rows)
    chosen = draw(st.just(SamplingSettings()) if settings is None else settings)
    least = min(chosen.min_new_tokens, length)
    chosen = chosen.model_copy(update={"max_new_tokens": length, "min_new_tokens": least})
    asked = draw(prompts(size, rows=count, longest=longest))
    target, draft = draw(table_rows(size, order, zeros=zeros))
    return WorldTables(target, draft, order, asked, width, chosen)


def worlds(
    settings: SearchStrategy[SamplingSettings] | None = None,
    *,
    rows: SearchStrategy[int] | None = None,
    zeros: bool = False,
) -> SearchStrategy[World]:
    """Worlds of two or three tokens; see `world_tables`."""
    return world_tables(settings, rows=rows, zeros=zeros).map(lambda tables: tables.world)
