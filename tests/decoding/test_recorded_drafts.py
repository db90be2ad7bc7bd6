"""What the loop records of its drafts is what its drafter offered."""

import pytest
import torch
from torch import Generator

from specverify.decoding.speculative import SpeculativeDecoder
from specverify.drafting.draft_model import DraftModel
from specverify.drafting.prompt_lookup import PromptLookup
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings

TARGET = TableModel.random(4, 2, seed=5)
DRAFT = TARGET.near(7, 0.8)
PROMPTS = torch.tensor([[0, 1, 0, 1], [2, 3, 0, 2]]).repeat(20, 1)


def run(drafter, *, record=True, **settings):
    decoder = SpeculativeDecoder(TARGET, drafter, record_probs=record)
    return decoder.generate(
        PROMPTS,
        settings=SamplingSettings(max_new_tokens=7, **settings),
        generator=Generator().manual_seed(3),
    )


@pytest.mark.parametrize(
    "drafter",
    [DraftModel(DRAFT), DraftModel(DRAFT, confidence_threshold=0.4), PromptLookup()],
    ids=["draft model", "confident", "prompt lookup"],
)
@pytest.mark.parametrize("settings", [{}, {"stop_token_ids": (2,)}, {"temperature": 0.0}], ids=str)
def test_offers_are_those_counted_and_accepted_ones_those_emitted(drafter, settings):
    output = run(drafter, **settings)
    offered = output.draft_tokens >= 0
    assert torch.equal(offered.sum(2), output.drafted.clamp(min=0))
    sums = output.draft_probs.sum(3)
    assert torch.allclose(sums, offered.double())
    own = output.draft_probs.gather(3, output.draft_tokens.clamp(min=0)[..., None]).squeeze(3)
    assert bool((own[offered] > 0).all())
    for row, rounds in enumerate(output.accepted.tolist()):
        emitted, start = [t for t in output.tokens[row].tolist() if t >= 0], 0
        for round, count in enumerate(rounds):
            left = max(0, len(emitted) - start)
            kept = output.draft_tokens[row, round, : max(count, 0)].tolist()[:left]
            assert kept == emitted[start : start + len(kept)]
            start += count + 1


def test_q_is_the_drafts_own_at_its_place():
    output = run(DraftModel(DRAFT), temperature=0.7)
    q = (DRAFT.logits / 0.7).softmax(1)
    for row in range(len(PROMPTS)):
        text = PROMPTS[row].tolist()
        for place, token in enumerate(output.draft_tokens[row, 0].tolist()):
            expected = q[DRAFT.context_after(text)]
            assert torch.allclose(output.draft_probs[row, 0, place], expected)
            text.append(token)


def test_copied_tokens_have_all_of_the_mass():
    output = run(PromptLookup())
    offered = output.draft_tokens >= 0
    assert bool(offered.any())
    assert set(output.draft_probs.unique().tolist()) == {0.0, 1.0}


def test_nothing_is_recorded_unless_asked_for():
    output = run(DraftModel(DRAFT), record=False)
    assert output.draft_tokens is None
    assert output.draft_probs is None
    alone = run(None)
    assert alone.draft_tokens.shape[2] == 0
