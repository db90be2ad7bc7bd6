"""Candidate positions that no run can reach, and what is asked there."""

import math

import pytest
import torch
from torch import Tensor

from specverify.errors import SettingsError
from specverify.settings import SamplingSettings
from specverify.transforms import (
    Pipeline,
    TokenAutomaton,
)

INF = math.inf


def settings(**fields) -> SamplingSettings:
    return SamplingSettings(**fields)


def one(pipeline, logits, history, prompt_length=0, method="block"):
    """The row that a pipeline makes of one position's logits after one history."""
    tokens = torch.tensor([history], dtype=torch.long).reshape(1, -1)
    return getattr(pipeline, method)(
        torch.tensor([[logits]], dtype=torch.float64),
        tokens,
        torch.tensor([len(history)]),
        torch.tensor([prompt_length]),
    )[0, 0]


GRAMMAR = TokenAutomaton("a", {("a", 0): "b", ("b", 1): "c", ("c", 2): "end"})


def possible(logits: Tensor) -> list[int]:
    return (logits > -INF).nonzero().squeeze(-1).tolist()


def masks(pipeline, candidates, n):
    """Which tokens are possible at n positions after the prompt [3]."""
    tokens = torch.tensor([[3, *candidates]])
    result = pipeline.block(torch.zeros(1, n, 4), tokens, torch.tensor([1]), torch.tensor([1]))
    return [possible(row) for row in result[0]]


def test_a_grammar_advances_through_the_candidates():
    pipeline = Pipeline.from_settings(settings(allowed_tokens=GRAMMAR), 4)
    assert masks(pipeline, [0, 1], 3) == [[0], [1], [2]]


def test_no_constraint_is_asked_after_an_impossible_token():
    asked = []

    def allowed(emitted):
        asked.append(emitted)
        return GRAMMAR(emitted)

    pipeline = Pipeline.from_settings(settings(allowed_tokens=allowed), 4)
    assert masks(pipeline, [0, 0, 1], 4) == [[0], [1], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert asked == [(), (0,)]


def test_a_token_that_greedy_or_top_k_rules_out_is_impossible_too():
    logits = torch.tensor([[[3.0, 2.0, 1.0, 0.0]] * 2])
    tokens, one_row = torch.tensor([[3, 2]]), torch.tensor([1])
    for fields in ({"temperature": 0.0}, {"top_k": 2}):
        given = settings(allowed_tokens=lambda e: () if e else (0, 1, 2, 3), **fields)
        result = Pipeline.from_settings(given, 4).block(logits, tokens, one_row, one_row)
        assert result[0, 1].isneginf().sum() == (3 if "temperature" in fields else 2)


@pytest.mark.parametrize(
    ("stopping", "candidates"),
    [
        ({"stop_token_ids": (2,)}, [0, 1, 2]),
        ({"stop_sequences": ((1, 2),)}, [0, 1, 2]),
        ({"max_new_tokens": 3}, [0, 1, 2]),
    ],
)
def test_nothing_is_asked_after_the_run_has_ended(stopping, candidates):
    pipeline = Pipeline.from_settings(settings(allowed_tokens=GRAMMAR, **stopping), 4)
    assert masks(pipeline, candidates, 4)[:3] == [[0], [1], [2]]
    # A drafter may also go on after its own stop token, one position a call.
    assert torch.equal(one(pipeline, [0.0] * 4, [3, *candidates], 1), torch.zeros(4).double())


@pytest.mark.parametrize(
    "stopping",
    [
        {},
        {"stop_token_ids": (3,)},
        {"stop_sequences": ((3, 0, 1, 2), (1, 3))},
        {"stop_sequences": ((1, 2),), "min_new_tokens": 3, "stop_token_ids": (3,)},
        {"max_new_tokens": 4},
    ],
)
def test_a_reachable_position_without_a_token_is_refused_with_its_history(stopping):
    pipeline = Pipeline.from_settings(settings(allowed_tokens=GRAMMAR, **stopping), 4)
    with pytest.raises(SettingsError, match=r"allowed_tokens.*\[3, 0, 1, 2\]"):
        masks(pipeline, [0, 1, 2], 4)


def test_a_forbidding_bias_matters_only_where_the_history_is_possible():
    pipeline = Pipeline.from_settings(settings(logit_bias={2: -INF}), 3)
    logits = torch.tensor([[[0.0, 0.0, 0.0], [-INF, -INF, 0.0]]])
    arguments = torch.tensor([1]), torch.tensor([1])
    assert pipeline.block(logits, torch.tensor([[0, 2]]), *arguments)[0, 1].tolist() == [
        -INF,
        -INF,
        0.0,
    ]
    with pytest.raises(SettingsError, match="logit_bias"):
        pipeline.block(logits, torch.tensor([[0, 1]]), *arguments)


def test_penalties_still_apply_out_of_reach():
    given = settings(bad_words=((1,),), presence_penalty=1.0)
    result = Pipeline.from_settings(given, 3).block(
        torch.zeros(1, 2, 3), torch.tensor([[0, 1]]), torch.tensor([1]), torch.tensor([1])
    )
    assert result[0].tolist() == [[0.0, -INF, 0.0], [0.0, -1.0, 0.0]]


# --- probabilities ---------------------------------------------------------------------------
