"""specverify's own decoder as a subject."""

from typing import Any

import pytest
import torch

from specverify.errors import SubjectError
from specverify.models.glass_box import GlassBoxModel
from specverify.models.table import TableModel
from specverify.settings import SamplingSettings
from specverify.subjects.calling import call_decoder
from specverify.subjects.protocols import Subject
from specverify.subjects.reference import BLOCK, GREEDY, MATCH, TOKEN

torch.set_num_threads(1)
V = 4
PROMPTS = torch.tensor([[0, 0, 1], [3, 2, 1]])
MASK = torch.tensor([[0, 1, 1], [1, 1, 1]])


def generate(subject: Subject, models: tuple[Any, Any], **fields: Any) -> Any:
    settings = SamplingSettings(**{"max_new_tokens": 7, **fields})
    generator = torch.Generator().manual_seed(0)
    return call_decoder(subject, *models, PROMPTS, MASK, settings, 3, generator)


def tables() -> tuple[TableModel, TableModel]:
    return TableModel.random(V, 2, seed=1), TableModel.random(V, 2, seed=2)


@pytest.mark.parametrize("subject", [TOKEN, BLOCK, MATCH])
@pytest.mark.parametrize("transformers", [False, True])
def test_it_decodes_both_kinds_of_models(subject: Subject, transformers: bool) -> None:
    models: tuple[Any, Any] = tables()
    if transformers:
        models = tuple(GlassBoxModel.from_table(table) for table in models)
    call = generate(subject, models)
    assert call.findings == ()
    assert call.value.tokens.shape == (2, 7)
    assert call.value.drafted.max() == 3
    assert call.value.counters.rounds > 0


def test_each_declares_its_algorithm() -> None:
    declared = [subject.capabilities.algorithm for subject in (TOKEN, BLOCK, MATCH, GREEDY)]
    assert declared == ["token", "block", "match", "greedy"]


def test_greedy_follows_the_target_and_refuses_to_sample() -> None:
    target, draft = tables()
    tokens = generate(GREEDY, (target, draft), temperature=0.0).value.tokens
    history = PROMPTS[1].tolist()
    for token in tokens[1].tolist():
        logits = target.start(torch.tensor([history])).extend(torch.tensor([history[-1:]]))
        assert token == int(logits[0, 0].argmax())
        history.append(token)
    with pytest.raises(SubjectError, match=r"temperature=0\.7; set temperature to 0"):
        generate(GREEDY, (target, draft), temperature=0.7)
