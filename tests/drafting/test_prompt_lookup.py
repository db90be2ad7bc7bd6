import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specverify.drafting.prompt_lookup import PromptLookup, continuation
from specverify.errors import UsageError

GENERATOR = torch.Generator()


def propose(histories, pipeline, limits, *rows, max_ngram=3):
    history = histories(*rows)
    session = PromptLookup(max_ngram).start(history.tokens, history.tokens, None)
    block = session.propose(history, torch.tensor(limits), pipeline(100), GENERATOR)
    assert block.probs is None
    assert session.passes == 0
    return block


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ([1, 2, 3, 4, 1, 2], 2, [3, 4]),
        ([5, 9, 5, 8, 7, 5], 1, [8]),
        ([2, 7, 7, 1, 2, 8, 1, 2], 1, [8]),
        ([3, 1, 2, 9, 8, 2, 7, 1, 2], 1, [9]),
        ([1, 2, 3], 4, []),
        ([1], 4, []),
        ([1, 2, 1, 2, 1, 2], 4, [1, 2, 1, 2]),
        ([4, 4, 4, 4], 3, [4, 4, 4]),
        ([1, 2, 3, 1], 5, [2, 3, 1, 2, 3]),
        ([1, 2, 3, 4, 1, 2], 0, []),
    ],
    ids=[
        "what followed",
        "most recent place",
        "most recent of two bigrams",
        "longer match before a more recent shorter one",
        "no match",
        "one token",
        "overlap with the end",
        "constant text",
        "copy that runs into itself",
        "no limit",
    ],
)
def test_proposes_what_followed(histories, pipeline, text, limit, expected):
    block = propose(histories, pipeline, [limit], text)
    assert block.counts.tolist() == [len(expected)]
    assert block.tokens[0].tolist() == expected


def test_longest_ngram_is_bounded(histories, pipeline):
    """The trigram 1 2 3 was followed by 9, the last bigram 2 3 by 8."""
    text = [1, 2, 3, 9, 0, 2, 3, 8, 1, 2, 3]
    assert propose(histories, pipeline, [1], text).tokens.tolist() == [[9]]
    assert propose(histories, pipeline, [1], text, max_ngram=2).tokens.tolist() == [[8]]


def test_rows_look_up_their_own_text(histories, pipeline):
    block = propose(histories, pipeline, [3, 3, 2, 0], [7, 8, 9, 7], [1, 2, 3], [6, 5, 6], [4, 4])
    assert block.counts.tolist() == [3, 0, 2, 0]
    assert block.tokens.tolist() == [[8, 9, 7], [-1, -1, -1], [5, 6, -1], [-1, -1, -1]]


def test_scratch_space_is_not_text(histories, pipeline):
    history = histories([1, 2, 3])
    history.reserve(4)
    history.write(torch.tensor([[3, 9, 3, 9]]))
    session = PromptLookup().start(history.tokens, history.tokens, None)
    block = session.propose(history, torch.tensor([2]), pipeline(100), GENERATOR)
    assert block.counts.tolist() == [0]


def brute_force(text, max_ngram):
    """Index of the token after the last earlier place of the longest matching suffix, or 0."""
    for n in range(min(max_ngram, len(text) - 1), 0, -1):
        for begin in range(len(text) - n - 1, -1, -1):
            if text[begin : begin + n] == text[-n:]:
                return begin + n
    return 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=4),
    st.integers(1, 4),
)
def test_agrees_with_a_search_by_hand(histories, texts, max_ngram):
    history = histories(*texts)
    found = continuation(history.tokens, history.lengths, max_ngram)
    assert found.tolist() == [brute_force(text, max_ngram) for text in texts]


def test_an_ngram_of_no_tokens_is_refused():
    with pytest.raises(UsageError, match="max_ngram=0"):
        PromptLookup(0)
