"""Running one shard of a case: calls with seeds of their own, reduced to tallies as they come."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor

from specverify.certification.case_tally import CaseTally
from specverify.certification.decoder_case import DecoderCase
from specverify.certification.laws import Laws
from specverify.certification.limits import MOST_CALLS, MOST_SHARDS
from specverify.certification.positions import count_positions
from specverify.certification.round_ends import count_first_rounds
from specverify.certification.token_scoring import CallScoring, TokenScoring
from specverify.decoding.output import DecoderOutput, first_rows, joined
from specverify.errors import SubjectError
from specverify.subjects.calling import check_decoder_values
from specverify.subjects.guard import Call
from specverify.subjects.protocols import Subject

Generate = Callable[[Tensor, Tensor, Generator], Call[DecoderOutput]]
"""Prompts [B, T], attention mask [B, T] and a generator to runs, checked for type and shape."""

SHARDS = 32
"""Shards a case is divided into, unless they would be small, or take too many calls."""
SMALLEST_SHARD = 256
"""Runs of a shard, so that reducing it costs little beside sampling it."""
FEWEST_SHARDS = 8
"""Shards of a small case: some bets are learned from earlier shards."""

SCORED_ROWS = 256
"""Runs that are checked and scored together, where calls bring fewer: a pass over one run costs as
much as a pass over many."""

ONE_AFTER_THE_OTHER = 16
"""Runs of a subject that takes one row a call that share a generator and a look at what it did to
the process: each costs as much as a token."""

ULPS = 8
"""Last digits by which probabilities that a subject records may be off those it draws from."""

_ENTRIES = 1 << 22
"""Probabilities computed at once."""


def shard_runs(runs: int, rows: int) -> int:
    """Runs of a shard: whole calls, where a shard takes more than one, and not too many of them.

    Args:
        runs: planned for the case.
        rows: of a call, at most.
    """
    small = min(max(SMALLEST_SHARD, rows // 16), -(-runs // FEWEST_SHARDS))
    size = max(1, small, -(-runs // SHARDS))
    if size <= rows:
        return size
    calls = min(-(-size // rows), max(MOST_CALLS, -(-runs // rows // MOST_SHARDS)))
    return calls * rows


@dataclass
class ShardSampler:
    """Runs a subject on shards of one case."""

    subject: Subject
    generate: Generate
    case: DecoderCase
    rows: int
    """Rows per call."""
    seed: int

    @property
    def shards(self) -> int:
        """Shards of the case."""
        return -(-self.case.runs // shard_runs(self.case.runs, self.rows))

    @property
    def _width(self) -> int:
        """Runs that are asked for at once."""
        one_by_one = self.subject.kind == "decoder" and not self.subject.capabilities.batch
        return ONE_AFTER_THE_OTHER if one_by_one else self.rows

    def run(self, shard: int) -> CaseTally:
        """Sample one shard.

        Returns:
            Its tally. If the subject fails, the tally holds the calls before it and the failure.
        """
        case = self.case
        size = shard_runs(case.runs, self.rows)
        done, end = shard * size, min((shard + 1) * size, case.runs)
        tally, call = CaseTally(case), 0
        scoring = TokenScoring(case, tally.scores, case.table)
        rng = np.random.default_rng([*_key(self.seed, case.id, shard, 0), 1])
        waiting: list[tuple[np.ndarray, DecoderOutput]] = []
        while done < end:
            rows = min(self._width, end - done)
            # Rows take the prompts in turn, so that neighbours in a batch differ.
            prompts = (done + np.arange(rows)) % len(case.prompts)
            try:
                output = self._call(prompts, shard, call, tally)
            except SubjectError as error:
                tally.failure = str(error)
                break
            waiting.append((prompts[: len(output.tokens)], output))
            done += rows
            call += 1
            if sum(len(prompts) for prompts, _ in waiting) >= SCORED_ROWS:
                self._count_all(tally, scoring, waiting, rng)
                waiting = []
            if tally.failure is not None:
                break
        self._count_all(tally, scoring, waiting, rng)
        scoring.finish()
        return tally

    def _call(self, prompts: np.ndarray, shard: int, call: int, tally: CaseTally) -> DecoderOutput:
        prompt_ids, attention_mask = left_padded(self.case.prompts, prompts)
        generator = derived_generator(self.seed, self.case.id, shard, call)
        result = self.generate(prompt_ids, attention_mask, generator)
        tally.note(result.findings)
        tally.failure = result.failure
        return result.value

    def _count_all(
        self,
        tally: CaseTally,
        scoring: TokenScoring,
        waiting: list[tuple[np.ndarray, DecoderOutput]],
        rng: np.random.Generator,
    ) -> None:
        """Add the runs of several calls, one after the other in the order of their rows.

        Where one of them is malformed, those before it are added, and it is the failure.
        """
        if self.subject.kind == "decoder":
            waiting = self._well_formed(tally, waiting)
        if waiting:
            prompts = np.concatenate([prompts for prompts, _ in waiting])
            self._count(tally, scoring, prompts, joined([output for _, output in waiting]), rng)

    def _well_formed(
        self, tally: CaseTally, waiting: list[tuple[np.ndarray, DecoderOutput]]
    ) -> list[tuple[np.ndarray, DecoderOutput]]:
        """The runs before the first malformed output, which is that of a call or of a row."""
        if not waiting or self._malformed(joined([output for _, output in waiting])) is None:
            return waiting
        whole = []
        for prompts, output in waiting:
            step = len(prompts) if self.subject.capabilities.batch else 1
            for end in range(step, len(prompts) + 1, step):
                tally.failure = self._malformed(first_rows(output, end))
                if tally.failure is not None:
                    rows = end - step
                    return [*whole, (prompts[:rows], first_rows(output, rows))] if rows else whole
            whole.append((prompts, output))
        return whole

    def _malformed(self, output: DecoderOutput) -> str | None:
        try:
            check_decoder_values(self.subject, output, self.case.target.vocab_size)
        except SubjectError as error:
            return str(error)
        return None

    def _count(
        self,
        tally: CaseTally,
        scoring: TokenScoring,
        prompts: np.ndarray,
        output: DecoderOutput,
        rng: np.random.Generator,
    ) -> None:
        """Add runs to all tallies."""
        case, recorded = self.case, output.target_probs
        calls = [scoring.open_call(output.tokens, rng)]
        if recorded is not None:
            tally.recorded = tally.recorded or case.new_scores()
            tally.rounding = max(tally.rounding, ULPS * torch.finfo(recorded.dtype).eps)
            own = TokenScoring(case, tally.recorded, None)
            calls.append(own.open_call(output.tokens, rng, recorded=True))
        for prompt in range(len(case.prompts)):
            for rows in torch.from_numpy(np.flatnonzero(prompts == prompt)).split(self._chunk):
                laws = case.laws(prompt, output.tokens[rows, : case.length])
                self._count_runs(tally, prompt, rows, output, laws)
                calls[0].add(rows, prompt, laws)
                if recorded is not None:
                    _add_recorded(calls[1], rows, prompt, laws, recorded[rows, : case.length])
        for call in calls:
            call.close()

    def _count_runs(
        self, tally: CaseTally, prompt: int, rows: Tensor, output: DecoderOutput, laws: Laws
    ) -> None:
        """Add runs of one prompt to the tallies of runs, positions and first rounds."""
        case, tokens = self.case, output.tokens[rows]
        tally.tallies[prompt].add(case.judge(prompt, tokens, laws.p))
        count_positions(tally.positions, case, prompt, tokens, laws.p)
        accepted, drafted = _first_round(output.accepted), _first_round(output.drafted)
        if accepted is not None:
            count_first_rounds(
                tally.first_rounds,
                case,
                self.subject.capabilities.algorithm,
                prompt,
                tokens,
                laws,
                accepted[rows],
                None if drafted is None else drafted[rows],
            )

    @property
    def _chunk(self) -> int:
        """Runs judged at once: their distributions are the largest thing held in memory."""
        return max(1, _ENTRIES // (self.case.length * self.case.target.vocab_size))


def _add_recorded(
    call: CallScoring, rows: Tensor, prompt: int, laws: Laws, recorded: Tensor
) -> None:
    """Hold tokens against what the subject says it drew them from."""
    width = laws.p.shape[1]
    call.add(rows, prompt, Laws(recorded[:, :width].double(), laws.q, laws.p_raw, laws.q_raw))


def derived_generator(seed: int, case: str, shard: int, call: int) -> Generator:
    """A generator of its own for one call, the same on every machine."""
    sequence = np.random.SeedSequence(_key(seed, case, shard, call))
    return Generator().manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1)))


def _key(seed: int, case: str, shard: int, call: int) -> list[int]:
    return [seed, zlib.crc32(case.encode()), shard, call]


def _first_round(values: Tensor | None) -> Tensor | None:
    return values[:, 0] if values is not None and values.shape[1] else None


def left_padded(prompts: tuple[tuple[int, ...], ...], index: np.ndarray) -> tuple[Tensor, Tensor]:
    """Prompts by index, as a batch with its attention mask."""
    if len(index) == 1:
        ids = torch.tensor(prompts[int(index[0])])[None]
        return ids, torch.ones_like(ids)
    used = np.unique(index)
    width = max(len(prompts[i]) for i in used)
    ids = torch.zeros((len(prompts), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row in used:
        ids[row, width - len(prompts[row]) :] = torch.tensor(prompts[row])
        mask[row, width - len(prompts[row]) :] = 1
    rows = torch.from_numpy(index)
    return ids[rows], mask[rows]
