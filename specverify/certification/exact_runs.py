"""Whole runs of a decoder on models small enough to follow every path."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from specverify.certification.exact_calls import (
    MAXIMUM_RUNS,
    SteeredCalls,
    check_tokens,
)
from specverify.certification.exact_evidence import Comparison, ExactEvidence, tolerance_of
from specverify.certification.presets import restrict
from specverify.decoding.output import DecoderOutput
from specverify.decoding.scoring import TeacherForced
from specverify.exact.prefix_tree import PrefixTree
from specverify.exact.programs import program_distribution
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.stopping import run_lengths
from specverify.subjects.protocols import Subject

VOCAB_SIZE, ORDER, NUM_DRAFT_TOKENS, LENGTH = 3, 2, 2, 3
"""The bonus token of the first round is the last of a run; one token more takes some thousand runs
instead of some hundred."""
LONGER = "exact/plain-longer"
"""K + 2 tokens over two token ids: room for two rejections and what follows them, and still some
hundred runs."""
PROMPT = (0, 1)
_TARGET_SEED, _DRAFT_SEED, _NOISE = 5, 7, 0.8
_ROWS = 256

SMALL: dict[str, SamplingSettings] = {
    "plain": SamplingSettings(),
    "filtered": SamplingSettings(temperature=0.7, top_k=2),
    "history": SamplingSettings(repetition_penalty=1.3),
    "stopping": SamplingSettings(stop_token_ids=(VOCAB_SIZE - 1,)),
    "greedy": SamplingSettings(temperature=0.0),
}
"""What each preset becomes on three tokens."""


@dataclass(frozen=True)
class RunCase:
    """Runs of a decoder under one set of settings."""

    id: str
    settings: SamplingSettings
    vocab_size: int = VOCAB_SIZE

    @property
    def num_draft_tokens(self) -> int:
        """K."""
        return NUM_DRAFT_TOKENS

    @property
    def size(self) -> str:
        """V, K and length, for a reader."""
        length = self.settings.max_new_tokens
        return f"V={self.vocab_size}, K={self.num_draft_tokens}, {length} tokens"

    @property
    def tables(self) -> tuple[TableModel, TableModel]:
        """Target and draft."""
        return _tables(self.vocab_size)

    def expected(self) -> dict[tuple[int, ...], float]:
        """The stopped joint distribution of a run."""
        forced = TeacherForced(self.tables[0], PROMPT, self.settings, _ROWS)
        length = self.settings.max_new_tokens
        return PrefixTree.grow(forced, self.vocab_size, length, self._ends).sequences()

    def _ends(self, prefixes: NDArray[np.int64]) -> NDArray[np.bool_]:
        required, _ = run_lengths(torch.from_numpy(np.ascontiguousarray(prefixes)), self.settings)
        return required.numpy() == prefixes.shape[1]


@cache
def _tables(vocab_size: int) -> tuple[TableModel, TableModel]:
    target = TableModel.random(vocab_size, ORDER, _TARGET_SEED)
    return target, target.near(_DRAFT_SEED, _NOISE)


def exact_runs(subject: Subject, presets: Sequence[str]) -> list[RunCase]:
    """The cases of a decoder: one for each preset that is certified, cut to what it honours.

    Where the plain one is, so is a longer run on fewer tokens.

    Args:
        subject: a decoder.
        presets: names of those that are asked for.
    """
    cases: list[RunCase] = []
    for name in presets:
        if name not in SMALL:
            continue
        kept, dropped = restrict(SMALL[name], subject.capabilities.settings)
        kept = kept.model_copy(update={"max_new_tokens": LENGTH})
        same = dropped and any(kept == case.settings for case in cases)
        if not same and (kept.greedy or subject.capabilities.algorithm != "greedy"):
            cases.append(RunCase(f"exact/{name}", kept))
        if name == "plain" and subject.capabilities.algorithm != "greedy":
            longer = SamplingSettings(max_new_tokens=NUM_DRAFT_TOKENS + 2)
            cases.append(RunCase(LONGER, longer, vocab_size=2))
    return cases


def steer_decoder(subject: Subject, case: RunCase, seed: int, time_limit: float) -> ExactEvidence:
    """Compute what a decoder emits in a whole run.

    Raises:
        CannotSteer: its randomness cannot be followed.
        SubjectError: it returned something malformed.
    """
    calls = SteeredCalls(subject, time_limit)
    prompt = torch.tensor([PROMPT])
    target, draft, float64 = _models(subject, case)

    def program(source: Generator) -> Tensor:
        value = calls(
            target,
            draft,
            prompt.clone(),
            torch.ones_like(prompt),
            case.settings.model_copy(),
            case.num_draft_tokens,
            source,
        )
        # Looking at the tokens would decide draws that may stay open until the end.
        return value.tokens if isinstance(value, DecoderOutput) else value

    joint = program_distribution(program, seed=seed, maximum_runs=MAXIMUM_RUNS)
    check_tokens(subject, joint, case.vocab_size)
    missing = sum(joint.crashes.values())
    return ExactEvidence(
        subject,
        case,
        joint,
        Comparison.of_runs(joint.probabilities, case.expected(), missing),
        tolerance_of(subject, float64=float64),
        findings=calls.remarks(joint),
    )


def _models(subject: Subject, case: RunCase) -> tuple[Any, Any, bool]:
    """Models of the class the subject takes, and whether they compute in float64."""
    if "language_model" in subject.capabilities.models:
        return *case.tables, True
    from specverify.models.glass_box import GlassBoxModel

    target, draft = (GlassBoxModel.from_table(table) for table in case.tables)
    return target, draft, False
