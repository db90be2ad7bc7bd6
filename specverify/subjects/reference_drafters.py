"""specverify's own decoder with drafts that need no draft model: early exit and prompt lookup.

Both ignore the draft of the pair. Their tokens are therefore not declared to be drawn from it, even
where early exit happens to draft with the very layers that the pair's draft is made of: what a
subject declares holds for every pair.
"""

from typing import Any

from specverify.errors import UsageError
from specverify.models.protocol import LanguageModel
from specverify.quoting import a_type
from specverify.subjects.reference import reference_subject


def _early_exit(target: LanguageModel, draft: LanguageModel) -> Any:
    """The target's first layers: as many as the draft is made of, if it is, otherwise half."""
    from specverify.drafting.early_exit import EarlyExitDrafter, LayeredModel

    if not isinstance(target, LayeredModel):
        raise UsageError(
            f"the target is {a_type(target)}, which has no layers to leave early; choose "
            "a pair of transformers models, e.g. --pair trained, or certify reference"
        )
    whole, cut = _layers(target), _layers(draft)
    first = [layer is ours for layer, ours in zip(cut, whole, strict=False)]
    shared = 0 < len(cut) < len(whole) and all(first)
    return EarlyExitDrafter(target, len(cut) if shared else max(1, len(whole) // 2))


def _prompt_lookup(target: LanguageModel, draft: LanguageModel) -> Any:
    from specverify.drafting.prompt_lookup import PromptLookup

    return PromptLookup()


def _layers(model: Any) -> list[Any]:
    """Decoder layers, empty where they are laid out otherwise; leaving those early says so."""
    inner = getattr(getattr(model, "model", None), "model", None)
    return list(getattr(inner, "layers", ()))


EARLY_EXIT = reference_subject(
    "reference-early-exit",
    "token",
    "specverify's decoder, drafting with the target's first layers on its cache",
    _early_exit,
    tiny_models=False,
)
PROMPT_LOOKUP = reference_subject(
    "reference-prompt-lookup",
    "token",
    "specverify's decoder, drafting by n-gram lookup in the text so far",
    _prompt_lookup,
)
