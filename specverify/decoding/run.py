"""The state of a run: committed tokens, caches, and what has been counted so far."""

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from specverify.decoding.output import Counters, DecoderOutput
from specverify.drafting.protocol import DraftBlock, DraftSession, Histories
from specverify.models.protocol import Session
from specverify.stopping import REASONS


@dataclass
class Run:
    """A batch of rows between two calls of `SpeculativeDecoder.advance`.

    Between calls both caches hold committed tokens only: the target's all but the last one, the
    draft's a prefix of that (algorithms.md section 4, I1, I2 and I12).
    """

    histories: Histories
    target: Session
    draft: DraftSession | None
    recorder: "Recorder" = field(default_factory=lambda: Recorder())

    def passes(self) -> tuple[int, int]:
        """Forward passes of target and draft since the run began."""
        return self.target.passes, self.draft.passes if self.draft else 0

    def append(self, tokens: Tensor) -> None:
        """Add the same number of given tokens, long [B, n], to every row, e.g. a user's turn.

        They count as prompt from here on, as does all that was emitted before.
        """
        histories = self.histories
        histories.reserve(tokens.shape[1])
        histories.write(tokens)
        histories.lengths = histories.lengths + tokens.shape[1]


class Recorder:
    """Collects per-round results and turns them into a `DecoderOutput`.

    Args:
        target_passes: made by the sessions before, which are not counted.
        draft_passes: the same for the draft.
    """

    def __init__(self, target_passes: int = 0, draft_passes: int = 0) -> None:
        self._passes_before = target_passes, draft_passes
        self.counters = Counters()
        self._accepted: list[Tensor] = []
        self._drafted: list[Tensor] = []
        self._draft_tokens: list[Tensor] = []
        self._draft_probs: list[Tensor] = []
        self._logprobs: Tensor | None = None
        self._raw_logprobs: Tensor | None = None
        self._probs: Tensor | None = None

    def open(self, rows: int, limit: int, device: torch.device, vocab_size: int = 0) -> None:
        """Prepare storage for the log probabilities of at most `limit` tokens per row.

        With a `vocab_size` there is room for whole distributions as well.
        """
        self._logprobs = torch.full((rows, limit), torch.nan, dtype=torch.float64, device=device)
        self._raw_logprobs = self._logprobs.clone()
        if vocab_size:
            self._probs = self._logprobs.new_zeros(rows, limit, vocab_size)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the wall time of the enclosed block to `counters.seconds[name]`."""
        begin = time.perf_counter()
        yield
        seconds = self.counters.seconds
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - begin

    def round(
        self, rows: Tensor, active: Tensor, drafted: Tensor, accepted: Tensor, kept: Tensor
    ) -> None:
        """Count one round of the active rows; all tensors but `active` are per active row."""
        counters = self.counters
        counters.rounds += len(rows)
        counters.drafted += int(drafted.sum())
        counters.accepted += int(accepted.sum())
        counters.emitted += int(kept.sum())
        counters.cut += int((accepted + 1 - kept).sum())
        reached = torch.bincount(accepted).flip(0).cumsum(0).flip(0)[1:].tolist()
        by_position = counters.accepted_by_position
        by_position.extend([0] * (len(reached) - len(by_position)))
        for position, count in enumerate(reached):
            by_position[position] += count
        for record, values in ((self._accepted, accepted), (self._drafted, drafted)):
            whole = torch.full_like(active, -1, dtype=torch.long)
            whole[rows] = values
            record.append(whole)

    def logprobs(
        self, rows: Tensor, offsets: Tensor, kept: Tensor, processed: Tensor, raw: Tensor
    ) -> None:
        """Store log probabilities [A, n] of the tokens that start at `offsets` of each row."""
        if self._logprobs is None or self._raw_logprobs is None:
            raise RuntimeError("open() must be called before log probabilities are recorded")
        index = torch.arange(processed.shape[1], device=rows.device)
        valid = index < kept[:, None]
        where_rows = rows[:, None].expand_as(valid)[valid]
        where_columns = (offsets[:, None] + index)[valid]
        self._logprobs[where_rows, where_columns] = processed[valid]
        self._raw_logprobs[where_rows, where_columns] = raw[valid]

    def probs(self, rows: Tensor, offsets: Tensor, kept: Tensor, probs: Tensor) -> None:
        """Store distributions [A, n, V] of tokens, if room was made for them; see `logprobs`."""
        if self._probs is None:
            return
        index = torch.arange(probs.shape[1], device=rows.device)
        valid = index < kept[:, None]
        columns = (offsets[:, None] + index)[valid]
        self._probs[rows[:, None].expand_as(valid)[valid], columns] = probs[valid]

    def drafts(self, rows: Tensor, block: DraftBlock) -> None:
        """Store what a round offered its active rows, if room was made for distributions."""
        if self._probs is None:
            return
        tokens = torch.full_like(block.tokens, -1).index_copy(0, rows, block.tokens[rows])
        probs = block.probs
        if probs is None:
            probs = one_hot(tokens.clamp(min=0), self._probs.shape[2]).double()
        self._draft_tokens.append(tokens)
        self._draft_probs.append(probs.masked_fill((tokens < 0)[:, :, None], 0.0))

    def _recorded_drafts(self) -> tuple[Tensor | None, Tensor | None]:
        """Draft tokens [B, rounds, K] and their distributions [B, rounds, K, V], if recorded."""
        if not self._draft_tokens:
            return None, None
        width = max(tokens.shape[1] for tokens in self._draft_tokens)
        tokens = [pad(t, (0, width - t.shape[1]), value=-1) for t in self._draft_tokens]
        probs = [pad(q, (0, 0, 0, width - q.shape[1])) for q in self._draft_probs]
        return torch.stack(tokens, 1), torch.stack(probs, 1)

    def output(self, run: Run, codes: Tensor) -> DecoderOutput:
        """Assemble what the run returns; `codes` are the stop codes of the rows."""
        histories = run.histories
        emitted = histories.lengths - histories.prompt_lengths
        width = int(emitted.max())
        index = torch.arange(width, device=emitted.device)
        positions = histories.prompt_lengths[:, None] + index
        # A row with a long prompt that ended early has no column for as many tokens as the others.
        held = histories.tokens.gather(1, positions.clamp(max=histories.tokens.shape[1] - 1))
        tokens = torch.where(index < emitted[:, None], held, -1)
        passes = run.passes()
        self.counters.target_passes = passes[0] - self._passes_before[0]
        self.counters.draft_passes = passes[1] - self._passes_before[1]
        self.counters.peak_memory_bytes = _peak_memory_bytes(tokens.device)
        draft_tokens, draft_probs = self._recorded_drafts()
        none = torch.empty((len(tokens), 0), dtype=torch.long, device=tokens.device)
        return DecoderOutput(
            tokens=tokens,
            accepted=torch.stack(self._accepted, 1) if self._accepted else none,
            drafted=torch.stack(self._drafted, 1) if self._drafted else none,
            finish_reasons=[REASONS[code - 1] for code in codes.tolist()],
            logprobs=None if self._logprobs is None else self._logprobs[:, :width],
            raw_logprobs=None if self._raw_logprobs is None else self._raw_logprobs[:, :width],
            target_probs=None if self._probs is None else self._probs[:, :width],
            draft_tokens=draft_tokens,
            draft_probs=draft_probs,
            counters=self.counters,
        )


def _peak_memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
