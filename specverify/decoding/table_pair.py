"""Autoregressive and speculative sampling from table models, tens of millions of tokens a second.

A table model is compiled once: an alias table per context, whose outcomes carry the next context.
A pair adds the acceptance of every (context, token) and the residual of every context, computed by
the functions that the reference rule uses. A round then is what it is everywhere: K draft tokens,
K coins, one correction or bonus token (Leviathan et al. 2023, arXiv 2211.17192, algorithm 1). No
draw is skipped or shared: 2K + 1 uniforms a row and round.

Precision: a coin is off by at most its grid, 2^-53, and `alias_table` says what a draw is off by.
A token with target probability 0 has acceptance 0, below which no coin lies, and is in no residual:
it cannot be emitted.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from specverify.decoding.alias_table import AliasTable, Scratch
from specverify.errors import UsageError, VocabularyMismatch
from specverify.models.table import TableModel
from specverify.verification.residual import acceptance, residual

MAX_DRAFT_TOKENS = 127
"""Longest block: accepted counts are kept in a byte."""

_COMPACT_BELOW = 0.9
"""Finished rows are dropped once fewer than this share of the rows is still running."""


@dataclass(frozen=True)
class TableRuns:
    """Independent runs, each cut at the same number of tokens."""

    tokens: NDArray[np.unsignedinteger[Any]]
    """[count, length], in the smallest unsigned type that holds the vocabulary."""

    accepted: NDArray[np.int8] | None = None
    """[count, rounds], draft tokens accepted in each round, -1 once a row has ended; the last
    round of a row counts in full even where the length limit cut it. None without a draft."""


class _BatchSampler(ABC):
    """What both samplers share: contexts, checks, and runs handed out in batches.

    Args:
        contexts: the model whose contexts the tables are indexed by: the one of highest order.
    """

    default_batch: int

    def __init__(self, contexts: TableModel) -> None:
        if contexts.vocab_size > 1 << 16:
            raise UsageError(
                f"vocabulary of {contexts.vocab_size} tokens; table samplers take at most 65536"
            )
        self.vocab_size = contexts.vocab_size
        self.dtype = np.dtype(np.uint8 if self.vocab_size <= 1 << 8 else np.uint16)
        self._contexts = contexts
        self._bits = 8 * self.dtype.itemsize

    def batches(
        self,
        prompt: Sequence[int],
        length: int,
        count: int,
        generator: Generator,
        batch_size: int | None = None,
    ) -> Iterator[TableRuns]:
        """Independent runs after one prompt, a batch at a time; memory is that of one batch.

        No runs are one empty batch.

        Args:
            prompt: token ids; may be empty.
            length: tokens a run has, 0 or more.
            count: number of runs.
            generator: source of all draws. A numpy generator because it fills a buffer in place,
                twice as fast as torch does; SFC64 is the fastest.
            batch_size: runs a batch; the tokens depend on it. A measured optimum if omitted.

        Raises:
            UsageError: a number is negative, or an id is outside the vocabulary.
        """
        batch_size = self.default_batch if batch_size is None else batch_size
        if length < 0 or count < 0 or batch_size < 1:
            raise UsageError(
                f"length {length}, count {count}, batch_size {batch_size}: give a length and a "
                "count of at least 0 and a batch size of at least 1"
            )
        for token in prompt:
            if not 0 <= token < self.vocab_size:
                raise UsageError(
                    f"prompt holds id {token}; ids of this table run from 0 to "
                    f"{self.vocab_size - 1}"
                )
        context = self._contexts.context_after(prompt)
        return (
            self._batch(context, length, min(batch_size, count - first), generator)
            for first in range(0, max(count, 1), batch_size)
        )

    def runs(
        self, prompt: Sequence[int], length: int, count: int, generator: Generator
    ) -> TableRuns:
        """The same runs as `batches`, in one array each."""
        batches = list(self.batches(prompt, length, count, generator))
        tokens = [batch.tokens for batch in batches]
        accepted = [batch.accepted for batch in batches if batch.accepted is not None]
        rounds = max((a.shape[1] for a in accepted), default=0)
        padded = [
            np.pad(a, [(0, 0), (0, rounds - a.shape[1])], constant_values=-1) for a in accepted
        ]
        return TableRuns(np.concatenate(tokens), np.concatenate(padded) if padded else None)

    @abstractmethod
    def _batch(self, context: int, length: int, rows: int, generator: Generator) -> TableRuns: ...

    def _probs(self, model: TableModel) -> torch.Tensor:
        """float64 [contexts, V]; a model of lower order reads the low digits of a context."""
        contexts = torch.arange(self._contexts.num_contexts) % model.num_contexts
        return torch.softmax(model.logits.cpu(), -1)[contexts]

    def _compile(self, probs: torch.Tensor) -> AliasTable:
        """Tables of [contexts, V], or of several such tables one after the other."""
        contexts = torch.arange(len(probs))[:, None]
        successors = self._contexts.advance(contexts, torch.arange(self.vocab_size))
        return AliasTable(probs.numpy(), successors.numpy(), self._bits)


class TableSampler(_BatchSampler):
    """Plain autoregressive sampling from a table model, vectorised over runs.

    Args:
        model: the table; its distributions are taken at temperature 1.
    """

    default_batch = 1 << 14

    def __init__(self, model: TableModel) -> None:
        super().__init__(model)
        self._table = self._compile(self._probs(model))

    def _batch(self, context: int, length: int, rows: int, generator: Generator) -> TableRuns:
        tokens = np.empty((length, rows), self.dtype)
        scratch = Scratch(rows)
        words = np.empty(rows, np.int64)
        scratch.offsets.fill(context * self._table.cells)
        for step in range(length):
            self._table.draw(scratch.offsets, generator, scratch, words)
            np.copyto(tokens[step], words, casting="unsafe")
            np.right_shift(words, self._bits, out=scratch.offsets)
        return TableRuns(tokens.T)


class TablePairSampler(_BatchSampler):
    """Speculative sampling by the token rule on a pair of table models, vectorised over runs.

    Rows are ragged: each goes on to its next round at its own position until its run is full, and
    leaves the batch soon after. With K = 0 every round is one draw from the target. A window is
    not enforced, since nothing is cached.

    Args:
        target: what is sampled from, at temperature 1.
        draft: over the same vocabulary; its order may differ.
        num_draft_tokens: K, 0 to 127. The whole block is drafted in every round.

    Raises:
        VocabularyMismatch: the vocabularies differ in size.
        UsageError: K is out of range.
    """

    default_batch = 1 << 14

    def __init__(self, target: TableModel, draft: TableModel, num_draft_tokens: int) -> None:
        if target.vocab_size != draft.vocab_size:
            raise VocabularyMismatch(
                f"target over {target.vocab_size} tokens, draft over {draft.vocab_size}; a table "
                "pair shares its ids: build both over one vocabulary"
            )
        if not 0 <= num_draft_tokens <= MAX_DRAFT_TOKENS:
            raise UsageError(f"num_draft_tokens {num_draft_tokens}; give 0 to {MAX_DRAFT_TOKENS}")
        super().__init__(max(target, draft, key=lambda model: model.order))
        self.num_draft_tokens = num_draft_tokens
        p, q = self._probs(target), self._probs(draft)
        self.overlap = torch.minimum(p, q).sum(-1).numpy()
        """float64 [contexts], the sum of min(p, q): the probability that a draft is accepted."""
        self._draft = self._compile(q)
        # Residuals first, then the target's own rows: a bonus token is found `_bonus` further on.
        self._final = self._compile(torch.cat([residual(p, q), p]))
        self._bonus = len(p) * self._final.cells << self._bits
        keep = np.pad(acceptance(p, q).numpy(), [(0, 0), (0, self._draft.cells - p.shape[1])])
        self._acceptance = np.take_along_axis(keep, self._draft.tokens, 1).ravel()

    def _batch(self, context: int, length: int, rows: int, generator: Generator) -> TableRuns:
        blocks = _Blocks(context * self._draft.cells << self._bits, length, rows, self)
        accepted = []
        while blocks.running:
            self._round(blocks, generator)
            accepted.append(blocks.commit())
        history = np.stack(accepted) if accepted else np.empty((0, rows), np.int8)
        return TableRuns(blocks.tokens[:, :length], history.T)

    def _round(self, blocks: "_Blocks", generator: Generator) -> None:
        """Draft, verify and close one block of every row; `blocks` holds the outcome."""
        scratch, words, flags = blocks.scratch, blocks.words, blocks.flags
        accepted, reached = blocks.accepted, blocks.reached
        accepted.fill(0)
        reached[:] = True
        for position in range(self.num_draft_tokens):
            np.right_shift(words[position], self._bits, out=scratch.offsets)
            index = self._draft.draw(scratch.offsets, generator, scratch, words[position + 1])
            np.take(self._acceptance, index, out=scratch.cell, mode="wrap")
            generator.random(out=scratch.uniform)
            np.less(scratch.uniform, scratch.cell, out=flags)
            np.logical_and(reached, flags, out=reached)
            np.add(accepted, reached.view(np.int8), out=accepted)
        # A cast to the token type keeps the low bits, which are the token.
        np.copyto(blocks.block[:-1], words[1:], casting="unsafe")
        np.add(words[-1], self._bonus, out=words[-1])
        blocks.last_accepted(out=scratch.index)
        np.right_shift(scratch.index, self._bits, out=scratch.offsets)
        self._final.draw(scratch.offsets, generator, scratch, words[0])
        np.copyto(blocks.block[-1], words[0], casting="unsafe")


class _Blocks:
    """The rows of a batch between rounds, and the tokens they have emitted.

    `words[i]` is the outcome after `i` draft tokens of the block; `words[0]`, the last committed
    one, is where the next block starts. Tokens are stored row by row, so that the scattered writes
    of a row's block fall into one cache line.
    """

    def __init__(self, word: int, length: int, rows: int, sampler: TablePairSampler) -> None:
        width = sampler.num_draft_tokens + 1
        self.rows = rows
        # Slack for a block that starts at the limit: rows that are full write there, unread. An
        # odd stride spreads the rows over all sets of the cache.
        self.tokens = np.empty((rows, (length + width) | 1), sampler.dtype)
        self.running = rows if length else 0
        self._earliest_end = -(-length // width)
        self._rounds = 0
        self._row = np.arange(rows)
        self._at = self._row * self.tokens.shape[1]
        self._end = self._at + length
        self._full: NDArray[np.bool_] | None = None
        self._words = np.empty((width, rows), np.int64)
        self._words[0] = word
        self._resize(rows)

    def _resize(self, rows: int) -> None:
        width = len(self._words)
        self.words = self._words[:, :rows]
        self.block = np.empty((width, rows), self.tokens.dtype)
        self.accepted = np.empty(rows, np.int8)
        self.reached = np.empty(rows, np.bool_)
        self.flags = np.empty(rows, np.bool_)
        self.scratch = Scratch(rows)
        self._column = np.arange(rows)
        self._step = np.empty(rows, np.int64)

    def last_accepted(self, out: NDArray[np.int64]) -> None:
        """The outcome after the accepted tokens of each row."""
        np.copyto(self._step, self.accepted)
        np.multiply(self._step, self.rows, out=self.scratch.offsets)
        np.add(self.scratch.offsets, self._column, out=self.scratch.offsets)
        np.take(self._words, self.scratch.offsets, out=out, mode="wrap")

    def commit(self) -> NDArray[np.int8]:
        """Append the accepted tokens and the last one; returns accepted counts [rows], -1 if none.

        The whole block is written: what follows the last token is overwritten by the next block.
        """
        flat = self.tokens.reshape(-1)
        for position, tokens in enumerate(self.block[:-1]):
            flat[position:][self._at] = tokens
        np.add(self._at, self._step, out=self._at)
        flat[self._at] = self.block[-1]
        np.add(self._at, 1, out=self._at)
        history = self._history()
        self._rounds += 1
        if self._rounds >= self._earliest_end:
            np.minimum(self._at, self._end, out=self._at)
            self._drop_full()
        return history

    def _history(self) -> NDArray[np.int8]:
        counts = self.accepted.copy()
        if self._full is not None:
            counts[self._full] = -1
        if len(counts) == self.rows:
            return counts
        history = np.full(self.rows, -1, np.int8)
        history[self._row] = counts
        return history

    def _drop_full(self) -> None:
        full = self._at == self._end
        running = len(full) - int(np.count_nonzero(full))
        if running and running > _COMPACT_BELOW * len(full):
            self._full = full
            return
        keep = np.flatnonzero(~full)
        self._row, self._at, self._end = self._row[keep], self._at[keep], self._end[keep]
        self._words[0, :running] = self._words[0, keep]
        self._full = None
        self.running = running
        self._resize(running)
