import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import StaticCache
from transformers.cache_utils import DynamicCache

from specverify.models.glass_box import GlassBoxModel, RecurrentGlassBoxModel
from specverify.models.table import TableModel
from specverify.models.transformers_model import TransformersModel

TABLE = TableModel.random(6, 2, 3, 1.3)
BOTH = pytest.mark.parametrize("variant", [GlassBoxModel, RecurrentGlassBoxModel])


def right(*tokens):
    return TABLE.logits[TABLE.context_after(tokens)]


@pytest.fixture
def glass():
    return GlassBoxModel.from_table(TABLE, dtype=torch.float64)


@pytest.fixture
def prefilled(glass):
    """The model and its cache after 0 1 2 3 4 at positions 0 to 4."""
    cache = DynamicCache(config=glass.config)
    glass(torch.tensor([[0, 1, 2, 3, 4]]), cache=cache)
    return glass, cache


def feed(glass, cache, tokens, **arguments):
    return glass(torch.tensor([tokens]), cache=cache, **arguments).logits[0]


@BOTH
def test_left_padded_rows_give_the_rows_of_the_table(variant):
    model = variant.from_table(TABLE, dtype=torch.float64)
    ids = torch.tensor([[0, 0, 1, 2, 3], [4, 1, 0, 1, 2], [0, 0, 0, 0, 4]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(ids, attention_mask=mask, position_ids=positions).logits
    for row in range(3):
        for column in range(5):
            if mask[row, column]:
                text = ids[row, : column + 1][mask[row, : column + 1].bool()]
                assert torch.equal(logits[row, column], right(*text.tolist()))


@BOTH
@pytest.mark.parametrize("order", [0, 1, 3])
def test_any_order(variant, order):
    table = TableModel.random(3, order, 0)
    model = variant.from_table(table, dtype=torch.float64)
    tokens = [2, 0, 1, 1, 2]
    cache = DynamicCache(config=model.config)
    pieces = [model(torch.tensor([part]), cache=cache).logits[0] for part in ([2], [0, 1], [1, 2])]
    for length, logits in enumerate(torch.cat(pieces), start=1):
        assert torch.equal(logits, table.logits[table.context_after(tokens[:length])])


def test_the_cache_is_the_token_history(prefilled):
    _, cache = prefilled
    assert cache.layers[0].keys[0, 0, :, 0].tolist() == [0, 1, 2, 3, 4]
    assert cache.layers[0].values[0, 0, :, 0].tolist() == [0, 1, 2, 3, 4]


def test_the_right_crop_gives_the_table_rows(prefilled):
    glass, cache = prefilled
    cache.crop(-2)
    assert torch.equal(feed(glass, cache, [5, 1])[1], right(0, 1, 2, 5, 1))


@pytest.mark.parametrize("surplus", [-2, -1, 1, 2])
def test_a_wrong_crop_changes_every_later_distribution(prefilled, surplus):
    glass, cache = prefilled
    cache.crop(-(2 + surplus)) if surplus > -2 else None
    tokens = [5, 1, 0, 2, 3]
    positions = torch.arange(3, 8)[None]
    logits = feed(glass, cache, tokens, position_ids=positions)
    for length in range(1, 6):
        # Far behind the fault too: the tokens in question have left the table's context by then.
        assert not torch.equal(logits[length - 1], right(0, 1, 2, *tokens[:length]))


@pytest.mark.parametrize("surplus", [-1, 1])
def test_a_wrong_crop_shows_with_positions_counted_from_the_cache(prefilled, surplus):
    glass, cache = prefilled
    cache.crop(-(2 + surplus))
    assert not torch.equal(feed(glass, cache, [5])[0], right(0, 1, 2, 5))


@pytest.mark.parametrize("shift", [-1, 1, 3])
def test_position_ids_that_are_not_rolled_back_change_the_distribution(prefilled, shift):
    glass, cache = prefilled
    cache.crop(-2)
    logits = feed(glass, cache, [5, 1], position_ids=torch.tensor([[3, 4]]) + shift)
    assert not torch.equal(logits[0], right(0, 1, 2, 5))
    assert not torch.equal(logits[1], right(0, 1, 2, 5, 1))


def test_two_claims_on_one_position_and_none_on_another_show(glass):
    ids = torch.tensor([[0, 1, 2, 3]])
    # As many positions as there should be, and the right sum of them.
    logits = glass(ids, position_ids=torch.tensor([[1, 1, 1, 3]])).logits[0, -1]
    assert not torch.equal(logits, right(0, 1, 2, 3))


def test_padding_in_sight_changes_the_distribution(glass):
    ids, mask = torch.tensor([[0, 0, 1, 2]]), torch.tensor([[0, 0, 1, 1]])
    positions = torch.tensor([[0, 0, 0, 1]])
    seen = glass(ids, attention_mask=mask, position_ids=positions).logits[0, -1]
    assert torch.equal(seen, right(1, 2))
    assert not torch.equal(glass(ids, position_ids=positions).logits[0, -1], right(1, 2))
    # Positions that count the padding are wrong too: they are absolute here.
    shifted = glass(ids, attention_mask=mask, position_ids=torch.arange(4)[None]).logits[0, -1]
    assert not torch.equal(shifted, right(1, 2))


@pytest.mark.parametrize("hidden", [0, 2, 4])
def test_a_masked_token_changes_the_distribution(prefilled, hidden):
    glass, cache = prefilled
    mask = torch.ones(1, 6, dtype=torch.long)
    assert torch.equal(
        feed(glass, DynamicCache(config=glass.config), [0, 1, 2, 3, 4, 5], attention_mask=mask)[-1],
        right(0, 1, 2, 3, 4, 5),
    )
    mask[0, hidden] = 0
    assert not torch.equal(feed(glass, cache, [5], attention_mask=mask)[0], right(0, 1, 2, 3, 4, 5))


def test_swapped_rows_change_the_distribution(glass):
    cache = DynamicCache(config=glass.config)
    glass(torch.tensor([[0, 1, 2], [3, 4, 5]]), cache=cache)
    cache.reorder_cache(torch.tensor([1, 0]))
    logits = glass(torch.tensor([[1], [1]]), cache=cache).logits[:, 0]
    assert not torch.equal(logits[0], right(0, 1, 2, 1))
    assert torch.equal(logits[0], right(3, 4, 5, 1))
    assert torch.equal(logits[1], right(0, 1, 2, 1))


def test_faults_are_deterministic(prefilled):
    glass, cache = prefilled
    cache.crop(-1)
    first = feed(glass, cache, [5], position_ids=torch.tensor([[3]]))
    cache.crop(-1)
    assert torch.equal(first, feed(glass, cache, [5], position_ids=torch.tensor([[3]])))


@pytest.mark.parametrize("additive", [False, True])
def test_tree_attention_by_a_four_dimensional_mask(prefilled, additive):
    glass, cache = prefilled
    # Two branches behind 0 1 2 3 4: the node 5, and the node 1 with its child 2.
    ancestors = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 1, 1]])
    mask = torch.cat([torch.ones(3, 5, dtype=torch.long), ancestors], dim=1).bool()[None, None]
    if additive:
        mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    depth = torch.tensor([[5, 5, 6]])
    logits = feed(glass, cache, [5, 1, 2], attention_mask=mask, position_ids=depth)
    assert torch.equal(logits[0], right(0, 1, 2, 3, 4, 5))
    assert torch.equal(logits[1], right(0, 1, 2, 3, 4, 1))
    assert torch.equal(logits[2], right(0, 1, 2, 3, 4, 1, 2))


def test_a_static_cache_works_too(glass):
    cache = StaticCache(config=glass.config, max_cache_len=8)
    glass(torch.tensor([[0, 1, 2]]), cache=cache, position_ids=torch.arange(3)[None])
    cache.crop(-1)
    logits = feed(glass, cache, [3, 4], position_ids=torch.tensor([[2, 3]]))
    assert torch.equal(logits[1], right(0, 1, 3, 4))


def test_both_keywords_for_the_cache_and_the_field_it_comes_back_in(glass):
    cache = DynamicCache(config=glass.config)
    output = glass(torch.tensor([[0, 1]]), past_key_values=cache)
    field = "cache" if "cache" in type(output).__dataclass_fields__ else "past_key_values"
    assert output[field] is cache
    assert field not in glass(torch.tensor([[0, 1]]), use_cache=False)
    assert len(glass(torch.tensor([[0, 1]]), return_dict=False)) == 2


def test_logits_to_keep(glass):
    ids = torch.tensor([[0, 1, 2, 3]])
    whole = glass(ids).logits
    assert torch.equal(glass(ids, logits_to_keep=2).logits, whole[:, -2:])
    picked = glass(ids, logits_to_keep=torch.tensor([0, 2])).logits
    assert torch.equal(picked, whole[:, [0, 2]])


@BOTH
def test_dtype_and_a_round_trip_to_disk(variant, tmp_path):
    model = variant.from_table(TABLE)
    assert model(torch.tensor([[0]])).logits.dtype == torch.float32
    model.save_pretrained(tmp_path)
    loaded = variant.from_pretrained(tmp_path)
    assert torch.equal(loaded.table, model.table)
    assert loaded.config.order == 2


GENERATE = {"max_new_tokens": 9, "pad_token_id": 0, "do_sample": False}


@BOTH
def test_generate_on_a_left_padded_batch_equals_single_rows(variant):
    model = variant.from_table(TABLE)
    ids = torch.tensor([[0, 0, 1, 2, 3], [4, 1, 0, 1, 2], [0, 0, 0, 0, 4]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]])
    batch = model.generate(ids, attention_mask=mask, **GENERATE)
    for row in range(3):
        text = ids[row, mask[row].bool()].tolist()
        for token in batch[row, 5:].tolist():
            assert token == right(*text).argmax().item()
            text.append(token)


def test_assisted_generation_greedy_follows_the_table(glass):
    draft = GlassBoxModel.from_table(TABLE.near(0, 0.7), dtype=torch.float64)
    ids = torch.tensor([[4, 1, 0]])
    output = glass.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        assistant_model=draft,
        num_assistant_tokens=3,
        **GENERATE,
    )
    text = [4, 1, 0]
    for token in output[0, 3:].tolist():
        assert token == right(*text).argmax().item()
        text.append(token)


def sample_assisted(**arguments):
    """60 tokens from a target that never says 5, drafted by a model that does."""
    logits = TABLE.logits.clone()
    logits[:, 5] = -torch.inf
    target = GlassBoxModel.from_table(TableModel(logits, 2))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return target.generate(
            torch.tensor([[4, 1, 0]]),
            assistant_model=GlassBoxModel.from_table(TABLE),
            do_sample=True,
            top_k=0,
            max_new_tokens=60,
            pad_token_id=0,
            **arguments,
        )


def test_assisted_generation_samples_within_the_support():
    output = sample_assisted(attention_mask=torch.ones(1, 3, dtype=torch.long))
    assert output.shape == (1, 63)
    assert 5 not in output


def test_a_prompt_token_taken_for_padding_shows():
    # Without a mask, transformers takes the 0 of the prompt for padding and hides it.
    assert 5 in sample_assisted()


@given(st.integers(0, 10**6), st.integers(0, 3))
@settings(max_examples=25)
def test_a_session_on_it_is_a_session_on_the_table(walk, seed, order):
    table = TableModel.random(4, order, seed)
    model = TransformersModel(GlassBoxModel.from_table(table, dtype=torch.float64))
    ids = torch.tensor([[0, 0, 0, 3], [0, 1, 2, 3], [0, 0, 2, 1]])
    mask = torch.tensor([[0, 0, 0, 1], [1, 1, 1, 1], [0, 0, 1, 1]])
    session = model.start(ids, mask)
    histories = [[], [0, 1, 2], [2]]
    for texts, logits, counts in walk(session, histories, 4, seed):
        for row, text in enumerate(texts):
            if counts[row]:
                last = logits[row, int(counts[row]) - 1]
                assert torch.equal(last, table.logits[table.context_after(text)])
        layer = session.cache.layers[0]
        for row, text in enumerate(texts):
            if text:
                live = session.live[row]
                assert layer.keys[row, 0, live, 0].tolist() == text
                assert layer.values[row, 0, live, 0].tolist() == list(range(len(text)))


@pytest.fixture
def recurrent():
    return RecurrentGlassBoxModel.from_table(TABLE, dtype=torch.float64)


def test_a_recurrent_state_cannot_be_cropped_only_restored(recurrent):
    cache = DynamicCache(config=recurrent.config)
    recurrent(torch.tensor([[0, 1, 2]]), cache=cache)
    assert not cache.is_croppable
    with pytest.raises(RuntimeError, match="crop"):
        cache.crop(-1)
    saved = cache.layers[0].recurrent_states[0].clone()
    recurrent(torch.tensor([[5, 5]]), cache=cache)
    stale = feed(recurrent, cache, [3])[0]
    assert not torch.equal(stale, right(0, 1, 2, 3))
    cache.update_recurrent_state(saved, 0)
    assert torch.equal(feed(recurrent, cache, [3])[0], right(0, 1, 2, 3))


def test_masked_tokens_leave_the_recurrent_state_alone(recurrent):
    cache = DynamicCache(config=recurrent.config)
    recurrent(torch.tensor([[1, 2, 0]]), cache=cache, attention_mask=torch.tensor([[1, 1, 0]]))
    mask = torch.tensor([[1, 1, 0, 1]])
    assert torch.equal(feed(recurrent, cache, [3], attention_mask=mask)[0], right(1, 2, 3))


def test_assisted_generation_refuses_the_recurrent_variant(recurrent):
    with pytest.raises(ValueError, match="cropped"):
        recurrent.generate(torch.tensor([[0, 1]]), assistant_model=recurrent, **GENERATE)
