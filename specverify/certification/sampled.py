"""Sampling a decoder case: calls with derived seeds, reduced to tallies as they come."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Generator, Tensor

from specverify.certification.decoder_case import DecoderCase
from specverify.certification.decoder_evidence import DecoderEvidence
from specverify.certification.positions import count_positions, new_positions
from specverify.certification.round_ends import count_first_rounds, new_first_rounds
from specverify.decoding.output import DecoderOutput
from specverify.sampling.context_tally import ContextTally
from specverify.sampling.first_rounds import FirstRounds
from specverify.sampling.tally import Tally
from specverify.subjects.guard import Call
from specverify.subjects.protocols import Subject

Generate = Callable[[Tensor, Tensor, Generator], Call[DecoderOutput]]
"""Prompts [B, T], attention mask [B, T] and a generator to runs, checked for shape and range."""

_ENTRIES = 1 << 22
"""Probabilities computed at once."""


@dataclass
class DecoderSampler:
    """Runs a subject on one case until the planned number of runs is tallied.

    What is tallied stays, whatever ends the sampling: an exception of the subject, a time limit,
    an interrupt.
    """

    subject: Subject
    generate: Generate
    case: DecoderCase
    rows: int
    """Rows per call."""
    seed: int
    tallies: tuple[Tally, ...] = field(init=False)
    first_rounds: FirstRounds = field(init=False)
    positions: ContextTally = field(init=False)
    findings: dict[str, None] = field(default_factory=dict)
    """Remarks of the calls, each once, in order of appearance."""

    def __post_init__(self) -> None:
        self.tallies = tuple(Tally(tree) for tree in self.case.trees)
        self.first_rounds = new_first_rounds(self.case)
        self.positions = new_positions(self.case)

    def run(self, progress: Callable[[int], None]) -> None:
        """Sample; `progress` is told the number of runs done after each call.

        Raises:
            SubjectError: a call failed; `tallies` hold the calls before it.
        """
        done = call = 0
        while done < self.case.runs:
            rows = min(self.rows, self.case.runs - done)
            # Rows take the prompts in turn, so that neighbours in a batch differ.
            prompts = (done + np.arange(rows)) % len(self.case.prompts)
            output = self._call(prompts, call)
            self._tally(prompts, output)
            done += rows
            call += 1
            progress(done)

    def evidence(self) -> DecoderEvidence:
        """What has been tallied so far."""
        return DecoderEvidence(
            self.subject, self.case, self.tallies, self.first_rounds, self.positions
        )

    def _call(self, prompts: np.ndarray, call: int) -> DecoderOutput:
        prompt_ids, attention_mask = _left_padded([self.case.prompts[i] for i in prompts])
        generator = derived_generator(self.seed, self.case.id, call)
        result = self.generate(prompt_ids, attention_mask, generator)
        self.findings.update(dict.fromkeys(result.findings))
        return result.value

    def _tally(self, prompts: np.ndarray, output: DecoderOutput) -> None:
        accepted, drafted = _first_round(output.accepted), _first_round(output.drafted)
        algorithm = self.subject.capabilities.algorithm
        for index, tally in enumerate(self.tallies):
            for rows in torch.from_numpy(np.flatnonzero(prompts == index)).split(self._chunk):
                tokens = output.tokens[rows]
                batch, probs = self.case.judge(index, tokens)
                tally.add(batch)
                count_positions(self.positions, self.case, index, tokens, probs)
                if accepted is not None:
                    count_first_rounds(
                        self.first_rounds,
                        self.case,
                        algorithm,
                        index,
                        tokens,
                        probs,
                        accepted[rows],
                        None if drafted is None else drafted[rows],
                    )

    @property
    def _chunk(self) -> int:
        """Runs judged at once: their distributions are the largest thing held in memory."""
        return max(1, _ENTRIES // (self.case.length * self.case.target.vocab_size))


def derived_generator(seed: int, case: str, call: int) -> Generator:
    """A generator of its own for one call, the same on every machine."""
    sequence = np.random.SeedSequence([seed, zlib.crc32(case.encode()), call])
    return Generator().manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1)))


def _first_round(values: Tensor | None) -> Tensor | None:
    return values[:, 0] if values is not None and values.shape[1] else None


def _left_padded(prompts: list[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    width = max(len(prompt) for prompt in prompts)
    ids = torch.zeros((len(prompts), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return ids, mask
