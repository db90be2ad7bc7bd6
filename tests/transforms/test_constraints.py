import math

import pytest
import torch
from transformers.generation import logits_process as hf

from specverify.errors import SettingsError
from specverify.transforms import (
    AllowedTokens,
    BadWords,
    ForcedTokens,
    LogitBias,
    MinLength,
    NoRepeatNGram,
    TokenAutomaton,
)

LOGITS = torch.tensor([[2.0, -1.0, 0.5, 4.0]])
NO_HISTORY = torch.zeros(1, 0, dtype=torch.long)


def kept(transform, history: list[int], logits=LOGITS) -> list[int]:
    result = transform(torch.tensor([history], dtype=torch.long), logits)
    return (result[0] > -math.inf).nonzero().squeeze(-1).tolist()


# Ours refuses a row without a token where transformers returns one; `apply` does not judge.


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9, 10])
def test_ngrams_equal_transformers(histories, scores, size):
    theirs = hf.NoRepeatNGramLogitsProcessor(size)(histories, scores)
    ours = NoRepeatNGram(ngram_size=size).apply(histories, scores)
    assert torch.equal(ours, theirs)
    assert size > 3 or not torch.equal(ours, scores)


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_ngrams_equal_transformers_on_short_histories(histories, scores, length):
    for size in (1, 2, 3):
        theirs = hf.NoRepeatNGramLogitsProcessor(size)(histories[:, :length], scores)
        ours = NoRepeatNGram(size).apply(histories[:, :length], scores)
        assert torch.equal(ours, theirs)


def test_ngrams_by_hand():
    assert kept(NoRepeatNGram(2), [0, 1, 0]) == [0, 2, 3]
    assert kept(NoRepeatNGram(3), [0, 1, 2, 3, 0, 1]) == [0, 1, 3]
    assert kept(NoRepeatNGram(3), [0, 1, 2, 1, 0]) == [0, 1, 2, 3]


@pytest.mark.parametrize("stops", [None, [4], [4, 11]])
@pytest.mark.parametrize("length", [0, 1, 9])
def test_bad_words_equal_transformers(histories, scores, stops, length):
    words = [[4], [5], [0, 1], [2, 2], [1, 2, 0], [1, 2, 3], list(range(10))]
    theirs = hf.NoBadWordsLogitsProcessor(words, stops)(histories[:, :length], scores)
    ours = BadWords(bad_words=words, stop_token_ids=stops or ()).apply(
        histories[:, :length], scores
    )
    assert torch.equal(ours, theirs)


def test_a_stop_token_is_spared_alone_but_not_inside_a_word():
    words = BadWords([[1], [3, 1]], stop_token_ids=[1])
    assert kept(words, [0]) == [0, 1, 2, 3]
    assert kept(words, [3]) == [0, 2, 3]


def test_bias_equals_transformers(histories, scores):
    # Values that float32 holds exactly: transformers keeps its biases in float32.
    bias = {0: 1.5, 3: -0.25, 7: -math.inf}
    theirs = hf.SequenceBiasLogitsProcessor({(t,): b for t, b in bias.items()})(histories, scores)
    assert torch.equal(LogitBias(bias=bias).apply(histories, scores), theirs)


def test_biases_keep_double_precision():
    assert LogitBias({0: 0.1})(NO_HISTORY, torch.zeros(1, 2))[0, 0].item() == 0.1


def test_only_a_bias_of_minus_infinity_can_empty_a_row():
    assert LogitBias({0: -5.0}).history_free
    assert not LogitBias({0: -math.inf}).history_free


@pytest.mark.parametrize("revive_rows", [False, True])
def test_allowed_tokens_equal_transformers(histories, scores, revive_rows):
    if revive_rows:
        scores[:40, :6] = -math.inf

    def allowed(emitted):
        return [sum(emitted) % 6, (7 * len(emitted)) % 6]

    theirs = hf.PrefixConstrainedLogitsProcessor(
        lambda _, ids: allowed(ids[3:].tolist()), num_beams=1
    )(histories, scores)
    ours = AllowedTokens(allowed=allowed, prompt_length=3)(histories, scores)
    assert torch.equal(ours, theirs)


def test_allowed_tokens_without_revival_refuse_such_rows():
    logits = torch.tensor([[-math.inf, 0.0, 0.0]])
    assert kept(AllowedTokens(lambda _: (0,)), [], logits) == [0]
    with pytest.raises(SettingsError, match="allowed_tokens"):
        AllowedTokens(lambda _: (0,), revive=False)(NO_HISTORY, logits)


def test_allowed_tokens_take_an_automaton_and_ask_once_a_prefix():
    automaton = TokenAutomaton(0, {(0, 1): 1, (1, 0): 0, (1, 2): 0})
    asked = []

    def allowed(emitted):
        asked.append(emitted)
        return automaton(emitted)

    ids = torch.tensor([[3, 1], [3, 1], [0, 1]])
    result = AllowedTokens(allowed, prompt_length=1)(ids, LOGITS.expand(3, 4))
    assert (result > -math.inf).tolist() == [[True, False, True, False]] * 3
    assert asked == [(1,)]


def test_an_empty_permission_is_refused_with_its_history():
    with pytest.raises(SettingsError, match=r"allowed_tokens leaves no token.*\[1, 2\]"):
        AllowedTokens(lambda _: ())(torch.tensor([[1, 2]]), LOGITS)


def test_ids_outside_the_vocabulary_are_refused():
    with pytest.raises(SettingsError, match=r"allowed_tokens after \[2\].*4.*4 entries"):
        AllowedTokens(lambda _: (4,), prompt_length=1)(torch.tensor([[1, 2]]), LOGITS)
    for transform in (
        LogitBias({4: 1.0}),
        BadWords([[4]]),
        ForcedTokens({0: 4}),
        MinLength(1, [4]),
    ):
        with pytest.raises(SettingsError, match="token id 4"):
            transform(NO_HISTORY, LOGITS)


@pytest.mark.parametrize("minimum", [0, 5, 6, 7, 20])
def test_min_length_equals_transformers(histories, scores, minimum):
    theirs = hf.MinNewTokensLengthLogitsProcessor(3, minimum, [1, 4])(histories, scores)
    ours = MinLength(min_new_tokens=minimum, stop_token_ids=[1, 4], prompt_length=3)
    assert torch.equal(ours.apply(histories, scores), theirs)
    assert torch.equal(theirs, scores) == (minimum <= 6)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_forced_tokens_equal_transformers_first_and_last(histories, scores, length):
    ids = histories[:, :length]
    first = hf.ForcedBOSTokenLogitsProcessor(2)(ids, scores)
    last = hf.ForcedEOSTokenLogitsProcessor(4, 5)(ids, first)
    ours = ForcedTokens(forced={0: 2, 2: 5}, prompt_length=1)(ids, scores)
    assert torch.equal(ours, last)


def test_forced_tokens_win_over_the_model():
    logits = torch.tensor([[-math.inf, 0.0]])
    assert ForcedTokens({0: 0})(NO_HISTORY, logits).tolist() == [[0.0, -math.inf]]


@pytest.mark.parametrize(
    ("transform", "history", "cause"),
    [
        (NoRepeatNGram(1), [0, 1, 2, 3], "no_repeat_ngram_size"),
        (BadWords([[0], [1], [2], [3]]), [], "bad_words"),
        (LogitBias(dict.fromkeys(range(4), -math.inf)), [2], "logit_bias"),
        (MinLength(2, range(4)), [2], "min_new_tokens"),
    ],
)
def test_a_row_left_without_a_token_is_refused_by_cause_and_history(transform, history, cause):
    with pytest.raises(SettingsError, match=cause) as caught:
        kept(transform, history)
    assert str(history) in str(caught.value)


def test_long_histories_are_cut_in_messages():
    history = torch.arange(40).unsqueeze(0) % 4
    with pytest.raises(SettingsError, match=r"\[\.\.\., 0, 1, .*\] \(40 tokens, row 0\)"):
        NoRepeatNGram(1)(history, LOGITS)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: NoRepeatNGram(0), "ngram_size=0"),
        (lambda: BadWords([[]]), "bad_words"),
        (lambda: BadWords([[-1]]), "-1"),
        (lambda: LogitBias({0: math.nan}), "nan"),
        (lambda: LogitBias({0: math.inf}), "inf"),
        (lambda: LogitBias({-1: 0.0}), "-1"),
        (lambda: MinLength(-1, []), "min_new_tokens=-1"),
        (lambda: AllowedTokens([1, 2]), "allowed"),
        (lambda: ForcedTokens({-1: 0}), "-1"),
        (lambda: ForcedTokens({0: 1.5}), "1.5"),
    ],
)
def test_bad_parameters_are_refused(build, named):
    with pytest.raises(SettingsError, match=named):
        build()
