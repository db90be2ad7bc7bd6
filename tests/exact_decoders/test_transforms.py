"""A transform and a rule together: the target's rows are transformed inside the subject."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Generator, Tensor
from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from specverify.certification.transform_case import PARAMETERS
from specverify.exact import Round, RoundComparison, compare_round, joint_distribution
from specverify.exact.transformed import Processor, transformed
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.transforms import (
    REFERENCE,
    XTC,
    AllowedTokens,
    ForcedTokens,
    MinLength,
    Pipeline,
    RepetitionPenalty,
    TopK,
)
from specverify.verification import TOKEN
from tests.exact_decoders.laws import Row, Tokens, token_round

PROMPT = (0, 1)
V, K = 5, 2
TARGET = TableModel.random(V, 2, seed=3, scale=1.5)
DRAFT = TARGET.near(4, 0.8)

Build = Callable[[Generator | None], Processor]
Rows = Callable[[Tensor, Tensor, Pipeline], Tensor]
"""Raw logits [R, K+1, V], histories [R, T+K] and the pipeline to the rows a rule is handed."""

REFERENCES: dict[str, Build] = (
    {
        f"{name}-{list(parameters.values())}": lambda _, name=name, parameters=parameters: (
            REFERENCE[name](**parameters)
        )
        for name, cases in PARAMETERS.items()
        if name != "allowed_tokens"  # the rules there name a token more than there are
        for parameters in cases
    }
    | {
        "min_length": lambda _: MinLength(2, [2], len(PROMPT)),
        "allowed_tokens": lambda _: AllowedTokens(
            lambda emitted: [3, 4] if emitted[-1:] == (2,) else [0, 2, 4], len(PROMPT)
        ),
        "forced_tokens": lambda _: ForcedTokens({1: 3}, len(PROMPT)),
    }
)

PROCESSORS: dict[str, Build] = {
    type(processor).__name__: lambda _, processor=processor: processor
    for processor in (
        TemperatureLogitsWarper(0.7),
        TopKLogitsWarper(3),
        TopPLogitsWarper(0.6),
        MinPLogitsWarper(0.2),
        TypicalLogitsWarper(0.6),
        EpsilonLogitsWarper(0.15),
        EtaLogitsWarper(0.1),
        RepetitionPenaltyLogitsProcessor(1.7),
        NoRepeatNGramLogitsProcessor(2),
        NoBadWordsLogitsProcessor([[1], [2, 3]]),
        SequenceBiasLogitsProcessor([[[0], 1.5], [[1, 2], -2.0]]),
        MinNewTokensLengthLogitsProcessor(len(PROMPT), 2, 2),
    )
}


def logits(model: TableModel) -> Callable[[np.ndarray], np.ndarray]:
    def of(prefixes: np.ndarray) -> np.ndarray:
        contexts = [model.context_after((*PROMPT, *prefix)) for prefix in prefixes.tolist()]
        return model.logits[contexts].numpy()

    return of


def own_history(raw: Tensor, histories: Tensor, pipeline: Pipeline) -> Tensor:
    """Each position with the prompt and the draft tokens before it."""
    start = torch.full((len(raw),), len(PROMPT))
    return pipeline.probabilities(raw, histories, start, start)


def frozen(raw: Tensor, histories: Tensor, pipeline: Pipeline) -> Tensor:
    """T7: every position with the prompt alone."""
    start = torch.full((len(raw),), len(PROMPT))
    rows = [pipeline.probabilities(z[:, None], histories, start, start) for z in raw.unbind(1)]
    return torch.cat(rows, 1)


def bonus_untransformed(raw: Tensor, histories: Tensor, pipeline: Pipeline) -> Tensor:
    """R18: the row after the whole block as the model gives it."""
    rows = own_history(raw, histories, pipeline)
    return torch.cat([rows[:, :-1], raw[:, -1:].softmax(-1)], 1)


def followed(
    build: Build, rows: Rows = own_history, width: int = K
) -> tuple[RoundComparison, Round]:
    """One round whose drafts are transformed and whose target rows the subject transforms."""
    target = transformed(logits(TARGET), build(None), PROMPT)
    draft = transformed(logits(DRAFT), build(None), PROMPT)
    round = Round(transformed(logits(TARGET), lambda _, z: z, PROMPT), draft, V, width)

    def subject(tokens: Tensor, q: Tensor, _: Tensor, generator: Generator) -> Tensor:
        prompts = torch.tensor(PROMPT).expand(len(tokens), -1)
        histories = torch.cat([prompts, tokens], 1)
        raw = TARGET.start(prompts).extend(histories[:, len(PROMPT) - 1 :])
        settings = SamplingSettings(max_new_tokens=K + 2)
        pipeline = Pipeline.from_settings(settings, V, generator, extra=[build(generator)])
        return TOKEN(tokens, q, rows(raw, histories, pipeline), generator).tokens

    joint = joint_distribution(subject, round)
    assert not joint.crashes
    assert not joint.findings
    return compare_round(round, joint.probabilities, target=target), round


@pytest.mark.parametrize("build", REFERENCES.values(), ids=REFERENCES)
def test_reference_transforms_and_token_verification_are_exact_together(build):
    found, _ = followed(build)
    assert found.total_variation < 1e-12
    assert not found.outside_support


@pytest.mark.parametrize("build", PROCESSORS.values(), ids=PROCESSORS)
def test_processors_of_transformers_and_token_verification_are_exact_together(build):
    found, _ = followed(build)
    assert found.total_variation < 1e-12
    assert not found.outside_support


@pytest.mark.parametrize("width", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_random_transform_tosses_coins_of_its_own_at_every_position(width):
    found, _ = followed(lambda generator: XTC(0.3, 0.2, generator), width=width)
    assert found.total_variation < 1e-12
    assert not found.outside_support


def test_every_reference_transform_is_here():
    assert {name.split("-")[0] for name in REFERENCES} | {"xtc"} == set(REFERENCE)


def penalised(model: TableModel, history: Tokens | None = None) -> Row:
    """Repetition penalty 1.7 by its definition; a fixed history, if one is given."""

    def row(prefix: Tokens) -> np.ndarray:
        z = model.logits[model.context_after((*PROMPT, *prefix))].numpy().copy()
        for token in set((*PROMPT, *prefix) if history is None else history):
            z[token] = z[token] / 1.7 if z[token] > 0 else z[token] * 1.7
        return np.exp(z) / np.exp(z).sum()

    return row


def test_a_frozen_history_deviates_by_what_its_law_says():
    build: Build = lambda _: RepetitionPenalty(1.7)  # noqa: E731
    found, round = followed(build, frozen)
    q = penalised(DRAFT)
    law = token_round(penalised(TARGET, PROMPT), q, q, (), K)
    target = transformed(logits(TARGET), build(None), PROMPT)
    expected = compare_round(round, law, target=target).total_variation
    assert expected > 0.02
    assert found.total_variation == pytest.approx(expected, abs=1e-9)
    assert found.first_token_total_variation < 1e-12


def test_a_frozen_history_is_right_where_no_transform_looks_at_it():
    assert followed(lambda _: TopK(3), frozen)[0].total_variation < 1e-12


def test_an_untransformed_bonus_row_deviates_by_what_full_acceptance_lets_through():
    build: Build = lambda _: RepetitionPenalty(1.7)  # noqa: E731
    found, _ = followed(build, bonus_untransformed)
    p, q, bare = penalised(TARGET), penalised(DRAFT), penalised(TARGET, ())
    # Only a block that is accepted whole meets that row: with probability min(p, q) a token.
    expected = sum(
        min(p(())[x], q(())[x])
        * min(p((x,))[y], q((x,))[y])
        * np.abs(p((x, y)) - bare((x, y))).sum()
        / 2
        for x in range(V)
        for y in range(V)
    )
    assert expected > 0.02
    assert found.total_variation == pytest.approx(expected, abs=1e-9)


def test_an_untransformed_bonus_row_leaves_the_support_of_a_truncation():
    found, _ = followed(lambda _: TopK(2), bonus_untransformed)
    assert found.outside_support
    assert all(len(tokens) == K + 1 for tokens in found.outside_support)


def test_one_coin_of_a_random_transform_for_all_positions_is_wrong_in_the_joint_alone():
    """T11."""
    coins: list[Generator | None] = []

    def build(generator: Generator | None) -> Processor:
        coins.append(generator)
        return XTC(0.3, 0.2, generator)

    def one_coin(raw: Tensor, histories: Tensor, pipeline: Pipeline) -> Tensor:
        flat = raw.reshape(-1, V)
        (_, kept), (_, cut) = XTC(0.3, 0.2).outcomes(flat.new_empty(len(flat), 0), flat)
        coin = torch.rand(len(raw), 1, 1, dtype=torch.float64, generator=coins[-1])
        chosen = torch.where(coin < 0.3, cut.reshape(raw.shape), kept.reshape(raw.shape))
        return chosen.softmax(-1)

    found, _ = followed(build, one_coin)
    assert found.first_token_total_variation < 1e-12
    assert found.total_variation > 0.01
