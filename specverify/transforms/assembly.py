"""From settings to the list of transforms of one row, neutral ones left out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Generator

from specverify.settings import SamplingSettings
from specverify.transforms.base import Transform
from specverify.transforms.constraints import (
    AllowedTokens,
    BadWords,
    ForcedTokens,
    LogitBias,
    MinLength,
    NoRepeatNGram,
)
from specverify.transforms.dialects import Dialect
from specverify.transforms.penalties import FrequencyPenalty, PresencePenalty, RepetitionPenalty
from specverify.transforms.random import XTC
from specverify.transforms.temperature import Temperature
from specverify.transforms.truncation import (
    EpsilonCutoff,
    EtaCutoff,
    MinP,
    TopK,
    TopNSigma,
    TopP,
    TypicalP,
)

_XTC_NEVER_ABOVE = 0.5


@dataclass(frozen=True)
class Context:
    """Everything a transform may be built from."""

    settings: SamplingSettings
    dialect: Dialect
    vocab_size: int
    prompt_length: int
    generator: Generator | None


def assemble(names: Sequence[str], context: Context) -> list[Transform]:
    """The transforms of these names that the settings switch on, in this order."""
    built = (_BUILDERS[name](context) for name in names)
    return [transform for transform in built if transform is not None]


def depends_on_prompt_length(settings: SamplingSettings) -> bool:
    """Whether some transform tells the prompt from the output."""
    return bool(
        settings.frequency_penalty
        or settings.presence_penalty
        or settings.min_new_tokens
        or settings.allowed_tokens is not None
        or settings.forced_tokens
    )


def _min_length(c: Context) -> Transform | None:
    s = c.settings
    if not (s.min_new_tokens and s.stop_token_ids):
        return None
    return MinLength(s.min_new_tokens, s.stop_token_ids, c.prompt_length)


def _bad_words(c: Context) -> Transform | None:
    spared = c.settings.stop_token_ids if c.dialect.bad_words_spare_stop_tokens else ()
    return BadWords(c.settings.bad_words, spared) if c.settings.bad_words else None


def _allowed_tokens(c: Context) -> Transform | None:
    if c.settings.allowed_tokens is None:
        return None
    return AllowedTokens(
        c.settings.allowed_tokens, c.prompt_length, revive=c.dialect.allowed_tokens_revive
    )


def _top_k(c: Context) -> Transform | None:
    k = c.settings.top_k
    if k is None or k >= c.vocab_size:
        return None
    return TopK(k, keep_ties=c.dialect.keep_ties_at_k)


def _top_p(c: Context) -> Transform | None:
    p = c.settings.top_p
    return None if p in (None, 1.0) else TopP(p, boundary=c.dialect.top_p_boundary)


def _xtc(c: Context) -> Transform | None:
    s = c.settings
    if s.xtc_probability == 0 or s.xtc_threshold > _XTC_NEVER_ABOVE:
        return None
    return XTC(s.xtc_probability, s.xtc_threshold, c.generator)


_BUILDERS: dict[str, Callable[[Context], Transform | None]] = {
    "logit_bias": lambda c: LogitBias(c.settings.logit_bias) if c.settings.logit_bias else None,
    "repetition_penalty": lambda c: (
        RepetitionPenalty(c.settings.repetition_penalty)
        if c.settings.repetition_penalty != 1
        else None
    ),
    "frequency_penalty": lambda c: (
        FrequencyPenalty(c.settings.frequency_penalty, c.prompt_length)
        if c.settings.frequency_penalty
        else None
    ),
    "presence_penalty": lambda c: (
        PresencePenalty(c.settings.presence_penalty, c.prompt_length)
        if c.settings.presence_penalty
        else None
    ),
    "no_repeat_ngram": lambda c: (
        NoRepeatNGram(c.settings.no_repeat_ngram_size) if c.settings.no_repeat_ngram_size else None
    ),
    "bad_words": _bad_words,
    "min_length": _min_length,
    "allowed_tokens": _allowed_tokens,
    "forced_tokens": lambda c: (
        ForcedTokens(c.settings.forced_tokens, c.prompt_length)
        if c.settings.forced_tokens
        else None
    ),
    "temperature": lambda c: (
        Temperature(c.settings.temperature) if c.settings.temperature != 1 else None
    ),
    "top_n_sigma": lambda c: TopNSigma(c.settings.top_n_sigma) if c.settings.top_n_sigma else None,
    "top_k": _top_k,
    "top_p": _top_p,
    "min_p": lambda c: MinP(c.settings.min_p) if c.settings.min_p else None,
    "typical_p": lambda c: (
        TypicalP(c.settings.typical_p) if c.settings.typical_p not in (None, 1.0) else None
    ),
    "epsilon": lambda c: (
        EpsilonCutoff(c.settings.epsilon_cutoff) if c.settings.epsilon_cutoff else None
    ),
    "eta": lambda c: EtaCutoff(c.settings.eta_cutoff) if c.settings.eta_cutoff else None,
    "xtc": _xtc,
}
