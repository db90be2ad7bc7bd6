"""Our own loop, along every path of its draft's and its rule's draws."""

import pytest
import torch

from specverify.exact.joint import total_variation
from specverify.exact.programs import SEPARATOR
from specverify.models.glass_box import GlassBoxModel
from specverify.settings import SamplingSettings
from specverify.subjects.reference import BLOCK, MATCH, TOKEN

TWO = {"top_k": 2}
"""Two tokens at every position: few paths."""


def settings(length=3, **fields):
    return SamplingSettings(max_new_tokens=length, **fields)


@pytest.mark.parametrize(
    ("subject", "contract"),
    [
        pytest.param(TOKEN, settings(2), id="token-two"),
        pytest.param(BLOCK, settings(2), id="block-two"),
        pytest.param(MATCH, settings(2), id="match-two"),
        pytest.param(TOKEN, settings(temperature=0.7, **TWO), id="token-cool"),
        pytest.param(BLOCK, settings(temperature=0.7, **TWO), id="block-cool"),
        pytest.param(BLOCK, settings(stop_token_ids=(1,), **TWO), id="block-stop"),
        pytest.param(MATCH, settings(stop_token_ids=(1,), **TWO), id="match-stop"),
        pytest.param(TOKEN, settings(stop_token_ids=(1,), **TWO), id="token-stop"),
        pytest.param(
            TOKEN, settings(stop_sequences=((1, 1), (2, 0)), **TWO), id="token-stop-sequences"
        ),
        pytest.param(TOKEN, settings(repetition_penalty=1.7, **TWO), id="token-penalty"),
        pytest.param(
            TOKEN, settings(2, xtc_probability=0.5, xtc_threshold=0.25, **TWO), id="token-xtc"
        ),
        pytest.param(TOKEN, settings(), marks=pytest.mark.slow, id="token-three"),
        pytest.param(BLOCK, settings(), marks=pytest.mark.slow, id="block-three"),
        pytest.param(
            MATCH,
            settings(temperature=0.7, **TWO),
            marks=pytest.mark.slow,
            id="match-cool",
        ),
        pytest.param(TOKEN, settings(4, **TWO), marks=pytest.mark.slow, id="token-four"),
    ],
)
def test_the_loop_emits_what_sampling_token_by_token_does(
    subject, contract, tables, follow, stopped
):
    joint = follow(subject, *tables, contract)
    assert total_variation(joint.probabilities, stopped(tables[0], contract)) < 1e-12
    assert not joint.findings
    assert not joint.crashes


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_the_loop_on_models_of_transformers(dtype, tolerance, tables, follow, stopped):
    pair = [GlassBoxModel.from_table(table, dtype=dtype) for table in tables]
    contract = settings(stop_token_ids=(1,), **TWO)
    joint = follow(TOKEN, *pair, contract)
    distance = total_variation(joint.probabilities, stopped(tables[0], contract))
    assert distance < tolerance
    if dtype == torch.float32:
        assert distance > 1e-12  # the control: logits that were rounded are seen to be


@pytest.mark.parametrize("subject", [TOKEN, BLOCK])
def test_rows_of_a_padded_batch_are_independent(subject, tables, follow, stopped):
    prompts = ((0, 1), (2,))
    contract = settings(2, **TWO)
    joint = follow(subject, *tables, contract, prompts=prompts)
    first, second = (stopped(tables[0], contract, prompt) for prompt in prompts)
    product = {
        (*one, SEPARATOR, *other): mass * weight
        for one, mass in first.items()
        for other, weight in second.items()
    }
    assert total_variation(joint.probabilities, product) < 1e-12


def test_other_settings_are_another_distribution(tables, follow, stopped):
    """The control: what the comparisons above would see."""
    cool = follow(TOKEN, *tables, settings(temperature=0.7, **TWO))
    warm = stopped(tables[0], settings(**TWO))
    assert total_variation(cool.probabilities, warm) > 0.05
    other = stopped(tables[1], settings(temperature=0.7, **TWO))
    assert total_variation(cool.probabilities, other) > 0.05
