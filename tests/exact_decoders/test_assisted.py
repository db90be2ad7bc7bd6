"""transformers' `generate(assistant_model=...)` on glass-box models, along every path."""

import pytest
import torch

from specverify.exact.joint import total_variation
from specverify.exact.programs import SEPARATOR
from specverify.models.glass_box import GlassBoxModel
from specverify.settings import SamplingSettings
from specverify.subjects.transformers_assisted import ASSISTED

TWO = {"top_k": 2}
TOLERANCE = 1e-6
"""Whatever the dtype of the models: transformers samples from logits it rounds to float32."""


def settings(length=3, **fields):
    return SamplingSettings(max_new_tokens=length, **fields)


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def pair(request, tables):
    return [GlassBoxModel.from_table(table, dtype=request.param) for table in tables]


@pytest.mark.parametrize(
    "contract",
    [
        pytest.param(settings(2), id="two"),
        pytest.param(settings(**TWO), id="top-k"),
        pytest.param(settings(temperature=0.7, **TWO), id="cool"),
        pytest.param(settings(repetition_penalty=1.7, **TWO), id="penalty"),
        pytest.param(settings(stop_token_ids=(1,), **TWO), id="stop"),
        pytest.param(settings(stop_token_ids=(2,)), marks=pytest.mark.slow, id="rare-stop"),
    ],
)
def test_assisted_generation_is_exact(contract, pair, tables, follow, stopped):
    joint = follow(ASSISTED, *pair, contract)
    assert total_variation(joint.probabilities, stopped(tables[0], contract)) < TOLERANCE
    assert not joint.findings
    assert not joint.crashes


@pytest.mark.slow
@pytest.mark.parametrize("contract", [settings(), settings(4, **TWO)], ids=["three", "four"])
def test_assisted_generation_is_exact_over_longer_runs(contract, tables, follow, stopped):
    pair = [GlassBoxModel.from_table(table) for table in tables]
    joint = follow(ASSISTED, *pair, contract)
    assert total_variation(joint.probabilities, stopped(tables[0], contract)) < TOLERANCE


def test_rows_of_a_padded_batch_are_independent(tables, follow, stopped):
    pair = [GlassBoxModel.from_table(table) for table in tables]
    prompts = ((0, 1), (2,))
    contract = settings(2, **TWO)
    joint = follow(ASSISTED, *pair, contract, prompts=prompts)
    first, second = (stopped(tables[0], contract, prompt) for prompt in prompts)
    product = {
        (*one, SEPARATOR, *other): mass * weight
        for one, mass in first.items()
        for other, weight in second.items()
    }
    assert total_variation(joint.probabilities, product) < TOLERANCE


def test_the_draft_is_not_mistaken_for_the_target(tables, follow, stopped):
    """The control: models the other way round have another distribution."""
    target, draft = (GlassBoxModel.from_table(table) for table in tables)
    joint = follow(ASSISTED, draft, target, settings(**TWO))
    assert total_variation(joint.probabilities, stopped(tables[0], settings(**TWO))) > 0.05
    assert total_variation(joint.probabilities, stopped(tables[1], settings(**TWO))) < TOLERANCE
