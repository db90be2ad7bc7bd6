"""transformers' assisted generation as a subject: faithful settings, nothing left behind."""

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specverify.decoding.output import DecoderOutput
from specverify.errors import SettingsError, UsageError
from specverify.models.glass_box import GlassBoxModel
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.subjects.calling import call_decoder
from specverify.subjects.transformers_assisted import ASSISTED, HONOURED
from specverify.transforms.pipeline import Pipeline

torch.set_num_threads(1)
V = 4
PROMPT = torch.tensor([[0, 1]])


@pytest.fixture(scope="module")
def tables() -> tuple[TableModel, TableModel]:
    return TableModel.random(V, 2, seed=1), TableModel.random(V, 2, seed=2)


@pytest.fixture(scope="module")
def models(tables: tuple[TableModel, TableModel]) -> tuple[Any, Any]:
    target, draft = tables
    return GlassBoxModel.from_table(target), GlassBoxModel.from_table(draft)


def generate(models: tuple[Any, Any], seed: int = 0, k: int = 2, **fields: Any) -> DecoderOutput:
    settings = SamplingSettings(**{"max_new_tokens": 3, **fields})
    generator = torch.Generator().manual_seed(seed)
    return ASSISTED.call(*models, PROMPT, torch.ones_like(PROMPT), settings, k, generator)


def expected(table: TableModel, settings: SamplingSettings) -> dict[tuple[int, ...], float]:
    """The joint distribution of the emitted tokens, by brute force."""
    law = {(): 1.0}
    for _ in range(settings.max_new_tokens):
        longer: dict[tuple[int, ...], float] = {}
        for tokens, probability in law.items():
            if tokens and tokens[-1] in settings.stop_token_ids:
                longer[tokens] = probability
                continue
            history = torch.tensor([[*PROMPT[0].tolist(), *tokens]])
            pipeline = Pipeline.from_settings(settings, V, torch.Generator())
            logits = table.start(history).extend(history[:, -1:])
            length = torch.tensor([history.shape[1]])
            scratch = torch.nn.functional.pad(history, (0, 1))
            probs = pipeline.probabilities(logits, scratch, length, torch.tensor([2]))[0, 0]
            for token, p in enumerate(probs.tolist()):
                if p > 0:
                    longer[(*tokens, token)] = probability * p
        law = longer
    return law


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.7, "top_k": 3, "min_p": 0.05},
        {"repetition_penalty": 1.5, "stop_token_ids": (3,), "min_new_tokens": 1},
        {
            "logit_bias": {0: 1.5, 2: -1.0},
            "bad_words": ((1,), (2, 0), (3,)),
            "stop_token_ids": (3,),
        },
        {"allowed_tokens": lambda emitted: (0, 1, 2) if len(emitted) % 2 else (1, 3)},
    ],
    ids=["plain", "filtered", "history and stop", "biased", "allowed"],
)
def test_settings_mean_the_same_to_transformers(
    tables: tuple[TableModel, TableModel], models: tuple[Any, Any], fields: dict[str, Any]
) -> None:
    """Chi-squared with 400 runs; the 1e-6 quantile of df = d is below d + 5 sqrt(2 d) + 27."""
    settings = SamplingSettings(max_new_tokens=2, **fields)
    law = expected(tables[0], settings)
    runs = 400
    generator = torch.Generator().manual_seed(5)
    seen: Counter[tuple[int, ...]] = Counter()
    prompts = PROMPT.expand(runs, 2)
    output = ASSISTED.call(*models, prompts, torch.ones_like(prompts), settings, 2, generator)
    for row in output.tokens.tolist():
        seen[tuple(token for token in row if token >= 0)] += 1
    assert set(seen) <= set(law)
    statistic = sum((seen[run] - runs * p) ** 2 / (runs * p) for run, p in law.items())
    df = len(law) - 1
    limit = df + 5 * (2 * df) ** 0.5 + 27
    assert statistic < limit
    if fields:
        plain = expected(tables[0], SamplingSettings(max_new_tokens=2))
        ignored = sum((plain.get(run, 0.0) - p) ** 2 / p for run, p in law.items()) * runs
        assert ignored > limit or set(plain) - set(law), "ignored settings would go unseen"


def test_generation_configs_and_global_generators_are_left_alone(models: tuple[Any, Any]) -> None:
    target, draft = models
    target.generation_config.top_k = 1
    target.generation_config.eos_token_id = 0
    configs = [model.generation_config for model in models]
    before = [config.to_dict() for config in configs]
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    try:
        seen = {tuple(generate(models, seed=seed).tokens[0].tolist()) for seed in range(12)}
        assert len(seen) > 1, "the checkpoint's own top_k=1 must not apply"
        assert all(len(tokens) == 3 for tokens in seen), "nor its end-of-text id"
        assert [model.generation_config for model in models] == configs
        assert [config.to_dict() for config in configs] == before
    finally:
        target.generation_config.top_k = None
        target.generation_config.eos_token_id = None
    assert draft.generation_config is configs[1]
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])
    assert states[2] == random.getstate()


def test_generation_configs_come_back_after_a_failure(models: tuple[Any, Any]) -> None:
    configs = [model.generation_config for model in models]

    def refuse(_: tuple[int, ...]) -> tuple[int, ...]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        generate(models, allowed_tokens=refuse)
    assert [model.generation_config for model in models] == configs


def test_the_draft_drafts_as_many_tokens_as_asked(
    models: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its default of 20 tokens and its stop at confidence 0.4 must both be off."""
    target, draft = models
    blocks = []
    plain = type(draft).generate

    def spy(self: Any, *args: Any, **kwargs: Any) -> Any:
        blocks.append(kwargs["max_new_tokens"])
        output = plain(self, *args, **kwargs)
        assert output.sequences.shape[1] - kwargs["input_ids"].shape[1] == blocks[-1]
        return output

    monkeypatch.setattr(draft, "generate", spy.__get__(draft))
    generate((target, draft), k=3, max_new_tokens=12)
    assert blocks[0] == 3
    assert max(blocks) == 3


def test_same_seed_same_tokens_and_another_seed_others(models: tuple[Any, Any]) -> None:
    first, again, other = (generate(models, seed=s, max_new_tokens=12).tokens for s in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_model_that_drafts_for_itself(models: tuple[Any, Any]) -> None:
    target, _ = models
    config = target.generation_config
    assert generate((target, target)).tokens.shape == (1, 3)
    assert target.generation_config is config


def test_rows_of_different_length_stop_on_their_own(models: tuple[Any, Any]) -> None:
    prompts = torch.tensor([[0, 0, 1], [2, 1, 0], [0, 3, 3]])
    mask = torch.tensor([[0, 1, 1], [1, 1, 1], [0, 0, 1]])
    settings = SamplingSettings(max_new_tokens=6, stop_token_ids=(3,))
    call = call_decoder(
        ASSISTED, *models, prompts, mask, settings, 2, torch.Generator().manual_seed(1)
    )
    for row in call.value.tokens.tolist():
        real = [token for token in row if token >= 0]
        assert 3 not in real[:-1]
        assert len(real) == 6 or real[-1] == 3
    assert call.value.accepted is None
    assert call.findings == ()


def test_greedy_is_the_targets_own_choice() -> None:
    config = LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        models = LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()
    tokens = generate(models, temperature=0.0, top_k=2, max_new_tokens=8).tokens[0].tolist()
    history = PROMPT[0].tolist()
    for token in tokens:
        with torch.no_grad():
            logits = models[0](torch.tensor([history])).logits[0, -1]
        assert token == int(logits.argmax())
        history.append(token)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"stop_sequences": ((1, 2),)}, "stop_sequences"),
        ({"xtc_probability": 0.5}, "xtc_probability"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"forced_tokens": {0: 1}}, "forced_tokens"),
        ({"dialect": "vllm"}, "vllm"),
    ],
)
def test_settings_it_would_ignore_are_refused(
    models: tuple[Any, Any], fields: dict[str, Any], named: str
) -> None:
    assert not set(fields) & HONOURED
    with pytest.raises(SettingsError, match=named):
        generate(models, **fields)


def test_models_of_another_class_are_refused(tables: tuple[TableModel, TableModel]) -> None:
    with pytest.raises(UsageError, match="target is a TableModel"):
        generate(tables)
