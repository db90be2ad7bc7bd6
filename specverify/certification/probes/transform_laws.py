"""Which laws each reference transform obeys (algorithms.md section 2)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from specverify.certification.transform_case import SPARED
from specverify.subjects.protocols import Subject
from specverify.transforms.base import occurrences

Parameters = dict[str, Any]

Effect = Literal["truncates", "bans", "tempers", "moves"]
"""What a transform does to a row: make tokens impossible, judged by the row's own distribution or
by its history; change how far apart tokens are and not their order; or change any logit, and no
support."""

BEYOND_ANY_HISTORY = 1_000
"""Length of an n-gram that no history tried holds."""


@dataclass(frozen=True)
class Laws:
    """What is true of one reference, with the parameters to try it on."""

    effect: Effect
    ladder: tuple[Parameters, ...]
    """From strict to permissive: a truncation or ban keeps more at every step, and of the others
    the tokens that `favoured` names gain."""
    neutral: tuple[Parameters, ...]
    """With these nothing changes."""
    large: Parameters
    """For a vocabulary of 50,000; token ids lie beyond what 15 bits hold where there are any."""
    from_the_top: bool = False
    """Whether no token survives while a likelier one does not."""
    idempotent: bool = False
    """Whether a second application changes nothing."""
    shift: bool = True
    """Whether a constant added to the logits changes nothing."""
    cooled: Callable[[Parameters, float], Parameters] | None = None
    """The parameters under which, on logits divided by a temperature, it does what it did before
    with the parameters given; None where there are none."""
    strictest: Parameters | None = None
    """As little as a truncation may be asked to keep."""
    more: tuple[Parameters, ...] = ()
    """Further parameters for rows of unusual size."""

    @property
    def masks(self) -> bool:
        """Whether it may make tokens impossible; then it changes nothing else."""
        return self.effect in ("truncates", "bans")


def _each(name: str, *values: Any) -> tuple[Parameters, ...]:
    return tuple({name: value} for value in values)


def _same(parameters: Parameters, temperature: float) -> Parameters:
    return parameters


def _min_p_cooled(parameters: Parameters, temperature: float) -> Parameters:
    """A ratio of probabilities r becomes r^(1/T), so its limit does."""
    return {"min_p": parameters["min_p"] ** (1 / temperature)}


LAWS: dict[str, Laws] = {
    "temperature": Laws(
        "tempers",
        _each("temperature", 100.0, 5.0, 1.7, 1.0, 0.5, 0.1),
        _each("temperature", 1.0),
        {"temperature": 0.7},
        cooled=_same,
    ),
    "top_k": Laws(
        "truncates",
        _each("top_k", 1, 2, 4, 7, 9, 12, 16, 40),
        _each("top_k", 16, 100),
        {"top_k": 50},
        from_the_top=True,
        idempotent=True,
        cooled=_same,
        strictest={"top_k": 1},
    ),
    "top_p": Laws(
        "truncates",
        _each("top_p", 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0),
        _each("top_p", 1.0),
        {"top_p": 0.9},
        from_the_top=True,
        strictest={"top_p": 1e-8},
    ),
    "min_p": Laws(
        "truncates",
        _each("min_p", 1.0, 0.7, 0.4, 0.2, 0.05, 0.01, 0.0),
        _each("min_p", 0.0),
        {"min_p": 0.05},
        from_the_top=True,
        idempotent=True,
        cooled=_min_p_cooled,
        strictest={"min_p": 1.0},
    ),
    "typical_p": Laws(
        "truncates",
        _each("typical_p", 0.05, 0.3, 0.5, 0.7, 0.95),
        _each("typical_p", 1.0),
        {"typical_p": 0.9},
        strictest={"typical_p": 1e-8},
    ),
    "epsilon": Laws(
        "truncates",
        _each("epsilon", 0.6, 0.3, 0.2, 0.1, 0.03, 0.001),
        _each("epsilon", 1e-30),
        {"epsilon": 1e-4},
        from_the_top=True,
        idempotent=True,
        strictest={"epsilon": 0.99},
    ),
    "eta": Laws(
        "truncates",
        _each("epsilon", 0.6, 0.3, 0.1, 0.03, 0.001),
        _each("epsilon", 1e-30),
        {"epsilon": 1e-3},
        from_the_top=True,
        strictest={"epsilon": 0.99},
    ),
    "top_n_sigma": Laws(
        "truncates",
        _each("n", 0.1, 0.5, 1.0, 1.5, 2.0, 4.0),
        _each("n", 1e6),
        {"n": 2.0},
        from_the_top=True,
        cooled=_same,
        strictest={"n": 1e-4},
    ),
    "repetition_penalty": Laws(
        "moves",
        _each("penalty", 3.0, 1.5, 1.2, 1.0, 0.8),
        _each("penalty", 1.0),
        {"penalty": 1.3},
        shift=False,
        cooled=_same,
    ),
    "frequency_penalty": Laws(
        "moves",
        _each("penalty", 2.0, 0.5, 0.1, 0.0, -0.5),
        _each("penalty", 0.0),
        {"penalty": 0.5},
        more=_each("penalty", 0.01, -0.01),
    ),
    "presence_penalty": Laws(
        "moves",
        _each("penalty", 2.0, 0.5, 0.1, 0.0, -0.5),
        _each("penalty", 0.0),
        {"penalty": 0.5},
    ),
    "no_repeat_ngram": Laws(
        "bans",
        _each("ngram_size", 1, 2, 3, 4),
        _each("ngram_size", BEYOND_ANY_HISTORY),
        {"ngram_size": 2},
        idempotent=True,
        cooled=_same,
    ),
    "bad_words": Laws(
        "bans",
        _each("bad_words", [[1], [2], [3, 4]], [[1], [2]], [[1]]),
        _each("bad_words", [[SPARED, 0]]),
        {"bad_words": [[40_001], [40_002, 49_998]]},
        idempotent=True,
        cooled=_same,
    ),
    "logit_bias": Laws(
        "moves",
        tuple({"bias": {0: bias, 3: bias}} for bias in (-8.0, -2.0, 0.0, 1.5, 8.0)),
        _each("bias", {0: 0.0, 3: 0.0}),
        {"bias": {40_000: 1.5, 49_999: -2.0}},
    ),
}
"""The laws of every reference of `transform_case.PARAMETERS`."""


def laws_of(subject: Subject) -> Laws:
    """Those of the reference that a subject names; see `has_reference`."""
    return LAWS[str(subject.reference)]


def has_reference(subject: Subject) -> str | None:
    """Need of every law: a subject that names a reference whose laws are known."""
    if subject.reference in LAWS:
        return None
    return f"the laws of a transform are those of its reference, and {subject.reference!r} is none"


def obeys(law: Callable[[Laws], object], otherwise: str) -> Callable[[Subject], str | None]:
    """Need of a law that only some references obey.

    Args:
        law: whether it holds.
        otherwise: what is said where it does not, after the name of the reference.
    """

    def need(subject: Subject) -> str | None:
        missing = has_reference(subject)
        if missing is not None or law(laws_of(subject)):
            return missing
        return f"{subject.reference} {otherwise}"

    return need


def favoured(reference: str, parameters: Parameters, ids: Tensor, logits: Tensor) -> Tensor:
    """Tokens whose probability grows along the ladder of a transform that masks nothing.

    Args:
        reference: its name.
        parameters: of one step of the ladder.
        ids: long [B, T].
        logits: [B, V].

    Returns:
        bool [B, V].
    """
    if reference == "temperature":
        return logits == logits.amax(-1, keepdim=True)
    if reference == "logit_bias":
        named = torch.zeros_like(logits, dtype=torch.bool)
        named[:, list(parameters["bias"])] = True
        return named
    return occurrences(ids, logits.shape[-1]) > 0


def renamed(parameters: Parameters, names: list[int]) -> Parameters:
    """Parameters in which token `i` is called `names[i]`."""
    changed = dict(parameters)
    if "bias" in parameters:
        changed["bias"] = {names[token]: bias for token, bias in parameters["bias"].items()}
    if "bad_words" in parameters:
        changed["bad_words"] = [[names[t] for t in word] for word in parameters["bad_words"]]
    return changed
