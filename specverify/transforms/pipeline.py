"""All transforms of a run, each row and each candidate position with its own history."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Generator, Tensor

from specverify.settings import SamplingSettings
from specverify.stopping import stop_codes
from specverify.transforms.assembly import Context, assemble, depends_on_prompt_length
from specverify.transforms.base import IMPOSSIBLE, Transform
from specverify.transforms.chain import Chain
from specverify.transforms.custom import Custom, Processor
from specverify.transforms.dialects import dialect
from specverify.transforms.temperature import Greedy

Evaluation = Callable[[Chain, Tensor, Tensor], Tensor]
"""What to make of a chain, histories [R, T] and logits [R, V]."""


class Pipeline:
    """Turns model logits into the logits, or the distribution, that tokens are drawn from.

    Built by `from_settings`. At temperature 0 the sampling transforms are skipped and the result
    is one-hot at the first largest logit.

    Candidate positions that no run can reach, because an earlier token of the block is impossible
    or ends the run, are transformed without constraints and extra processors: nobody may draw
    from them, and a grammar has nothing to say about them.
    """

    def __init__(
        self, settings: SamplingSettings, build: Callable[[int], Chain], *, per_prompt: bool
    ) -> None:
        self.settings = settings
        self._build = build
        self._per_prompt = per_prompt
        self._chains: dict[int, tuple[Chain, Chain]] = {}
        chain, _ = self._chain(0)
        self._empty = chain.empty
        self._forbidding = bool(chain.forbidding)
        self.history_free = chain.history_free
        """Whether the result depends on the logits alone."""
        self.neutral = chain.empty and not settings.greedy
        """Whether the result is the softmax of the logits as they are."""
        self.random = chain.random
        """Whether some transform tosses coins of its own."""

    @classmethod
    def from_settings(
        cls,
        settings: SamplingSettings,
        vocab_size: int,
        generator: Generator | None = None,
        *,
        extra: Sequence[Processor] = (),
    ) -> "Pipeline":
        """Build the transforms that settings switch on, in the order of their dialect.

        Args:
            settings: the contract of the run.
            vocab_size: width of the logits.
            generator: source of the coins of random transforms; only needed to sample them.
            extra: further processors with the Hugging Face call, applied after all processors
                and before the temperature. One that is not a `Transform` is called group by
                group of rows with equal history length, with copies of its arguments.

        Raises:
            SettingsError: the dialect is unknown, or a token id lies outside the vocabulary.
        """
        settings.check_vocabulary(vocab_size)
        rules = dialect(settings.dialect)
        extras = [e if isinstance(e, Transform) else Custom(e) for e in extra]

        def build(prompt_length: int) -> Chain:
            context = Context(settings, rules, vocab_size, prompt_length, generator)
            processors = [*assemble(rules.processors, context), *extras]
            warpers = [Greedy()] if settings.greedy else assemble(rules.warpers, context)
            return Chain(processors, warpers)

        return cls(settings, build, per_prompt=depends_on_prompt_length(settings))

    def block(
        self,
        logits: Tensor,
        tokens: Tensor,
        starts: Tensor,
        prompt_lengths: Tensor,
        counts: Tensor | None = None,
    ) -> Tensor:
        """Transform the logits of n consecutive positions of every row.

        Entry (b, i) sees the history `tokens[b, :starts[b] + i]`: candidate tokens before it,
        never the one at its own position or later.

        Args:
            logits: [B, n, V], any float dtype.
            tokens: long [B, W], committed tokens followed by the candidates.
            starts: long [B], length of the history of each row's first position.
            prompt_lengths: long [B].
            counts: long [B], positions in use per row; all n when omitted.

        Returns:
            float64 [B, n, V]; entries `i >= counts[b]` are unspecified. May share storage with
            `logits` where nothing had to change.

        Raises:
            SettingsError: the constraints leave a reachable position no token.
        """
        if self._empty:
            return logits.double()
        return self._evaluate(
            Chain.__call__, IMPOSSIBLE, logits, tokens, starts, prompt_lengths, counts
        )

    def probabilities(
        self,
        logits: Tensor,
        tokens: Tensor,
        starts: Tensor,
        prompt_lengths: Tensor,
        counts: Tensor | None = None,
    ) -> Tensor:
        """The distributions of `block`: float64 [B, n, V]; random transforms are sampled once."""
        return self.block(logits, tokens, starts, prompt_lengths, counts).softmax(-1)

    def expected_probabilities(
        self,
        logits: Tensor,
        tokens: Tensor,
        starts: Tensor,
        prompt_lengths: Tensor,
        counts: Tensor | None = None,
    ) -> Tensor:
        """The distributions a token has before any coin is tossed: float64 [B, n, V].

        Equals `probabilities` unless a transform is random; then it is the exact mixture over
        its coins, which is the reference distribution. No generator is used.
        """
        if not self.random:
            return self.probabilities(logits, tokens, starts, prompt_lengths, counts)
        return self._evaluate(
            Chain.expected_probabilities, 0.0, logits, tokens, starts, prompt_lengths, counts
        )

    def _evaluate(
        self,
        evaluation: Evaluation,
        impossible: float,
        logits: Tensor,
        tokens: Tensor,
        starts: Tensor,
        prompt_lengths: Tensor,
        counts: Tensor | None,
    ) -> Tensor:
        """Apply `evaluation` group by group; `impossible` is its value for a masked token."""
        batch, n, vocab_size = logits.shape
        if self.history_free:
            flat = logits.reshape(batch * n, vocab_size)
            chain, _ = self._chain(0)
            return evaluation(chain, tokens.new_empty(batch * n, 0), flat).reshape(logits.shape)
        if counts is None:
            counts = torch.full_like(starts, n)
        result = logits.to(torch.float64, copy=True)
        unreachable = torch.zeros(batch, dtype=torch.bool, device=logits.device)
        ends = None
        if self._forbidding:
            ends = self._endings(tokens, prompt_lengths)
            before = torch.arange(tokens.shape[1], device=tokens.device) < starts.unsqueeze(-1)
            unreachable = (ends & before).any(-1)
        # By growing length, so that a row's earlier positions come before its later ones.
        for length in _lengths(starts, counts, n):
            position = length - starts
            active = (position >= 0) & (position < counts)
            for rows, pair in self._groups(active, prompt_lengths):
                for chain, members in zip(pair, _split(rows, unreachable), strict=True):
                    if members.numel():
                        at = members, position[members]
                        history = tokens[members, :length]
                        result[at] = evaluation(chain, history, result[at])
            if ends is not None:
                rows = (active & (position + 1 < counts)).nonzero().squeeze(-1)
                if not rows.numel():
                    continue  # `length` may be the width of `tokens`, which has no such column
                value = result[rows, position[rows], tokens[rows, length]]
                unreachable[rows] |= (value == impossible) | ends[rows, length]
        return result

    def _chain(self, prompt_length: int) -> tuple[Chain, Chain]:
        """The chain for a prompt length, and the one for positions out of reach."""
        key = prompt_length if self._per_prompt else 0
        if key not in self._chains:
            chain = self._build(key)
            self._chains[key] = chain, chain.permissive()
        return self._chains[key]

    def _groups(
        self, active: Tensor, prompt_lengths: Tensor
    ) -> Iterator[tuple[Tensor, tuple[Chain, Chain]]]:
        """Row indices that share a chain, with it."""
        if not self._per_prompt:
            yield active.nonzero().squeeze(-1), self._chain(0)
            return
        for prompt_length in prompt_lengths[active].unique().tolist():
            rows = (active & (prompt_lengths == prompt_length)).nonzero().squeeze(-1)
            yield rows, self._chain(prompt_length)

    def _endings(self, tokens: Tensor, prompt_lengths: Tensor) -> Tensor:
        """Whether the stopping rules end a run with the token at each index, bool [B, W]."""
        width = tokens.shape[1]
        starts = torch.zeros_like(prompt_lengths)
        codes = stop_codes(tokens, prompt_lengths, starts, width, self.settings)
        emitted = torch.arange(width, device=tokens.device) >= prompt_lengths.unsqueeze(-1)
        return (codes != 0) & emitted


def _lengths(starts: Tensor, counts: Tensor, n: int) -> list[int]:
    """The distinct history lengths of all positions in use, ascending."""
    offsets = torch.arange(n, device=starts.device)
    used = offsets < counts.unsqueeze(-1)
    return (starts.unsqueeze(-1) + offsets)[used].unique().tolist()


def _split(rows: Tensor, unreachable: Tensor) -> tuple[Tensor, Tensor]:
    lost = unreachable[rows]
    return rows[~lost], rows[lost]
