"""Whole decoders on tables of three or four tokens, followed along every path."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from specverify.decoding.scoring import TeacherForced
from specverify.exact.distribution import JointDistribution
from specverify.exact.prefix_tree import PrefixTree
from specverify.exact.programs import program_distribution
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.stopping import run_lengths
from specverify.subjects.protocols import Subject

PROMPT = (0, 1)

Follow = Callable[..., JointDistribution]
Stopped = Callable[..., dict[tuple[int, ...], float]]


@pytest.fixture(scope="session")
def tables() -> tuple[TableModel, TableModel]:
    """Target and draft over three tokens; every context of two tokens has a row of its own."""
    target = TableModel.random(3, 2, seed=5)
    return target, target.near(7, 0.8)


@pytest.fixture(scope="session")
def follow() -> Follow:
    """The exact distribution of what a decoder emits."""

    def run(
        subject: Subject,
        target: Any,
        draft: Any,
        settings: SamplingSettings,
        num_draft_tokens: int = 2,
        prompts: tuple[tuple[int, ...], ...] = (PROMPT,),
    ) -> JointDistribution:
        ids, mask = left_padded(prompts)

        def program(generator: Generator) -> Tensor:
            with torch.no_grad():
                arguments = (ids, mask, settings, num_draft_tokens, generator)
                return subject.call(target, draft, *arguments).tokens

        return program_distribution(program)

    return run


@pytest.fixture(scope="session")
def stopped() -> Stopped:
    """The distribution of autoregressive runs, from fresh passes over every prefix."""

    def distribution(
        target: TableModel, settings: SamplingSettings, prompt: tuple[int, ...] = PROMPT
    ) -> dict[tuple[int, ...], float]:
        def ends(prefixes: np.ndarray) -> np.ndarray:
            required, _ = run_lengths(torch.from_numpy(np.ascontiguousarray(prefixes)), settings)
            return required.numpy() == prefixes.shape[1]

        conditional = TeacherForced(target, prompt, settings)
        return PrefixTree.grow(
            conditional, target.vocab_size, settings.max_new_tokens, ends
        ).sequences()

    return distribution


def left_padded(prompts: tuple[tuple[int, ...], ...]) -> tuple[Tensor, Tensor]:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, mask
