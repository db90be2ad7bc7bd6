"""Whether a target and a draft can be decoded together."""

from specverify.errors import VocabularyMismatch
from specverify.models.mapped import MappedModel
from specverify.models.protocol import LanguageModel
from specverify.models.vocabulary import compare


def check_pair(target: LanguageModel, draft: LanguageModel) -> LanguageModel:
    """Return the draft as it must be used with this target, or say why the two do not fit.

    - Both vocabularies known: they are compared; a draft whose ids are permuted or padded is
      returned as a `MappedModel`.
    - Neither known (table models, transformers models without a tokenizer): their sizes must
      agree, and the ids are taken to mean the same.
    - A `MappedModel` for a target without a vocabulary: whoever mapped it has compared them.
    - One known: refused, because half the evidence is on the table and proves nothing. A model
      that drafts for itself needs no comparison.

    Raises:
        VocabularyMismatch: the ids do not mean the same, or cannot be compared.
        CacheNotRollable: one of the two keeps a past that drafts cannot be taken out of.
    """
    for model in (target, draft):
        check_rollable(model)
    if _same_model(target, draft):
        return draft
    if target.vocabulary is not None and draft.vocabulary is not None:
        relation = compare(target.vocabulary, draft.vocabulary)
        return draft if relation.kind == "identical" else MappedModel(draft, relation)
    mapped_by_hand = target.vocabulary is None and isinstance(draft, MappedModel)
    if mapped_by_hand or (target.vocabulary is None and draft.vocabulary is None):
        check_sizes(target.vocab_size, draft.vocab_size)
        return draft
    known, unknown = ("target", "draft") if draft.vocabulary is None else ("draft", "target")
    raise VocabularyMismatch(
        f"the {known} has a vocabulary and the {unknown} has none, so their ids (0 to "
        f"{target.vocab_size - 1} in the target, 0 to {draft.vocab_size - 1} in the draft) cannot "
        f"be compared; pass the {unknown}'s tokenizer too: TransformersModel(model, tokenizer=...)"
    )


def check_rollable(model: LanguageModel) -> None:
    """Raise `CacheNotRollable` if the model is known to keep a past it cannot forget."""
    check = getattr(model, "check_rollable", None)
    if check is not None:
        check()


def check_sizes(target: int, draft: int) -> None:
    """Raise `VocabularyMismatch` if two models without vocabularies differ in their size."""
    if target != draft:
        raise VocabularyMismatch(
            f"the target has {target} token ids, the draft {draft}, and neither has a vocabulary "
            "to map them by; pass both tokenizers: TransformersModel(model, tokenizer=...)"
        )


def _same_model(target: LanguageModel, draft: LanguageModel) -> bool:
    ours, theirs = (getattr(model, "model", model) for model in (target, draft))
    return ours is theirs
