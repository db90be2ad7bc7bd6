import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache

from specverify.errors import CacheNotRollable, UsageError
from specverify.models.glass_box import RecurrentGlassBoxModel
from specverify.models.protocol import LanguageModel
from specverify.models.table import TableModel
from specverify.models.transformers_model import TransformersModel, as_language_model

IDS = torch.tensor(
    [[0, 0, 0, 0, 0, 16], [0, 0, 0, 3, 1, 4], [1, 5, 9, 2, 6, 5], [0, 0, 0, 0, 3, 5]]
)
MASK = torch.tensor(
    [[0, 0, 0, 0, 0, 1], [0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1]]
)


def histories():
    return [IDS[row, MASK[row].bool()][:-1].tolist() for row in range(len(IDS))]


def close(left, right):
    return torch.allclose(left, right, atol=2e-5, rtol=1e-5)


def same_cache(session, model, row, text):
    """Whether every layer holds for this row what a fresh prefill of its text would."""
    if not text:
        return int(session.live[row].sum()) == 0
    fresh = DynamicCache()
    with torch.no_grad():
        model(torch.tensor([text]), cache=fresh, use_cache=True)
    live = session.live[row]
    return all(
        close(ours.keys[row][:, live], theirs.keys[0])
        and close(ours.values[row][:, live], theirs.values[0])
        for ours, theirs in zip(session.cache.layers, fresh.layers, strict=True)
    )


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "gpt2"])
def test_ragged_batches_equal_single_rows(make_tiny, solo, walk, name, attention):
    model = make_tiny(name, attention)
    session = TransformersModel(model).start(IDS, MASK)
    for texts, logits, counts in walk(session, histories(), 17, seed=1, rounds=9):
        assert bool(logits.isfinite().all())
        for row, text in enumerate(texts):
            count = int(counts[row])
            if count:
                assert close(logits[row, :count], solo(model, text)[-count:])


@given(st.integers(0, 10**6))
@settings(max_examples=15)
def test_the_cache_equals_a_fresh_prefill_in_every_row_and_layer(make_tiny, walk, seed):
    model = make_tiny("llama")
    session = TransformersModel(model).start(IDS, MASK)
    for texts, _, _ in walk(session, histories(), 17, seed, rounds=4):
        assert session.lengths.tolist() == [len(text) for text in texts]
        # Nothing dead is carried along, and rows are padded on the left.
        assert session.live.shape[1] == max(len(text) for text in texts)
        assert session.cache.get_seq_length() == session.live.shape[1]
        for row, text in enumerate(texts):
            assert not session.live[row, : session.live.shape[1] - len(text)].any()
            assert same_cache(session, model, row, text)


def test_the_check_of_the_cache_sees_a_wrong_one(make_tiny):
    model = make_tiny("llama")
    session = TransformersModel(model).start(IDS, MASK)
    assert same_cache(session, model, 2, [1, 5, 9, 2, 6])
    assert not same_cache(session, model, 2, [1, 5, 9, 2, 5])
    session.cache.layers[2].values[2, :, -1] += 0.01
    assert not same_cache(session, model, 2, [1, 5, 9, 2, 6])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_prompts_of_one_token_leave_nothing_cached(make_tiny, solo, attention):
    model = make_tiny("llama", attention)
    session = TransformersModel(model).start(torch.tensor([[3], [4]]))
    assert (session.passes, session.cache.get_seq_length()) == (0, 0)
    logits = session.extend(torch.tensor([[3, 1], [4, -1]]), torch.tensor([2, 1]))
    assert close(logits[0], solo(model, [3, 1]))
    assert close(logits[1, 0], solo(model, [4])[0])
    session.roll_back(torch.tensor([0, 0]))
    assert session.cache.get_seq_length() == 0
    assert close(session.extend(torch.tensor([[5], [6]]))[1], solo(model, [6]))


def test_rows_that_read_nothing(make_tiny):
    session = TransformersModel(make_tiny("llama")).start(IDS, MASK)
    lengths, passes = session.lengths.clone(), session.passes
    none = torch.zeros(4, dtype=torch.long)
    assert session.extend(torch.full((4, 2), -1), none).shape == (4, 2, 17)
    assert session.extend(torch.zeros(4, 0, dtype=torch.long)).shape == (4, 0, 17)
    assert session.passes == passes
    assert torch.equal(session.lengths, lengths)


def test_a_common_roll_back_only_crops(make_tiny):
    session = TransformersModel(make_tiny("llama")).start(IDS, MASK)
    session.extend(torch.tensor([[1, 2, 3]] * 4))
    before = session.cache.layers[0].keys
    session.roll_back(session.lengths - 2)
    after = session.cache.layers[0].keys
    assert after.data_ptr() == before.data_ptr()  # a view of the same storage, nothing gathered
    assert torch.equal(after, before[:, :, :-2])


def test_a_full_window_is_used_and_not_exceeded(make_tiny, solo):
    for name in ("llama", "gpt2"):
        model = make_tiny(name)
        lm = TransformersModel(model)
        assert lm.window == 40
        text = torch.arange(40).remainder(17)
        session = lm.start(torch.stack([text, text.flip(0)]))
        session.extend(text[-1:].repeat(2, 1), torch.tensor([1, 0]))
        # Row 0 is full; row 1 goes on beside it.
        logits = session.extend(torch.tensor([[-1], [0]]), torch.tensor([0, 1]))
        assert close(logits[1], solo(model, text.flip(0).tolist())[-1:])
        passes = session.passes
        with pytest.raises(UsageError, match=r"row 0 would hold 41 tokens.*window is 40"):
            session.extend(torch.tensor([[1], [1]]))
        assert session.passes == passes
        with pytest.raises(UsageError, match="would hold 41 tokens"):
            lm.start(torch.zeros(1, 41, dtype=torch.long))


def test_the_model_is_left_as_it_was(make_tiny):
    model = make_tiny("llama").train()
    model.model.layers[1].eval()
    modes = [module.training for module in model.modules()]
    config = model.config.to_dict()
    state = torch.get_rng_state()
    session = TransformersModel(model).start(IDS, MASK)
    logits = session.extend(torch.tensor([[1]] * 4))
    assert not logits.requires_grad
    assert [module.training for module in model.modules()] == modes
    assert model.config.to_dict() == config
    assert torch.equal(state, torch.get_rng_state())


def test_dropout_is_off_while_decoding(make_tiny, solo):
    model = make_tiny("llama")
    model.config.attention_dropout = 0.5
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    expected = solo(model, [1, 2])
    session = TransformersModel(model.train()).start(torch.tensor([[1]]))
    assert close(session.extend(torch.tensor([[1, 2]]))[0], expected)


def test_a_failing_pass_restores_the_training_mode(make_tiny, monkeypatch):
    model = make_tiny("llama").train()
    monkeypatch.setattr(model.lm_head, "forward", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        TransformersModel(model).start(torch.tensor([[1]])).extend(torch.tensor([[1]]))
    assert model.training


def recurrent():
    return TransformersModel(RecurrentGlassBoxModel.from_table(TableModel.random(5, 2, 0)))


def test_a_recurrent_state_is_refused_by_name_before_any_pass():
    model = recurrent()
    with pytest.raises(CacheNotRollable) as caught:
        model.check_rollable()
    message = str(caught.value)
    assert "layer 0 of RecurrentGlassBoxModel" in message
    assert "LinearAttentionLayer" in message
    assert "decode without a draft" in message


def test_a_recurrent_model_decodes_but_neither_rolls_back_nor_goes_ragged():
    session = recurrent().start(torch.tensor([[0, 1], [2, 3]]))
    session.extend(torch.tensor([[1, 2], [3, 4]]))
    session.roll_back(session.lengths)
    held = session.lengths.clone()
    for call in (
        lambda: session.roll_back(session.lengths - 1),
        lambda: session.extend(torch.tensor([[1], [1]]), torch.tensor([1, 0])),
        lambda: recurrent().start(torch.tensor([[0, 1], [0, 1]]), torch.tensor([[1, 1], [0, 1]])),
    ):
        with pytest.raises(CacheNotRollable, match="recurrent or convolutional state"):
            call()
    assert torch.equal(session.lengths, held)


def test_attention_models_pass_the_check_before_any_pass(make_tiny):
    for name in ("llama", "mistral", "gemma3", "gpt2"):
        TransformersModel(make_tiny(name)).check_rollable()


def test_an_encoder_decoder_is_refused():
    import transformers as hf

    logging.disable(logging.WARNING)
    config = hf.T5Config(
        vocab_size=9, d_model=4, d_kv=2, d_ff=4, num_layers=1, num_heads=1, pad_token_id=0
    )
    model = hf.T5ForConditionalGeneration(config)
    logging.disable(logging.NOTSET)
    with pytest.raises(UsageError, match="T5ForConditionalGeneration is an encoder-decoder"):
        TransformersModel(model)


def test_as_language_model(make_tiny):
    table = TableModel.random(3, 1, 0)
    assert as_language_model(table) is table
    model = make_tiny("llama")
    wrapped = as_language_model(model)
    assert isinstance(wrapped, LanguageModel)
    assert wrapped.model is model
    with pytest.raises(UsageError, match="dict is neither a specverify LanguageModel"):
        as_language_model({})


def test_a_repeated_session_equals_one_of_equal_rows(make_tiny):
    model = TransformersModel(make_tiny("llama"))
    prompt, rows = torch.tensor([[3, 1, 4, 1]]), 3
    single, plain = model.start(prompt), model.start(prompt.expand(rows, -1))
    repeated = single.repeated(rows)
    tokens = torch.tensor([[1, 5, 9], [1, 2, 6], [1, 5, 3]])
    for session in (repeated, plain):
        session.extend(tokens, torch.tensor([3, 2, 3]))
        session.roll_back(torch.tensor([5, 5, 4]))
    again = torch.tensor([[2], [7], [1]])
    assert torch.allclose(repeated.extend(again), plain.extend(again), atol=1e-5)
    assert repeated.lengths.tolist() == plain.lengths.tolist() == [6, 6, 5]
    # The one that was repeated is as it was.
    tail = torch.tensor([[1, 5]])
    assert torch.equal(single.extend(tail), model.start(prompt).extend(tail))


def test_a_recurrent_state_is_not_repeated():
    table = TableModel.random(4, 1, seed=0)
    session = TransformersModel(RecurrentGlassBoxModel.from_table(table)).start(torch.tensor([[1]]))
    with pytest.raises(CacheNotRollable):
        session.repeated(2)
