"""Groups of contexts: numbered by their last tokens, few enough to keep."""

import pytest
import torch

from specverify.certification.contexts import MOST_ENTRIES, Contexts


def test_groups_are_the_last_tokens_in_base_v_plus_one():
    contexts = Contexts(vocab_size=9, suffix=2)
    tokens, both = torch.tensor([[7, 8, -1], [1, 2, 3]]), torch.arange(2)
    assert contexts.groups((4, 5), tokens, both, torch.tensor([0, 0])).tolist() == [45, 45]
    assert contexts.groups((4, 5), tokens, both, torch.tensor([1, 3])).tolist() == [57, 23]


def test_places_before_the_prompt_have_a_digit_of_their_own():
    contexts = Contexts(vocab_size=9, suffix=2)
    first = torch.zeros(1, dtype=torch.long)
    (group,) = contexts.groups((4,), torch.tensor([[7]]), first, torch.tensor([0])).tolist()
    assert group == 94
    assert contexts.label(group) == "after ..., start, 4"
    assert group < contexts.count


def test_one_group_for_all():
    contexts = Contexts(vocab_size=9, suffix=0)
    assert contexts.count == 1
    first = torch.zeros(1, dtype=torch.long)
    assert contexts.groups((4,), torch.tensor([[7, 1]]), first, torch.tensor([2])).tolist() == [0]
    assert contexts.label(0) == "anywhere"


@pytest.mark.parametrize(
    ("vocab_size", "places", "suffix"),
    [(8, 1, 2), (8, 6, 2), (127, 1, 2), (128, 1, 1), (1024, 1, 1), (1024, 6, 0), (50_000, 1, 0)],
)
def test_contexts_are_told_apart_as_far_as_memory_allows(vocab_size, places, suffix):
    contexts = Contexts.told_apart(vocab_size, most_tokens=2, places=places)
    assert contexts.suffix == suffix
    if suffix:
        assert places * contexts.count * vocab_size <= MOST_ENTRIES
