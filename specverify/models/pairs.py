"""Pairs: a target and a draft to test on, with prompts, found by name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from specverify.errors import UsageError, VocabularyMismatch
from specverify.lookup import did_you_mean, entry_point_names, import_object, load_entry_point
from specverify.models.vocabulary import Relation, Vocabulary, compare

ModelClass = Literal["language_model", "transformers"]
MODEL_CLASSES: tuple[ModelClass, ...] = get_args(ModelClass)
"""`language_model`: specverify's own protocol. `transformers`: a `PreTrainedModel`."""

GROUP = "specverify.pairs"
"""Entry-point group in which packages register their pairs."""

Vocabularies = tuple[Vocabulary | None, Vocabulary | None]


def _no_vocabularies() -> Vocabularies:
    return None, None


@dataclass(frozen=True)
class Pair:
    """A target and a draft to test on.

    Attributes:
        name: how the command line and certificates call it.
        summary: one sentence on what it is.
        prompts: token ids of the prompts, of different lengths, without padding.
        load: `load(model_class)` returns a fresh (target, draft) of that class, unrelated so far.
        num_draft_tokens: block length K to test with.
        model_classes: what `open` can return.
        read_vocabularies: returns the vocabularies of target and draft, None where there is none;
            called at most once, when they are first needed.
    """

    name: str
    summary: str
    prompts: tuple[tuple[int, ...], ...]
    load: Callable[[ModelClass], tuple[Any, Any]]
    num_draft_tokens: int = 4
    model_classes: tuple[ModelClass, ...] = MODEL_CLASSES
    read_vocabularies: Callable[[], Vocabularies] = _no_vocabularies

    @cached_property
    def vocabularies(self) -> Vocabularies:
        """Vocabularies of target and draft, None for models defined on ids alone."""
        return self.read_vocabularies()

    @cached_property
    def relation(self) -> Relation | None:
        """How the draft's ids correspond to the target's; None when neither has a vocabulary.

        Raises:
            VocabularyMismatch: they differ, or one of the two is unknown.
        """
        target, draft = self.vocabularies
        if target is not None and draft is not None:
            return compare(target, draft)
        if target is None and draft is None:
            return None
        unknown = "draft" if draft is None else "target"
        raise VocabularyMismatch(
            f"pair {self.name!r} has no vocabulary for its {unknown}, so the ids of target and "
            f"draft cannot be compared; let read_vocabularies return both, or neither"
        )

    def open(self, model_class: ModelClass) -> tuple[Any, Any]:
        """Load the models and make sure that they share their ids.

        Args:
            model_class: `language_model` for two `LanguageModel`s, the draft mapped to the
                target's ids if need be; `transformers` for two `PreTrainedModel`s.

        Raises:
            UsageError: the pair has no models of this class, or its draft needs a mapping that
                bare transformers models cannot carry.
            VocabularyMismatch: target and draft do not share their tokens.
            CacheNotRollable: a `language_model` cannot take back rejected drafts.
        """
        if model_class not in self.model_classes:
            raise UsageError(
                f"pair {self.name!r} has no models of class {model_class!r}; it offers "
                f"{', '.join(self.model_classes)}"
            )
        mapped = self.relation is not None and self.relation.kind == "mappable"
        if mapped and model_class == "transformers":
            raise UsageError(
                f"the draft of pair {self.name!r} numbers its tokens differently from the target; "
                "a mapped draft can only be opened as 'language_model': choose a subject that "
                "decodes specverify models, or a draft with the target's token ids"
            )
        from specverify.models.pairing import check_pair, check_sizes

        target, draft = self.load(model_class)
        if model_class == "language_model":
            return target, check_pair(target, draft)
        if self.relation is None:
            check_sizes(
                *(m.config.get_text_config(decoder=True).vocab_size for m in (target, draft))
            )
        return target, draft


def pair_names() -> tuple[str, ...]:
    """Names of all registered pairs, sorted."""
    return tuple(entry_point_names(GROUP))


def load_pair(spec: str) -> Pair:
    """Find a pair by its registered name, its place in a module, or its models' directories.

    Args:
        spec: a name from `pair_names()`; `package.module:object`; or `TARGET_DIR,DRAFT_DIR`, two
            local directories as `save_pretrained` writes them, with their tokenizers.

    Raises:
        UsageError: nothing is found there, or what is found is no `Pair`.
    """
    if "," in spec:
        from specverify.models.local_pair import pair_from_directories

        target_dir, _, draft_dir = spec.partition(",")
        return pair_from_directories(target_dir.strip(), draft_dir.strip())
    names = entry_point_names(GROUP)
    if spec in names:
        return _checked(spec, load_entry_point(GROUP, spec))
    if ":" in spec:
        return _checked(spec, import_object(spec))
    raise UsageError(
        f"unknown pair {spec!r}{did_you_mean(spec, names)}; choose one of "
        f"{', '.join(names) or 'none'}, or name your own as package.module:object or as "
        "TARGET_DIR,DRAFT_DIR"
    )


def _checked(spec: str, found: Any) -> Pair:
    if not isinstance(found, Pair):
        raise UsageError(
            f"{spec!r} names a {type(found).__name__}, not a Pair; point to an instance of "
            "specverify.models.pairs.Pair"
        )
    return found
