"""Which laws each reference transform obeys (algorithms.md section 2)."""

from collections.abc import Callable

import torch
from torch import Tensor

from specverify.certification.probes.constraint_laws import CONSTRAINTS
from specverify.certification.probes.transform_law import Laws, Parameters, each, same
from specverify.subjects.protocols import Subject
from specverify.transforms.base import occurrences


def _min_p_cooled(parameters: Parameters, temperature: float) -> Parameters:
    """A ratio of probabilities r becomes r^(1/T), so its limit does."""
    return {"min_p": parameters["min_p"] ** (1 / temperature)}


LAWS: dict[str, Laws] = {
    "temperature": Laws(
        "tempers",
        each("temperature", 100.0, 5.0, 1.7, 1.0, 0.5, 0.1),
        each("temperature", 1.0),
        {"temperature": 0.7},
        cooled=same,
    ),
    "top_k": Laws(
        "truncates",
        each("top_k", 1, 2, 4, 7, 9, 12, 16, 40),
        each("top_k", 16, 100),
        {"top_k": 50},
        from_the_top=True,
        idempotent=True,
        cooled=same,
        strictest={"top_k": 1},
    ),
    "top_p": Laws(
        "truncates",
        each("top_p", 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0),
        each("top_p", 1.0),
        {"top_p": 0.9},
        from_the_top=True,
        strictest={"top_p": 1e-8},
    ),
    "min_p": Laws(
        "truncates",
        each("min_p", 1.0, 0.7, 0.4, 0.2, 0.05, 0.01, 0.0),
        each("min_p", 0.0),
        {"min_p": 0.05},
        from_the_top=True,
        idempotent=True,
        cooled=_min_p_cooled,
        strictest={"min_p": 1.0},
    ),
    "typical_p": Laws(
        "truncates",
        each("typical_p", 0.05, 0.3, 0.5, 0.7, 0.95),
        each("typical_p", 1.0),
        {"typical_p": 0.9},
        strictest={"typical_p": 1e-8},
    ),
    "epsilon": Laws(
        "truncates",
        each("epsilon", 0.6, 0.3, 0.2, 0.1, 0.03, 0.001),
        each("epsilon", 1e-30),
        {"epsilon": 1e-4},
        from_the_top=True,
        idempotent=True,
        strictest={"epsilon": 0.99},
    ),
    "eta": Laws(
        "truncates",
        each("epsilon", 0.6, 0.3, 0.1, 0.03, 0.001),
        each("epsilon", 1e-30),
        {"epsilon": 1e-3},
        from_the_top=True,
        strictest={"epsilon": 0.99},
    ),
    "top_n_sigma": Laws(
        "truncates",
        each("n", 0.1, 0.5, 1.0, 1.5, 2.0, 4.0),
        each("n", 1e6),
        {"n": 2.0},
        from_the_top=True,
        cooled=same,
        strictest={"n": 1e-4},
    ),
    "repetition_penalty": Laws(
        "moves",
        each("penalty", 3.0, 1.5, 1.2, 1.0, 0.8),
        each("penalty", 1.0),
        {"penalty": 1.3},
        shift=False,
        cooled=same,
    ),
    "frequency_penalty": Laws(
        "moves",
        each("penalty", 2.0, 0.5, 0.1, 0.0, -0.5),
        each("penalty", 0.0),
        {"penalty": 0.5},
        more=each("penalty", 0.01, -0.01),
    ),
    "presence_penalty": Laws(
        "moves",
        each("penalty", 2.0, 0.5, 0.1, 0.0, -0.5),
        each("penalty", 0.0),
        {"penalty": 0.5},
    ),
    "logit_bias": Laws(
        "moves",
        tuple({"bias": {0: bias, 3: bias}} for bias in (-8.0, -2.0, 0.0, 1.5, 8.0)),
        each("bias", {0: 0.0, 3: 0.0}),
        {"bias": {40_000: 1.5, 49_999: -2.0}},
    ),
    **CONSTRAINTS,
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
    if "stop_token_ids" in parameters:
        changed["stop_token_ids"] = [names[token] for token in parameters["stop_token_ids"]]
    if "forced" in parameters:
        changed["forced"] = {at: names[token] for at, token in parameters["forced"].items()}
    if "allowed" in parameters:
        changed["allowed"] = parameters["allowed"].renamed(names)
    return changed
