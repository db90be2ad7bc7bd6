"""Reference transforms: logits to logits in float64, and the pipeline that composes them."""

from collections.abc import Callable

from specverify.transforms.automaton import TokenAutomaton
from specverify.transforms.base import Constraint, RandomTransform, Transform
from specverify.transforms.constraints import (
    AllowedTokens,
    BadWords,
    ForcedTokens,
    LogitBias,
    MinLength,
    NoRepeatNGram,
)
from specverify.transforms.dialects import DIALECTS, Dialect, dialect
from specverify.transforms.penalties import FrequencyPenalty, PresencePenalty, RepetitionPenalty
from specverify.transforms.pipeline import Pipeline
from specverify.transforms.random import XTC
from specverify.transforms.temperature import Greedy, Temperature
from specverify.transforms.truncation import (
    EpsilonCutoff,
    EtaCutoff,
    MinP,
    TopK,
    TopNSigma,
    TopP,
    TypicalP,
)

REFERENCE: dict[str, Callable[..., Transform]] = {
    "temperature": Temperature,
    "top_k": TopK,
    "top_p": TopP,
    "min_p": MinP,
    "typical_p": TypicalP,
    "epsilon": EpsilonCutoff,
    "eta": EtaCutoff,
    "top_n_sigma": TopNSigma,
    "xtc": XTC,
    "repetition_penalty": RepetitionPenalty,
    "frequency_penalty": FrequencyPenalty,
    "presence_penalty": PresencePenalty,
    "no_repeat_ngram": NoRepeatNGram,
    "bad_words": BadWords,
    "logit_bias": LogitBias,
    "allowed_tokens": AllowedTokens,
    "min_length": MinLength,
    "forced_tokens": ForcedTokens,
}
"""Factories by the name a transform subject declares as its reference."""

__all__ = [
    "DIALECTS",
    "REFERENCE",
    "XTC",
    "AllowedTokens",
    "BadWords",
    "Constraint",
    "Dialect",
    "EpsilonCutoff",
    "EtaCutoff",
    "ForcedTokens",
    "FrequencyPenalty",
    "Greedy",
    "LogitBias",
    "MinLength",
    "MinP",
    "NoRepeatNGram",
    "Pipeline",
    "PresencePenalty",
    "RandomTransform",
    "RepetitionPenalty",
    "Temperature",
    "TokenAutomaton",
    "TopK",
    "TopNSigma",
    "TopP",
    "Transform",
    "TypicalP",
    "dialect",
]
