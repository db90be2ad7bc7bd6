from types import SimpleNamespace

import pytest

from specverify.errors import UsageError, VocabularyMismatch
from specverify.models.vocabulary import Vocabulary, compare

WORDS = ("a", "b", "c", "</s>")


def test_identical_vocabularies():
    relation = compare(
        Vocabulary(WORDS, {"eos_token": 3}), Vocabulary(tuple(WORDS), {"eos_token": 3})
    )
    assert relation.kind == "identical"
    assert relation.draft_to_target == relation.target_to_draft == (0, 1, 2, 3)


def test_identical_padding_on_both_sides():
    relation = compare(Vocabulary((*WORDS, None)), Vocabulary((*WORDS, None)))
    assert relation.kind == "identical"


def test_padded_sizes_are_mappable():
    relation = compare(Vocabulary((*WORDS, None, None)), Vocabulary((*WORDS, None)))
    assert relation.kind == "mappable"
    assert relation.draft_to_target == (0, 1, 2, 3, -1)
    assert relation.target_to_draft == (0, 1, 2, 3, -1, -1)


def test_permutation_is_mappable_in_both_directions():
    relation = compare(
        Vocabulary(WORDS, {"eos_token": 3}),
        Vocabulary(("</s>", None, "c", "a", "b"), {"eos_token": 0}),
    )
    assert relation.kind == "mappable"
    assert relation.draft_to_target == (3, -1, 2, 0, 1)
    assert relation.target_to_draft == (3, 4, 2, 0)


def test_different_string_at_one_id_is_quoted_from_both_sides():
    with pytest.raises(VocabularyMismatch) as caught:
        compare(Vocabulary(WORDS), Vocabulary(("a", "B", "c", "</s>")))
    message = str(caught.value)
    assert "id 1 is 'b' in the target and 'B' in the draft" in message
    assert "1 token of the target (first 'b', id 1) missing from the draft" in message
    assert "Use a draft trained with the target's tokenizer" in message


@pytest.mark.parametrize(
    ("target", "draft", "quoted"),
    [
        (WORDS, WORDS[:3], "id 3 is '</s>' in the target and beyond the end in the draft"),
        (WORDS[:3], WORDS, "id 3 is beyond the end in the target and '</s>' in the draft"),
        (WORDS, (*WORDS[:3], None), "id 3 is '</s>' in the target and padding in the draft"),
    ],
)
def test_a_missing_real_token_is_no_padding(target, draft, quoted):
    with pytest.raises(VocabularyMismatch) as caught:
        compare(Vocabulary(target), Vocabulary(draft))
    assert quoted in str(caught.value)


def test_strings_that_look_alike_differ():
    composed, decomposed = "\u00e9", "e\u0301"
    with pytest.raises(VocabularyMismatch):
        compare(Vocabulary((composed,)), Vocabulary((decomposed,)))


def test_roles_must_fall_on_the_same_string():
    with pytest.raises(VocabularyMismatch) as caught:
        compare(Vocabulary(WORDS, {"eos_token": 3}), Vocabulary(WORDS, {"eos_token": 2}))
    message = str(caught.value)
    assert "eos_token is '</s>' (id 3) in the target but 'c' (id 2) in the draft" in message
    assert "draft_tokenizer.eos_token = '</s>'" in message


def test_a_role_on_one_side_and_another_padding_token_are_fine():
    target = Vocabulary(WORDS, {"eos_token": 3, "pad_token": 3})
    assert compare(target, Vocabulary(WORDS, {"pad_token": 0})).kind == "identical"


def test_one_string_behind_two_ids_is_refused():
    with pytest.raises(UsageError, match="'a' stands behind both id 0 and id 2"):
        Vocabulary(("a", "b", "a"))


def test_a_role_without_token_is_refused():
    with pytest.raises(UsageError, match="eos_token is id 4, which has no token"):
        Vocabulary((*WORDS, None), {"eos_token": 4})


def tokenizer(entries, roles=None):
    return SimpleNamespace(get_vocab=lambda: entries, special_tokens_map=roles or {})


def test_from_tokenizer_fills_up_to_the_width_of_the_logits():
    roles = {"eos_token": "</s>", "extra_special_tokens": ["a"], "pad_token": "absent"}
    read = Vocabulary.from_tokenizer(tokenizer({"</s>": 3, "a": 0, "c": 2}, roles), 6)
    assert read.tokens == ("a", None, "c", "</s>", None, None)
    assert dict(read.special_tokens) == {"eos_token": 3}
    assert read.size == 6


def test_from_tokenizer_does_not_depend_on_the_order_of_its_dict():
    entries = {"x": 1, "y": 1, "a": 0}
    reversed_entries = dict(reversed(entries.items()))
    first = Vocabulary.from_tokenizer(tokenizer(entries))
    assert first == Vocabulary.from_tokenizer(tokenizer(reversed_entries))
    assert first.tokens == ("a", "x")


def test_a_tokenizer_with_more_ids_than_logits_is_refused():
    with pytest.raises(UsageError, match=r"tokenizer has id 3 \('</s>'\).* end at id 2"):
        Vocabulary.from_tokenizer(tokenizer({"a": 0, "</s>": 3}), 3)


def test_from_a_real_tokenizer():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<eos>": 2, "<unk>": 3}, "<unk>"))
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", unk_token="<unk>")
    read = Vocabulary.from_tokenizer(fast, 5)
    assert read.tokens == ("a", "b", "<eos>", "<unk>", None)
    assert read.special_tokens["eos_token"] == 2
