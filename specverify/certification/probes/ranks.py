"""Tables after whose every context the ranks of tokens have one distribution.

After each context the target gives the same probabilities, to tokens in another order. The rank of
an emitted token (0 for the likeliest) then has one law, whatever came before it: the ranks of a
right run are independent draws from it, over all rows, prompts and calls, and few samples tell
much. At temperature 0, and at any other where the target excludes all but the likeliest token,
every rank is 0: one call shows a mistake. The likeliest tokens form a de Bruijn cycle, so a run
visits every context before it repeats one, and two contexts that differ in one token seldom go on
alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from specverify.certification.probes.world import World
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.stopping import run_lengths
from specverify.subjects.protocols import Subject

VOCAB_SIZE, ORDER = 4, 3
LAW = (0.7, 0.17, 0.09, 0.04)
"""Of the target's ranks."""
_DRAFT_LAW = (0.6, 0.2, 0.12, 0.08)
_AGREEMENT = 0.6
"""Share of contexts after which the draft has the target's order; elsewhere it has the reverse."""

Prompts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class Ranked:
    """A target whose ranks have one law, and a draft that often disagrees with it."""

    target: TableModel
    draft: TableModel
    order: Tensor
    """long [contexts, V], the target's tokens by rank."""

    @cached_property
    def ranks(self) -> Tensor:
        """Rank of each token after each context, long [contexts, V]."""
        return self.order.argsort(1)

    def world(
        self, prompts: Prompts, tokens: int, *, num_draft_tokens: int = 3, **settings: object
    ) -> World:
        """Runs of so many tokens from these prompts."""
        chosen = SamplingSettings.model_validate({"max_new_tokens": tokens, **settings})
        return World(self.target, self.draft, chosen, prompts, num_draft_tokens)

    def ranks_of(self, prompts: Sequence[tuple[int, ...]], tokens: Tensor) -> NDArray[np.int64]:
        """Ranks [B, L] of emitted tokens [B, L], -1 where there is none; one prompt a row."""
        after = {prompt: self.target.context_after(prompt) for prompt in set(prompts)}
        context = torch.tensor([after[prompt] for prompt in prompts])
        columns: list[Tensor] = []
        for column in tokens.unbind(1):
            there = column >= 0
            token = column.clamp(min=0)
            columns.append(torch.where(there, self.ranks[context, token], -1))
            context = self.target.advance(context, token)
        empty = np.zeros((len(tokens), 0), np.int64)
        return torch.stack(columns, 1).numpy() if columns else empty

    def likeliest(self, prompt: Sequence[int], count: int) -> list[int]:
        """The tokens of rank 0 that follow a prompt."""
        context, tokens = self.target.context_after(prompt), []
        for _ in range(count):
            tokens.append(int(self.order[context, 0]))
            context = self.target.context_after([*prompt, *tokens])
        return tokens


@cache
def ranked(seed: int = 0, *, forced: bool = False) -> Ranked:
    """Tables of a seed.

    Args:
        seed: of the orders.
        forced: whether the target excludes every token but the likeliest, so that runs at any
            temperature have one outcome. The draft does not know, and is rejected often.
    """
    generator = Generator().manual_seed(seed)
    contexts = (VOCAB_SIZE + 1) ** ORDER
    order = torch.rand(contexts, VOCAB_SIZE, generator=generator).argsort(1)
    for context, token in _successors(generator).items():
        others = [int(t) for t in order[context] if int(t) != token]
        order[context] = torch.tensor([token, *others])
    agrees = torch.rand(contexts, generator=generator) < _AGREEMENT
    drafted = torch.where(agrees[:, None], order, order.flip(1))
    law = torch.tensor(LAW, dtype=torch.float64).log()
    if forced:
        law = torch.full_like(law, -torch.inf).index_fill(0, torch.tensor([0]), 0.0)
    return Ranked(_table(order, law), _table(drafted, _draft_law()), order)


def certain(subject: Subject, seed: int = 0) -> list[tuple[Ranked, dict[str, Any]]]:
    """Tables whose runs have one outcome, with the settings they have it under.

    At temperature 0, and at 1, where a decoder may go another way, for one that samples at all.
    """
    ways: list[tuple[Ranked, dict[str, Any]]] = [(ranked(seed), {"temperature": 0.0})]
    if subject.capabilities.algorithm != "greedy":
        ways.append((ranked(seed, forced=True), {"temperature": 1.0}))
    return ways


def wrong_row(world: World, tables: Ranked, tokens: Tensor) -> str | None:
    """What is wrong with a run whose every token must be the likeliest, None if nothing.

    Args:
        world: what was decoded; rows take its prompts in turn.
        tables: whose world it is.
        tokens: long [B, L] as emitted.
    """
    rows = len(tokens)
    prompts = [world.prompts[row % len(world.prompts)] for row in range(rows)]
    ranks = tables.ranks_of(prompts, tokens)
    required = run_lengths(tokens, world.settings)[0].numpy()
    lengths = (ranks >= 0).sum(1)
    for row in range(rows):
        emitted = tokens[row, : lengths[row]].tolist()
        wrong = np.flatnonzero(ranks[row] > 0)
        if len(wrong):
            at = int(wrong[0])
            right = tables.likeliest((*prompts[row], *emitted[:at]), 1)[0]
            return (
                f"row {row} of {rows} emits {emitted} after the prompt {list(prompts[row])}; "
                f"token {at} should be {right}, the only one its target allows there"
            )
        if lengths[row] != required[row]:
            return (
                f"row {row} of {rows} emits {emitted} after the prompt {list(prompts[row])}, "
                f"{lengths[row]} tokens; its settings end it after "
                f"{required[row] or world.settings.max_new_tokens}"
            )
    return None


def _successors(generator: Generator) -> dict[int, int]:
    """Token after each context without the start symbol, along a de Bruijn cycle.

    The greedy construction (Martin 1934): append the largest token, in some order of tokens, that
    makes an unseen string of `ORDER` tokens.
    """
    names = torch.randperm(VOCAB_SIZE, generator=generator).tolist()
    text = [0] * ORDER
    seen = {tuple(text)}
    while len(seen) < VOCAB_SIZE**ORDER:
        tails = [(*text[len(text) - ORDER + 1 :], token) for token in reversed(range(VOCAB_SIZE))]
        fresh = next(tail for tail in tails if tail not in seen)
        seen.add(fresh)
        text.append(fresh[-1])
    cycle = [names[token] for token in text[: VOCAB_SIZE**ORDER]]
    doubled = cycle + cycle[: ORDER + 1]
    return {_context(doubled[i : i + ORDER]): doubled[i + ORDER] for i in range(VOCAB_SIZE**ORDER)}


def _context(tokens: Sequence[int]) -> int:
    index = 0
    for token in tokens:
        index = index * (VOCAB_SIZE + 1) + token
    return index


def _table(order: Tensor, law: Tensor) -> TableModel:
    """Logits `law` [V] by rank."""
    logits = torch.zeros(order.shape, dtype=torch.float64)
    return TableModel(logits.scatter(1, order, law.expand(order.shape)), ORDER)


def _draft_law() -> Tensor:
    return torch.tensor(_DRAFT_LAW, dtype=torch.float64).log()
