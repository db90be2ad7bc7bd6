"""Engine conventions: in which order transforms apply, and how ties and boundaries go."""

from dataclasses import dataclass

from specverify.errors import SettingsError
from specverify.transforms.truncation import TopPBoundary


@dataclass(frozen=True)
class Dialect:
    """What the same settings mean to one engine.

    Transforms are named as in `specverify.transforms.REFERENCE`.
    """

    name: str

    processors: tuple[str, ...]
    """Applied in this order to every row, greedy or not; extra processors come after them."""

    warpers: tuple[str, ...]
    """Applied in this order, after the processors, when the temperature is above 0."""

    keep_ties_at_k: bool
    """Top-k keeps every token that ties with the k-th; otherwise exactly k."""

    top_p_boundary: TopPBoundary
    """What top-p does with a token when the mass above it is exactly p."""

    bad_words_spare_stop_tokens: bool
    """A bad word that is just one stop token is ignored."""

    allowed_tokens_revive: bool
    """If all allowed tokens are already masked they become possible again, all alike."""


HUGGINGFACE = Dialect(
    name="huggingface",
    # transformers has no frequency or presence penalty: they stand with its own penalty, in the
    # order of vLLM. Forced tokens stand where it forces the first and the last token.
    processors=(
        "logit_bias",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "no_repeat_ngram",
        "bad_words",
        "min_length",
        "allowed_tokens",
        "forced_tokens",
    ),
    # transformers has neither top-n-sigma, which no temperature affects and which llama.cpp
    # applies before other truncations, nor XTC, which llama.cpp applies after them.
    warpers=(
        "temperature",
        "top_n_sigma",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "epsilon",
        "eta",
        "xtc",
    ),
    keep_ties_at_k=True,
    top_p_boundary="drop",
    bad_words_spare_stop_tokens=True,
    allowed_tokens_revive=True,
)
"""transformers 5.24, `GenerationMixin._get_logits_processor`."""

DIALECTS = {dialect.name: dialect for dialect in (HUGGINGFACE,)}
"""Every dialect that settings may name. A new engine is one more entry."""

ANNOUNCED = ("vllm", "llama.cpp", "sglang")
"""Engines whose dialect comes with a later version."""


def dialect(name: str) -> Dialect:
    """Look a dialect up.

    Raises:
        SettingsError: there is no such dialect, or not yet.
    """
    if name in DIALECTS:
        return DIALECTS[name]
    available = ", ".join(sorted(DIALECTS))
    if name in ANNOUNCED:
        raise SettingsError(
            f"dialect={name!r} comes with a later version of specverify; available: {available}"
        )
    raise SettingsError(f"dialect={name!r} is not known; available: {available}")
