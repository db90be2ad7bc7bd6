import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.errors import UsageError
from specverify.models.mapped import MappedModel
from specverify.models.protocol import LanguageModel
from specverify.models.table import TableModel
from specverify.models.vocabulary import Vocabulary, compare

V = 5
WORDS = tuple("abcde")


def permuted(table, order, padding):
    """The same table with token t renamed `order[t]`, and padded ids of high probability."""
    width = V + padding
    logits = torch.full(((width + 1) ** table.order, width), 9.0, dtype=torch.float64)
    names = torch.tensor([*order, width])
    for context in range(table.num_contexts):
        digits = [context // (V + 1) ** place % (V + 1) for place in range(table.order)]
        renamed = sum(int(names[d]) * (width + 1) ** place for place, d in enumerate(digits))
        logits[renamed, names[:V]] = table.logits[context]
    words = [None] * width
    for token, name in enumerate(order):
        words[name] = WORDS[token]
    return TableModel(logits, table.order, vocabulary=Vocabulary(tuple(words)))


@given(st.permutations(range(V)), st.integers(0, 2), st.integers(0, 2), st.integers(0, 10**6))
@settings(max_examples=25)
def test_a_permuted_padded_copy_has_the_same_distribution(walk, order, ours, theirs, seed):
    table = TableModel.random(V, 2, seed)
    draft = permuted(table, order, theirs)
    relation = compare(Vocabulary((*WORDS, *[None] * ours)), draft.vocabulary)
    mapped = MappedModel(draft, relation)
    assert isinstance(mapped, LanguageModel)
    assert mapped.vocab_size == V + ours
    ids = torch.tensor([[-1, -1, 2], [4, 1, 0]])
    session = mapped.start(ids, torch.tensor([[0, 0, 1], [1, 1, 1]]))
    assert (session.lengths.tolist(), session.passes) == ([0, 2], 1)
    for texts, logits, counts in walk(session, [[], [4, 1]], V, seed):
        assert session.lengths.tolist() == [len(text) for text in texts]
        assert bool((logits[..., V:] == -torch.inf).all())
        for row, text in enumerate(texts):
            if counts[row]:
                last = logits[row, int(counts[row]) - 1]
                assert torch.equal(last[:V], table.logits[table.context_after(text)])
    assert session.passes == session.session.passes


def test_mapping_only_the_logits_would_show():
    table = TableModel.random(V, 2, 0)
    draft = permuted(table, (1, 2, 3, 4, 0), 0)
    mapped = MappedModel(draft, compare(Vocabulary(WORDS), draft.vocabulary))
    raw = draft.start(torch.tensor([[0]])).extend(torch.tensor([[0, 3]]))
    right = mapped.start(torch.tensor([[0]])).extend(torch.tensor([[0, 3]]))
    assert not torch.equal(mapped.to_target(raw), right)


def test_a_target_id_that_is_padding_is_read_as_the_unknown_token():
    draft = TableModel.random(V, 1, 0)
    vocabulary = Vocabulary(WORDS, {"unk_token": 3})
    mapped = MappedModel(draft, compare(Vocabulary((*WORDS, None)), vocabulary))
    read = mapped.start(torch.tensor([[1]])).extend(torch.tensor([[5]]))[0, 0, :V]
    assert torch.equal(read, draft.logits[3])
    assert mapped.to_draft(torch.tensor([0, 5])).tolist() == [0, 3]


def test_ids_outside_the_target_are_refused():
    draft = TableModel.random(V, 1, 0)
    mapped = MappedModel(draft, compare(Vocabulary((*WORDS, None)), Vocabulary(WORDS)))
    with pytest.raises(UsageError, match="token id 6"):
        mapped.start(torch.tensor([[6]]))
    with pytest.raises(UsageError, match="token id 6"):
        mapped.start(torch.tensor([[0]])).extend(torch.tensor([[6]]))
