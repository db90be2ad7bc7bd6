import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.errors import UsageError
from specverify.models.protocol import LanguageModel
from specverify.models.table import TableModel, context_index


def test_is_a_language_model():
    assert isinstance(TableModel.random(3, 1, 0), LanguageModel)


@given(
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(0, 10**6),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
)
@settings(max_examples=40)
def test_any_walk_gives_the_table_rows_of_its_histories(walk, vocab_size, order, seed, lengths):
    model = TableModel.random(vocab_size, order, seed)
    longest = max(lengths)
    ids = torch.randint(
        0, vocab_size, (len(lengths), longest), generator=torch.Generator().manual_seed(seed)
    )
    mask = (torch.arange(longest) >= longest - torch.tensor(lengths)[:, None]).long()
    session = model.start(ids, mask)
    assert session.lengths.tolist() == [length - 1 for length in lengths]
    histories = [ids[row, longest - length : -1].tolist() for row, length in enumerate(lengths)]
    for texts, logits, counts in walk(session, histories, vocab_size, seed):
        assert session.lengths.tolist() == [len(text) for text in texts]
        for row, text in enumerate(texts):
            for back in range(int(counts[row])):
                context = model.context_after(text[: len(text) - back])
                found = logits[row, int(counts[row]) - 1 - back]
                assert torch.equal(found, model.logits[context])


def test_contexts_agree_with_one_another():
    model = TableModel.random(3, 2, 0)
    assert model.num_contexts == 16
    assert model.start_context == model.context_after([])
    assert model.context_after([0, 2, 1]) == 2 * 4 + 1
    contexts = torch.tensor([model.start_context, model.context_after([2, 0])])
    advanced = model.advance(contexts, torch.tensor([1, 2]))
    assert advanced.tolist() == [model.context_after([1]), model.context_after([2, 0, 2])]
    assert context_index(torch.tensor([[3, 1], [0, 2]]), 3).tolist() == advanced.tolist()


def test_passes_count_what_was_read():
    session = TableModel.random(3, 1, 0).start(torch.tensor([[1]]))
    assert session.passes == 0
    session.extend(torch.tensor([[1, 2]]))
    session.extend(torch.tensor([[1, 2]]), torch.tensor([0]))
    assert session.passes == 1
    assert TableModel.random(3, 1, 0).start(torch.tensor([[1, 2]])).passes == 1


def test_one_token_vocabulary_and_empty_block():
    session = TableModel.random(1, 2, 0).start(torch.tensor([[0, 0]]))
    assert session.extend(torch.zeros(1, 0, dtype=torch.long)).shape == (1, 0, 1)
    assert session.extend(torch.tensor([[0]])).shape == (1, 1, 1)


def test_random_tables_are_reproducible_and_leave_the_global_generator_alone():
    state = torch.get_rng_state()
    first = TableModel.random(4, 2, 7, 1.5)
    assert torch.equal(first.logits, TableModel.random(4, 2, 7, 1.5).logits)
    assert not torch.equal(first.logits, TableModel.random(4, 2, 8, 1.5).logits)
    near = first.near(1, 0.1)
    assert 0.05 < (near.logits - first.logits).std() < 0.2
    assert torch.equal(first.near(1, 0.0).logits, first.logits)
    assert torch.equal(state, torch.get_rng_state())


def test_impossible_tokens_are_allowed_and_empty_rows_are_not():
    logits = torch.tensor([[0.0, -torch.inf], [0.0, 1.0], [2.0, 0.0]])
    session = TableModel(logits, 1).start(torch.tensor([[0]]))
    assert session.extend(torch.tensor([[0]]))[0, 0].tolist() == [0.0, -torch.inf]
    for bad in (torch.nan, torch.inf):
        with pytest.raises(UsageError, match="row 1 is"):
            TableModel(logits.index_fill(0, torch.tensor(1), bad), 1)
    with pytest.raises(UsageError, match="row 0 is"):
        TableModel(logits.index_fill(0, torch.tensor(0), -torch.inf), 1)


def test_wrong_shapes_are_refused():
    with pytest.raises(UsageError, match=r"\[5, 2\] do not fit order 1.*\[\(V \+ 1\)\^order, V\]"):
        TableModel(torch.zeros(5, 2), 1)


def test_the_window_holds_for_prompts_and_blocks():
    model = TableModel.random(3, 1, 0, window=3)
    with pytest.raises(UsageError, match="window is 3"):
        model.start(torch.tensor([[0, 1, 2, 0]]))
    session = model.start(torch.tensor([[0, 1, 2]]))
    session.extend(torch.tensor([[2]]))
    with pytest.raises(UsageError, match="row 0 would hold 4 tokens"):
        session.extend(torch.tensor([[1]]))
    assert session.lengths.tolist() == [3]
    assert model.near(0, 0.1).window == 3


def test_a_caller_cannot_change_a_session_through_its_tensors():
    session = TableModel.random(3, 1, 0).start(torch.tensor([[0, 1, 2]]))
    lengths = torch.tensor([1])
    session.roll_back(lengths)
    lengths[0] = 0
    assert session.lengths.tolist() == [1]


def test_many_rows_are_cheap():
    model = TableModel.random(8, 2, 0)
    block = torch.randint(0, 8, (20_000, 5), generator=torch.Generator().manual_seed(0))
    session = model.start(block[:, :3])
    begun = time.perf_counter()
    for _ in range(20):
        session.extend(block)
        session.roll_back(session.lengths - 5)
    # About 0.1 s on one idle core; the bound only tells a loop over rows (minutes) from none.
    assert time.perf_counter() - begun < 5
    assert session._tokens.shape[1] <= 16
