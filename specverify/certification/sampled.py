"""Sampling a decoder case: calls with derived seeds, reduced to tallies as they come."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Generator, Tensor

from specverify.certification.decoder_case import DecoderCase
from specverify.certification.decoder_evidence import DecoderEvidence
from specverify.decoding.output import DecoderOutput
from specverify.sampling.tally import Tally
from specverify.subjects.guard import Call
from specverify.subjects.protocols import Subject

Generate = Callable[[Tensor, Tensor, Generator], Call[DecoderOutput]]
"""Prompts [B, T], attention mask [B, T] and a generator to runs, checked for shape and range."""


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
    findings: dict[str, None] = field(default_factory=dict)
    """Remarks of the calls, each once, in order of appearance."""

    def __post_init__(self) -> None:
        self.tallies = tuple(Tally(tree) for tree in self.case.trees)

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
        return DecoderEvidence(self.subject, self.case, self.tallies)

    def _call(self, prompts: np.ndarray, call: int) -> DecoderOutput:
        prompt_ids, attention_mask = _left_padded([self.case.prompts[i] for i in prompts])
        generator = derived_generator(self.seed, self.case.id, call)
        result = self.generate(prompt_ids, attention_mask, generator)
        self.findings.update(dict.fromkeys(result.findings))
        return result.value

    def _tally(self, prompts: np.ndarray, output: DecoderOutput) -> None:
        accepted = _first_round(output.accepted)
        drafted = _first_round(output.drafted)
        if accepted is not None and drafted is None:
            # Fewer may have been offered, near the length limit or by a schedule, so only full
            # acceptance is certain.
            most = self.case.num_draft_tokens
            drafted = torch.where(accepted == most, most, -1)
        for index, tally in enumerate(self.tallies):
            rows = torch.from_numpy(np.flatnonzero(prompts == index))
            if len(rows):
                tally.add(
                    self.case.judge(
                        index,
                        output.tokens[rows],
                        None if accepted is None else accepted[rows],
                        None if drafted is None else drafted[rows],
                    )
                )


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
