"""The exact distribution of one round whose target rows a transform makes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from specverify.certification.exact_calls import MAXIMUM_RUNS, check_tokens
from specverify.certification.exact_evidence import NUMERICAL, Comparison, ExactEvidence
from specverify.certification.steered_rows import keywords, steered_calls
from specverify.certification.transform_case import TransformCase, transform_cases
from specverify.exact.compare_round import compare_round
from specverify.exact.conditional import Conditional
from specverify.exact.round import Round
from specverify.exact.steer import joint_distribution
from specverify.exact.transformed import transformed
from specverify.subjects.calling import build_transform
from specverify.subjects.checks import transformed_logits
from specverify.subjects.protocols import Subject
from specverify.verification.token import TOKEN

VOCAB_SIZE, NUM_DRAFT_TOKENS = 6, 2
PROMPT = (2, 3, 1, 2)
"""Token 2 stands twice, so that n-grams of two and, once 3 is drafted, of three repeat, and counts
differ; three of the tokens are new."""
_SCALE = 1.0
_TARGET_SEED, _DRAFT_SEED = 11, 12


@dataclass(frozen=True)
class TransformedCase:
    """One round of token verification behind a transform."""

    transform: TransformCase

    @property
    def id(self) -> str:
        """That of the sampled case, marked as exact."""
        return f"exact/{self.transform.id}"

    @property
    def num_draft_tokens(self) -> int:
        """K; 1 with coins, since rows whose coins are followed one by one take so much longer."""
        return 1 if self.transform.random else NUM_DRAFT_TOKENS

    @property
    def size(self) -> str:
        """V and K, for a reader."""
        return f"V={VOCAB_SIZE}, K={self.num_draft_tokens}"

    def round(self) -> Round:
        """What the reference makes of the logits of both models."""
        reference = self.transform.build_reference()

        def conditional(seed: int) -> Conditional:
            return transformed(lambda prefixes: logits(prefixes, seed).numpy(), reference, PROMPT)

        target, draft = conditional(_TARGET_SEED), conditional(_DRAFT_SEED)
        return Round(target, draft, VOCAB_SIZE, self.num_draft_tokens)


def transformed_cases(reference: str | None) -> list[TransformedCase]:
    """One for each case of a reference.

    Raises:
        UsageError: no reference is named, or there is none to compare with.
    """
    return [TransformedCase(case) for case in transform_cases(reference)]


def logits(prefixes: NDArray[np.int64] | Tensor, seed: int) -> Tensor:
    """Raw logits after prefixes [N, t]: float32 [N, V], other ones after every prefix."""
    depth = prefixes.shape[1]
    table = np.random.default_rng((seed, depth)).normal(size=(VOCAB_SIZE**depth, VOCAB_SIZE))
    powers = VOCAB_SIZE ** torch.arange(depth - 1, -1, -1)
    rows = torch.from_numpy(table * _SCALE).float()
    return rows[(torch.as_tensor(prefixes) * powers).sum(1)]


def steer_transform(
    subject: Subject, case: TransformedCase, seed: int, time_limit: float
) -> ExactEvidence:
    """Compute what a transform and token verification emit together in one round.

    The transform makes the target's rows where its randomness is steered, so that its own draws are
    followed like those of the rule; it is handed float32. Draft tokens come through the reference.
    One that tosses coins is built in each run, with the run's generator, so that a coin tossed by
    its factory is one of the round.

    Raises:
        CannotSteer: its randomness cannot be followed.
        SubjectError: its factory failed.
    """
    parameters, random = case.transform.parameters, case.transform.random
    named = keywords(subject, parameters, Generator().manual_seed(seed)) if random else parameters
    once = build_transform(subject, time_limit=time_limit, **named)
    calls = steered_calls(subject, time_limit)
    prompt = torch.tensor(PROMPT)

    def rule(tokens: Tensor, q: Tensor, _: Tensor, generator: Generator) -> Tensor:
        transform: Any = once
        if random:
            transform = calls(subject.call, **keywords(subject, parameters, generator))
        rows = []
        for depth in range(case.num_draft_tokens + 1):
            prefixes = tokens[:, :depth]
            histories = torch.cat([prompt.expand(len(tokens), -1), prefixes], 1)
            raw = logits(prefixes, _TARGET_SEED)
            made: Any = calls(transform, histories, raw.clone())
            what = f"output of {subject.name!r}"
            rows.append(transformed_logits(made, raw, what=what).double().softmax(-1))
        return TOKEN(tokens, q, torch.stack(rows, 1), generator).tokens

    round = case.round()
    joint = joint_distribution(rule, round, seed=seed, maximum_runs=MAXIMUM_RUNS)
    check_tokens(subject, joint, VOCAB_SIZE)
    return ExactEvidence(
        subject,
        case,
        joint,
        Comparison.of_round(compare_round(round, joint.probabilities)),
        NUMERICAL,
        findings=calls.remarks(joint),
    )
