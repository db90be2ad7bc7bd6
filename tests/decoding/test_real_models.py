"""The loop on the trained pair: real weights, real caches, rows of different length."""

import pytest
import torch

from specverify.decoding.speculative import SpeculativeDecoder
from specverify.drafting.draft_model import DraftModel
from specverify.drafting.early_exit import EarlyExitDrafter
from specverify.drafting.prompt_lookup import PromptLookup
from specverify.drafting.schedule import Fixed
from specverify.models.pairs import load_pair
from specverify.models.transformers_model import TransformersModel
from specverify.settings import SamplingSettings
from specverify.verification import BLOCK, GREEDY, MATCH, TOKEN

LENGTH = 40


@pytest.fixture(scope="module")
def models():
    target, draft = load_pair("trained").open("transformers")
    return TransformersModel(target), TransformersModel(draft)


@pytest.fixture(scope="module")
def prompts():
    return load_pair("trained").prompts


@pytest.fixture(params=["model", "early exit", "lookup"])
def drafter(request, models):
    target, draft = models
    return {
        "model": lambda: DraftModel(draft),
        "early exit": lambda: EarlyExitDrafter(target, 2),
        "lookup": lambda: PromptLookup(),
    }[request.param]()


@pytest.mark.parametrize("rule", [GREEDY, TOKEN, BLOCK, MATCH], ids=lambda rule: rule.name)
def test_greedy_runs_are_those_of_transformers(models, prompts, batch, seeded, drafter, rule):
    target, _ = models
    settings = SamplingSettings(temperature=0.0, max_new_tokens=LENGTH, repetition_penalty=1.1)
    decoder = SpeculativeDecoder(target, drafter, rule, Fixed(4))
    output = decoder.generate(*batch(*prompts), settings=settings, generator=seeded())
    assert output.counters is not None
    assert output.counters.target_passes < LENGTH
    for row, prompt in enumerate(prompts):
        ids = torch.tensor([prompt])
        expected = target.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=LENGTH,
            repetition_penalty=1.1,
            eos_token_id=None,
            pad_token_id=target.vocab_size,
        )
        assert output.tokens[row].tolist() == expected[0, len(prompt) :].tolist()


def test_caches_equal_a_fresh_prefill_layer_by_layer(models, prompts, batch, seeded, drafter):
    """The master invariant of algorithms.md section 4, after rounds that accepted raggedly."""
    target, _ = models
    settings = SamplingSettings(max_new_tokens=LENGTH, stop_token_ids=(0,))
    decoder = SpeculativeDecoder(target, drafter, TOKEN, Fixed(4))
    run = decoder.start(*batch(*prompts * 2))
    decoder.advance(run, settings=settings, generator=seeded(3))
    histories = run.histories
    assert len(set(histories.lengths.tolist())) > 2
    for row, length in enumerate(histories.lengths.tolist()):
        alone = target.start(histories.tokens[row : row + 1, :length])
        for held, fresh in zip(run.target.cache.layers, alone.cache.layers, strict=True):
            for name in ("keys", "values"):
                kept = getattr(held, name)[row][:, run.target.live[row]]
                torch.testing.assert_close(kept, getattr(fresh, name)[0], atol=2e-5, rtol=2e-5)
