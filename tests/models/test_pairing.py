import pytest

from specverify.errors import CacheNotRollable, VocabularyMismatch
from specverify.models.glass_box import GlassBoxModel, RecurrentGlassBoxModel
from specverify.models.mapped import MappedModel
from specverify.models.pairing import check_pair
from specverify.models.table import TableModel
from specverify.models.transformers_model import TransformersModel
from specverify.models.vocabulary import Vocabulary


def table(words=None, size=3):
    vocabulary = None if words is None else Vocabulary(tuple(words))
    return TableModel(TableModel.random(size, 1, 0).logits, 1, vocabulary=vocabulary)


def test_without_vocabularies_the_sizes_decide():
    draft = table()
    assert check_pair(table(), draft) is draft
    with pytest.raises(VocabularyMismatch, match=r"4 token ids, the draft 3.*tokenizer"):
        check_pair(table(size=4), draft)


def test_known_vocabularies_are_compared():
    draft = table("abc")
    assert check_pair(table("abc"), draft) is draft
    mapped = check_pair(table("bca"), draft)
    assert isinstance(mapped, MappedModel)
    assert mapped.model is draft
    with pytest.raises(VocabularyMismatch, match="id 2 is 'c' in the target and 'x' in the draft"):
        check_pair(table("abc"), table("abx"))


@pytest.mark.parametrize("unknown", ["target", "draft"])
def test_one_unknown_vocabulary_is_refused(unknown):
    pair = (table(), table("abc")) if unknown == "target" else (table("abc"), table())
    with pytest.raises(VocabularyMismatch, match=f"pass the {unknown}'s tokenizer"):
        check_pair(*pair)


def test_a_model_that_drafts_for_itself_needs_no_comparison():
    model = GlassBoxModel.from_table(table())
    draft = TransformersModel(model)
    draft.vocabulary = Vocabulary(tuple("abc"))
    assert check_pair(TransformersModel(model), draft) is draft


@pytest.mark.parametrize("side", [0, 1])
def test_a_model_that_cannot_roll_back_is_refused_on_either_side(side):
    pair = [table(), table()]
    pair[side] = TransformersModel(RecurrentGlassBoxModel.from_table(table()))
    with pytest.raises(CacheNotRollable, match="RecurrentGlassBoxModel"):
        check_pair(*pair)
