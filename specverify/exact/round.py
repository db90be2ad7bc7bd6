"""One round of speculative decoding on a small vocabulary: every draft block as a row."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specverify.errors import UsageError
from specverify.exact.conditional import Conditional, checked_rows

_MAXIMUM_OUTCOMES = 1 << 27


@dataclass(frozen=True)
class Round:
    """What a verification rule is handed: K tokens drawn from `draft`, judged by `target`.

    Both conditionals depend on the whole prefix, so every row, position and draft block has
    distributions of its own; on identical rows most real bugs vanish.
    """

    target: Conditional
    """int64 [N, t] to [N, V] for t from 0 to K: the target's next-token distributions."""
    draft: Conditional
    """The same for the draft, t from 0 to K - 1."""
    vocab_size: int
    num_draft_tokens: int
    dtype: torch.dtype = torch.float64
    """Of the probabilities the rule is handed. They are rounded to it first: reference and
    drafting use the rounded rows, normalised again in float64, as a sampler of them does."""
    one_hot: bool = False
    """Whether the draft is deterministic: the rule is handed None in place of its probabilities."""

    def __post_init__(self) -> None:
        _check_size(self.vocab_size, self.num_draft_tokens)

    @classmethod
    def random(
        cls,
        vocab_size: int,
        num_draft_tokens: int,
        seed: int = 0,
        *,
        dtype: torch.dtype = torch.float64,
        scale: float = 1.0,
    ) -> Self:
        """A round with a distribution of its own after every prefix.

        Args:
            vocab_size: V.
            num_draft_tokens: K.
            seed: of the tables.
            dtype: see the class.
            scale: standard deviation of the target's logits; the draft's differ from them by as
                much.
        """
        _check_size(vocab_size, num_draft_tokens)
        generator = np.random.default_rng(seed)
        depths = range(num_draft_tokens + 1)
        tables = [generator.normal(size=(vocab_size**t, vocab_size)) * scale for t in depths]
        drafts = [table + generator.normal(size=table.shape) * scale for table in tables]
        return cls(
            _tabulated(tables, vocab_size),
            _tabulated(drafts, vocab_size),
            vocab_size,
            num_draft_tokens,
            dtype,
        )

    def after(self, prefix: tuple[int, ...]) -> Self:
        """The round that follows `prefix`."""

        def shifted(conditional: Conditional) -> Conditional:
            def rows(prefixes: NDArray[np.int64]) -> NDArray[np.float64]:
                head = np.tile(np.array(prefix, np.int64), (len(prefixes), 1))
                return np.asarray(conditional(np.concatenate([head, prefixes], 1)), np.float64)

            return rows

        return replace(self, target=shifted(self.target), draft=shifted(self.draft))

    def p(self, depth: int) -> NDArray[np.float64]:
        """Target distributions after every prefix of `depth` draft tokens, [V^depth, V].

        Row c belongs to the prefix whose tokens are the digits of c in base V, the first token the
        most significant. Rounded to `dtype` and normalised in float64.
        """
        return _normalised(self.handed_target[depth])

    def q(self, depth: int) -> NDArray[np.float64]:
        """Draft distributions in the same form, depth from 0 to K - 1."""
        return _normalised(self.handed_draft[depth])

    @cached_property
    def handed_target(self) -> tuple[Tensor, ...]:
        """The target's rows as the rule gets them, by depth, `dtype` [V^depth, V]."""
        return tuple(self._rows(self.target, t) for t in range(self.num_draft_tokens + 1))

    @cached_property
    def handed_draft(self) -> tuple[Tensor, ...]:
        """The draft's rows as the rule gets them."""
        return tuple(self._rows(self.draft, t) for t in range(self.num_draft_tokens))

    @cached_property
    def blocks(self) -> Tensor:
        """Every draft block of positive probability, long [B, K], in order."""
        size, width = self.vocab_size, self.num_draft_tokens
        codes = np.flatnonzero(self._block_masses > 0)
        powers = size ** np.arange(width - 1, -1, -1)
        return torch.from_numpy(codes[:, None] // powers % size)

    @cached_property
    def block_probabilities(self) -> NDArray[np.float64]:
        """Probability that each of `blocks` is drafted, float64 [B]."""
        masses = self._block_masses
        return masses[masses > 0]

    def inputs(self, blocks: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """What the rule is handed for `blocks`, long [B, K].

        Returns:
            draft_tokens long [B, K]; draft_probs [B, K, V], or None if `one_hot`; target_probs
            [B, K+1, V].
        """
        rows = list(self._prefix_codes(blocks))
        target = torch.stack([self.handed_target[t][code] for t, code in enumerate(rows)], 1)
        if self.one_hot:
            return blocks.clone(), None, target
        drafts = [self.handed_draft[t][code] for t, code in enumerate(rows[:-1])]
        empty = target.new_zeros(len(blocks), 0, self.vocab_size)
        return blocks.clone(), torch.stack(drafts, 1) if drafts else empty, target

    def prefixes(self, depth: int) -> NDArray[np.int64]:
        """Every prefix of `depth` tokens, int64 [V^depth, depth], in the order of `p` and `q`."""
        grid = itertools.product(range(self.vocab_size), repeat=depth)
        return np.array(list(grid), np.int64).reshape(self.vocab_size**depth, depth)

    def completed_target(self, prefixes: NDArray[np.int64]) -> NDArray[np.float64]:
        """`target` as the rule is handed it: what completion and reference continue with."""
        depth = prefixes.shape[1]
        powers = self.vocab_size ** np.arange(depth - 1, -1, -1)
        return self.p(depth)[prefixes @ powers]

    @cached_property
    def _block_masses(self) -> NDArray[np.float64]:
        masses = np.ones(1)
        for depth in range(self.num_draft_tokens):
            masses = (masses[:, None] * self.q(depth)).reshape(-1)
        return masses

    def _prefix_codes(self, blocks: Tensor) -> Iterator[Tensor]:
        code = torch.zeros(len(blocks), dtype=torch.long)
        yield code
        for column in blocks.unbind(1):
            code = code * self.vocab_size + column
            yield code

    def _rows(self, conditional: Conditional, depth: int) -> Tensor:
        prefixes = self.prefixes(depth)
        probs = checked_rows(conditional(prefixes), len(prefixes), self.vocab_size)
        return torch.from_numpy(probs).to(self.dtype)


def _check_size(vocab_size: int, num_draft_tokens: int) -> None:
    if vocab_size < 1 or num_draft_tokens < 0:
        raise UsageError(
            "a round needs vocab_size >= 1 and num_draft_tokens >= 0, got "
            f"{vocab_size} and {num_draft_tokens}"
        )
    if vocab_size ** (num_draft_tokens + 1) > _MAXIMUM_OUTCOMES:
        raise UsageError(
            f"{vocab_size}^{num_draft_tokens + 1} outcomes of a round are too many to enumerate; "
            f"at most {_MAXIMUM_OUTCOMES:,}"
        )


def _normalised(rows: Tensor) -> NDArray[np.float64]:
    probs = rows.double().numpy()
    return probs / probs.sum(1, keepdims=True)


def _tabulated(logits: list[NDArray[np.float64]], vocab_size: int) -> Conditional:
    """The conditional whose rows are softmax of `logits[t][code of the prefix]`."""

    def rows(prefixes: NDArray[np.int64]) -> NDArray[np.float64]:
        depth = prefixes.shape[1]
        powers = vocab_size ** np.arange(depth - 1, -1, -1)
        z = logits[depth][prefixes @ powers]
        e = np.exp(z - z.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    return rows
