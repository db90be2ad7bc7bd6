"""The decoding loop: draft, score, verify, commit, for batches whose rows accept raggedly.

Without a drafter the same loop is plain autoregressive decoding: every round offers no draft
token and emits one.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from specverify.decoding.output import DecoderOutput
from specverify.decoding.run import Recorder, Run
from specverify.drafting.protocol import DraftBlock, Drafter, Histories
from specverify.drafting.schedule import Fixed, Schedule
from specverify.errors import UsageError
from specverify.models.pairing import check_rollable
from specverify.models.protocol import LanguageModel
from specverify.settings import SamplingSettings
from specverify.stopping import stop_codes
from specverify.transforms.pipeline import Pipeline
from specverify.verification import TOKEN
from specverify.verification.protocol import Verification, Verified


@dataclass(frozen=True)
class Scored:
    """What the target said about one block, for the A active rows only."""

    raw: Tensor
    """Logits [A, K+1, V] as the target returned them, after 0, 1, ... K draft tokens."""
    probs: Tensor
    """float64 [A, K+1, V], the same after transforms, each position with its own prefix."""


class SpeculativeDecoder:
    """Speculative sampling whose output has exactly the target's distribution.

    Leviathan et al. 2023 (arXiv 2211.17192) and Chen et al. 2023 (arXiv 2302.01318) for the loop;
    the verification decides which rule of acceptance applies.

    Args:
        target: the model whose distribution is sampled.
        drafter: who proposes; None decodes autoregressively.
        verification: who decides.
        schedule: how many draft tokens each row is offered a round; 4 by default.
        record_probs: whether the output holds the target distribution of every token, as this
            decoder saw it, and every draft token with the distribution it was drawn from: rows
            times tokens times V numbers each.

    Raises:
        VocabularyMismatch: the draft's token ids are not the target's and cannot be mapped.
        CacheNotRollable: a model's cache cannot forget rejected draft tokens.
    """

    def __init__(
        self,
        target: LanguageModel,
        drafter: Drafter | None = None,
        verification: Verification = TOKEN,
        schedule: Schedule | None = None,
        *,
        record_probs: bool = False,
    ) -> None:
        self.target = target
        self.record_probs = record_probs
        self.drafter: Drafter | None = None
        if drafter is not None:
            check_rollable(target)
            self.drafter = drafter.paired_with(target)
        self.verification = verification
        self.schedule = schedule or Fixed(4)

    def generate(
        self,
        prompt_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        settings: SamplingSettings,
        generator: Generator,
    ) -> DecoderOutput:
        """Decode a batch of prompts until every row has stopped.

        Args:
            prompt_ids: long [B, T], padded on the left.
            attention_mask: [B, T], 1 on real tokens; all real when omitted.
            settings: the output contract.
            generator: source of every draw; torch's global generator is never touched.

        Raises:
            UsageError: an empty prompt, an unknown token id, or a prompt that leaves no room for
                `max_new_tokens` in the model's window; raised before any pass.
        """
        return self.advance(
            self.start(prompt_ids, attention_mask, settings.max_new_tokens),
            settings=settings,
            generator=generator,
        )

    def start(
        self, prompt_ids: Tensor, attention_mask: Tensor | None = None, max_new_tokens: int = 0
    ) -> Run:
        """Read the prompts. `max_new_tokens` is only used to refuse what cannot fit."""
        if attention_mask is None:
            attention_mask = torch.ones_like(prompt_ids)
        if prompt_ids.numel():
            _check_room(self.target, int(attention_mask.long().sum(1).max()), max_new_tokens)
        recorder = Recorder()
        with recorder.phase("prefill"):
            target = self.target.start(prompt_ids, attention_mask)
            draft = self.drafter.start(prompt_ids, attention_mask, target) if self.drafter else None
        return Run(Histories.from_prompts(prompt_ids, attention_mask), target, draft, recorder)

    def advance(
        self, run: Run, *, settings: SamplingSettings, generator: Generator
    ) -> DecoderOutput:
        """Emit tokens until every row stops; all that `run` holds counts as its prompt.

        A run can be advanced again, after `Run.append` or directly: its caches hold nothing that
        was not emitted, so the result has the distribution of a fresh run on the same tokens.
        """
        settings.check_vocabulary(self.target.vocab_size)
        histories = run.histories
        _check_room(self.target, int(histories.lengths.max()), settings.max_new_tokens)
        histories.prompt_lengths = histories.lengths.clone()
        with run.recorder.phase("prefill"):
            self._catch_up(run)
        pipeline = Pipeline.from_settings(settings, self.target.vocab_size, generator)
        rows = len(histories.lengths)
        device = histories.tokens.device
        recorded = self.target.vocab_size if self.record_probs else 0
        run.recorder.open(rows, settings.max_new_tokens, device, recorded)
        schedule_state = self.schedule.start(rows)
        codes = torch.zeros(rows, dtype=torch.int8, device=device)
        while not bool((codes != 0).all()):
            limits = self.schedule.limits(schedule_state).to(device)
            limits = torch.minimum(limits, self._room(run, settings)) * (codes == 0)
            accepted, drafted = self._round(run, limits, codes, settings, pipeline, generator)
            self.schedule.update(schedule_state, accepted, drafted)
        output = run.recorder.output(run, codes)
        run.recorder = Recorder(*run.passes())
        return output

    def _catch_up(self, run: Run) -> None:
        """Let the target read appended tokens, all but the last one."""
        histories = run.histories
        missing = histories.lengths - 1 - run.target.lengths
        if bool(missing.any()):
            index = torch.arange(int(missing.max()), device=missing.device)
            positions = run.target.lengths[:, None] + index
            width = histories.tokens.shape[1]
            block = histories.tokens.gather(1, positions.clamp(max=width - 1))
            run.target.extend(torch.where(index < missing[:, None], block, -1), missing)

    def _room(self, run: Run, settings: SamplingSettings) -> Tensor:
        """Draft tokens that can still be emitted with a last token after them, [B]."""
        histories = run.histories
        emitted = histories.lengths - histories.prompt_lengths
        return (settings.max_new_tokens - 1 - emitted).clamp(min=0)

    def _round(
        self,
        run: Run,
        limits: Tensor,
        codes: Tensor,
        settings: SamplingSettings,
        pipeline: Pipeline,
        generator: Generator,
    ) -> tuple[Tensor, Tensor]:
        """One round; returns accepted and drafted per row, both 0 on rows that have ended."""
        recorder, histories = run.recorder, run.histories
        active = codes == 0
        rows = active.nonzero().squeeze(1)
        histories.reserve(self._block_length(limits) + 1)
        with recorder.phase("draft"):
            block = self._draft(run, limits, pipeline, generator)
        with recorder.phase("score"):
            scored = self._score(run, block, rows, pipeline)
        with recorder.phase("verify"):
            verified = self._verify(block, scored, rows, generator)
        with recorder.phase("commit"):
            kept, stops = self._keep(run, verified, rows, settings)
            codes[rows] = stops
            self._record_logprobs(run, scored, verified, rows, kept)
            accepted = torch.zeros_like(limits).index_copy(0, rows, verified.accepted)
            recorder.round(rows, active, block.counts[rows], verified.accepted, kept)
            recorder.drafts(rows, block)
            self._commit(run, accepted, torch.zeros_like(limits).index_copy(0, rows, kept), active)
        return accepted, block.counts

    @staticmethod
    def _block_length(limits: Tensor) -> int:
        return int(limits.max()) if len(limits) else 0

    def _draft(
        self, run: Run, limits: Tensor, pipeline: Pipeline, generator: Generator
    ) -> DraftBlock:
        """Ask the drafter for a block and leave it in the scratch space of the histories."""
        if run.draft is None or not bool(limits.any()):
            return DraftBlock(limits.new_empty((len(limits), 0)), torch.zeros_like(limits), None)
        block = run.draft.propose(run.histories, limits, pipeline, generator)
        run.histories.write(block.tokens)
        return block

    def _score(self, run: Run, block: DraftBlock, rows: Tensor, pipeline: Pipeline) -> Scored:
        """One target pass over the last committed token and the block."""
        histories = run.histories
        last = histories.tokens.gather(1, histories.lengths[:, None] - 1)
        counts = torch.zeros_like(block.counts).index_copy(0, rows, block.counts[rows] + 1)
        raw = run.target.extend(torch.cat([last, block.tokens], 1), counts)
        tokens, starts, prompts = histories.tokens, histories.lengths, histories.prompt_lengths
        if len(rows) < len(starts):
            raw, tokens = raw[rows], tokens[rows]
            starts, prompts, counts = starts[rows], prompts[rows], counts[rows]
        beyond = torch.arange(raw.shape[1], device=raw.device) >= counts[:, None]
        if bool(beyond.any()):
            raw = raw.masked_fill(beyond[:, :, None], 0.0)
        return Scored(raw, pipeline.probabilities(raw, tokens, starts, prompts, counts))

    def _verify(
        self, block: DraftBlock, scored: Scored, rows: Tensor, generator: Generator
    ) -> Verified:
        whole = len(rows) == len(block.counts)
        probs = block.probs
        if probs is not None and not whole:
            probs = probs[rows]
        return self.verification(
            block.tokens if whole else block.tokens[rows],
            probs,
            scored.probs,
            generator,
            block.counts if whole else block.counts[rows],
        )

    def _keep(
        self, run: Run, verified: Verified, rows: Tensor, settings: SamplingSettings
    ) -> tuple[Tensor, Tensor]:
        """Write the verified tokens behind the histories and cut each row where it stops.

        Returns:
            Tokens kept [A] and stop codes [A], 0 on rows that go on.
        """
        histories = run.histories
        starts = histories.lengths[rows]
        emitted = verified.accepted + 1
        block = histories.tokens.new_full((len(histories.lengths), verified.tokens.shape[1]), -1)
        histories.write(block.index_copy(0, rows, verified.tokens))
        codes = stop_codes(
            histories.tokens[rows],
            histories.prompt_lengths[rows],
            starts,
            verified.tokens.shape[1],
            settings,
        )
        index = torch.arange(codes.shape[1], device=codes.device)
        ends = (codes != 0) & (index < emitted[:, None])
        first = ends.int().argmax(1)
        stopped = ends.any(1)
        kept = torch.where(stopped, first + 1, emitted)
        reason = codes.gather(1, first[:, None]).squeeze(1)
        return kept, torch.where(stopped, reason, torch.zeros_like(reason))

    def _record_logprobs(
        self, run: Run, scored: Scored, verified: Verified, rows: Tensor, kept: Tensor
    ) -> None:
        index = verified.tokens.clamp(min=0)[:, :, None]
        raw = scored.raw.double()
        raw_logprobs = raw.gather(2, index).squeeze(2) - raw.logsumexp(2)
        logprobs = scored.probs.gather(2, index).squeeze(2).log()
        histories = run.histories
        offsets = (histories.lengths - histories.prompt_lengths)[rows]
        run.recorder.logprobs(rows, offsets, kept, logprobs, raw_logprobs)
        run.recorder.probs(rows, offsets, kept, scored.probs)

    def _commit(self, run: Run, accepted: Tensor, kept: Tensor, active: Tensor) -> None:
        """Make the kept tokens part of the histories and drop all else from both caches."""
        histories = run.histories
        before = histories.lengths
        histories.lengths = before + kept
        run.target.roll_back(histories.lengths - 1)
        if run.draft is not None:
            # The last committed token stays unread, so that a pass over it gives the next logits.
            valid = torch.minimum(before + accepted, histories.lengths - 1)
            run.draft.commit(torch.where(active, valid, histories.lengths - 1))


def _check_room(target: LanguageModel, longest: int, max_new_tokens: int) -> None:
    if target.window is not None and longest + max_new_tokens > target.window:
        raise UsageError(
            f"a prompt of {longest} tokens and max_new_tokens={max_new_tokens} need "
            f"{longest + max_new_tokens} positions, but the target's window has {target.window}; "
            "shorten the prompt or lower max_new_tokens"
        )
