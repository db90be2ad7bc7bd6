"""The sliding-window glass box: what it sees, and what a late roll-back does to it."""

import pytest
import torch
from transformers.cache_utils import DynamicCache

from specverify.models.sliding_glass_box import SlidingGlassBoxModel
from specverify.models.table import TableModel
from specverify.models.transformers_model import TransformersModel

TABLE = TableModel.random(5, 2, 3, 1.3)
TEXT = (0, 1, 2, 3, 4, 1, 0)


def right(*tokens):
    return TABLE.logits[TABLE.context_after(tokens)]


@pytest.fixture
def model():
    return SlidingGlassBoxModel.from_table(TABLE, dtype=torch.float64)


def read(model, tokens, cache=None, **arguments):
    return model(torch.tensor([tokens]), past_key_values=cache, **arguments).logits[0]


@pytest.mark.parametrize("pieces", [(7,), (1,) * 7, (3, 4), (5, 2), (2, 1, 4)])
def test_it_reads_the_table_however_the_text_is_fed(model, pieces):
    cache, at = DynamicCache(config=model.config), 0
    for size in pieces:
        logits = read(model, TEXT[at : at + size], cache)
        for step in range(size):
            assert torch.equal(logits[step], right(*TEXT[: at + step + 1]))
        at += size
    keys, _ = cache.update(torch.zeros(1, 1, 0, 1), torch.zeros(1, 1, 0, 1), 0)
    assert keys.shape[2] == model.config.sliding_window - 1


def test_padding_on_the_left_is_not_seen(model):
    ids, mask = torch.tensor([[0, 0, 1, 2], [3, 4, 1, 0]]), torch.tensor([[0, 0, 1, 1], [1] * 4])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(ids, attention_mask=mask, position_ids=positions).logits[:, -1]
    assert torch.equal(logits[0], right(1, 2))
    assert torch.equal(logits[1], right(3, 4, 1, 0))


def test_a_recorded_past_can_be_rolled_back(model):
    cache = DynamicCache(config=model.config)
    cache.activate_past_recording()
    read(model, TEXT, cache)
    cache.crop(-3)
    assert torch.equal(read(model, [2, 2], cache)[1], right(*TEXT[:4], 2, 2))


@pytest.mark.parametrize("stale", [1, 2])
def test_rejected_tokens_that_stay_change_what_follows(model, stale):
    cache = DynamicCache(config=model.config)
    read(model, TEXT, cache)
    held = len(TEXT) - stale
    logits = read(model, [2], cache, position_ids=torch.tensor([[held]]))[0]
    assert not torch.equal(logits, right(*TEXT[:held], 2))


def test_a_session_of_ours_keeps_the_whole_past(model):
    session = TransformersModel(model).start(torch.tensor([list(TEXT)]))
    session.extend(torch.tensor([[0, 2, 3]]))
    session.roll_back(torch.tensor([len(TEXT)]))
    assert torch.equal(session.extend(torch.tensor([[4]]))[0, 0], right(*TEXT, 4))


def test_a_round_trip_to_disk(model, tmp_path):
    model.save_pretrained(tmp_path)
    loaded = SlidingGlassBoxModel.from_pretrained(tmp_path)
    assert loaded.config.sliding_window == 2
    assert torch.equal(read(loaded, TEXT), read(model, TEXT))
