"""One case of a transform: a reference, its parameters, and logits that tell conventions apart."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from specverify.certification.allowed_in_turn import AllowedInTurn
from specverify.errors import UsageError
from specverify.lookup import did_you_mean
from specverify.transforms import REFERENCE, Transform

ROWS = 256
HISTORY = 12
VOCAB_SIZE = 16
SPARED = 5
"""A token that no history holds and no row masks, so that something stays possible."""

_HALVINGS = (
    (0, 1, 2, 2),
    (0, 0, 0, 1, 1),
    (0, 0, 1, 1, 1, 2, 2),
    (0, 1, 1, 1, 1, 1, 2, 2),
    (0,) * 8,
)
"""Rows of probabilities 2^-k of the largest, the rest masked. They sum exactly, since exp(-k ln 2)
is exact in float32 and float64 for k up to 2, and no surprise is as far above the entropy as
another is below it, which typical sampling would have to decide by rounding."""

PARAMETERS: dict[str, tuple[dict[str, Any], ...]] = {
    "temperature": ({"temperature": 0.5}, {"temperature": 1.0}, {"temperature": 1.7}),
    "top_k": ({"top_k": 1}, {"top_k": 3}, {"top_k": 8}, {"top_k": 100}),
    "top_p": ({"top_p": 0.25}, {"top_p": 0.5}, {"top_p": 0.75}, {"top_p": 0.9}, {"top_p": 1.0}),
    "min_p": ({"min_p": 0.0}, {"min_p": 0.05}, {"min_p": 0.25}, {"min_p": 1.0}),
    "typical_p": ({"typical_p": 0.2}, {"typical_p": 0.5}, {"typical_p": 0.9}),
    "epsilon": ({"epsilon": 0.01}, {"epsilon": 0.1}, {"epsilon": 0.125}, {"epsilon": 0.25}),
    "eta": ({"epsilon": 0.001}, {"epsilon": 0.05}),
    "top_n_sigma": ({"n": 0.5}, {"n": 1.0}, {"n": 2.0}),
    "repetition_penalty": ({"penalty": 0.8}, {"penalty": 1.0}, {"penalty": 1.5}),
    "frequency_penalty": ({"penalty": 0.5}, {"penalty": -0.5}),
    "presence_penalty": ({"penalty": 0.5}, {"penalty": -0.5}),
    "no_repeat_ngram": ({"ngram_size": 1}, {"ngram_size": 2}, {"ngram_size": 3}),
    "bad_words": ({"bad_words": [[1], [2, 3]]}, {"bad_words": [[0, 1, 2], [4]]}),
    "logit_bias": ({"bias": {0: 1.5, 3: -2.0}},),
    "allowed_tokens": tuple(
        {"allowed": AllowedInTurn(sets, turning), "prompt_length": prompt_length}
        for sets, turning, prompt_length in (
            (((0, 3, 5), (1, 2, 4, 5)), (0, 2, 3), 0),
            (((0, 2, 5), (3, 5), (1, 2, 3, 4, 5)), (1, 2, 7), 1),
            (((1, 4, 5),), (), 0),
        )
    ),
    "min_length": tuple(
        {"min_new_tokens": least, "stop_token_ids": stops, "prompt_length": prompt_length}
        for least, stops, prompt_length in (
            (HISTORY + 1, [0], 0),
            (HISTORY, [0], 0),
            (HISTORY, [2, 4], 1),
            (5, [1, 3], 0),
        )
    ),
    "forced_tokens": tuple(
        {"forced": forced, "prompt_length": prompt_length}
        for forced, prompt_length in (
            ({5: 2, HISTORY: SPARED}, 0),
            ({4: 0, HISTORY - 1: SPARED, HISTORY + 1: SPARED}, 0),
            ({4: 3, HISTORY - 1: SPARED}, 1),
        )
    ),
}
"""Parameters tried for each reference, on both sides of the lengths at which constraints change:
that of the histories, and those of `exact_transform`, 4 to 6.

None may lose a row its last token, nor bring a masked token back, which `transforms.support` takes
for a mistake: so `SPARED` is always allowed, and forced where histories have `HISTORY` tokens. No
prompt is longer than the shortest history that is tried, of one token."""

RANDOM_PARAMETERS: dict[str, tuple[dict[str, Any], ...]] = {
    "xtc": (
        {"probability": 1.0, "threshold": 0.25},
        {"probability": 0.5, "threshold": 0.1},
        {"probability": 0.25, "threshold": 0.05},
        {"probability": 0.0, "threshold": 0.1},
    ),
}
"""The same for references that toss coins. A single pair of outputs says nothing about them, so
their laws are computed (`random_transform`), and no property that calls them once is asked."""


@dataclass(frozen=True)
class TransformCase:
    """Parameters of one transform, to be compared on the whole corpus."""

    id: str
    reference: str
    parameters: dict[str, Any]

    @property
    def thresholds(self) -> dict[str, float]:
        """Real parameters, such as what probabilities are compared with; no weight of a coin."""
        return {
            name: entry
            for name, entry in self.parameters.items()
            if isinstance(entry, float) and name != "probability"
        }

    @property
    def random(self) -> bool:
        """Whether the reference tosses coins."""
        return self.reference in RANDOM_PARAMETERS

    @property
    def record(self) -> dict[str, Any]:
        """Reference and parameters in JSON's types."""
        parameters = {name: _json(value) for name, value in self.parameters.items()}
        return {"reference": self.reference, **parameters}

    def build_reference(self, scaled: float = 1.0) -> Transform:
        """The reference transform with these parameters, real ones multiplied by `scaled`.

        One that is at most 1 stays so, since it may be a probability.
        """
        moved = {
            name: min(value * scaled, 1.0) if value <= 1 else value * scaled
            for name, value in self.thresholds.items()
        }
        return REFERENCE[self.reference](**self.parameters | moved)


def _json(value: Any) -> Any:
    if isinstance(value, AllowedInTurn):
        return value.record
    if isinstance(value, dict):
        return {str(key): entry for key, entry in value.items()}
    return value


def loaded_parameters(record: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as they are in a `TransformCase`, from their values in JSON's types.

    Raises:
        KeyError: a part of one is missing.
        TypeError: one has another type.
        ValueError: one is malformed.
    """
    parameters = dict(record)
    if "bias" in parameters:
        parameters["bias"] = {int(token): float(by) for token, by in parameters["bias"].items()}
    if "forced" in parameters:
        forced = parameters["forced"]
        parameters["forced"] = {int(position): int(token) for position, token in forced.items()}
    if "allowed" in parameters:
        parameters["allowed"] = AllowedInTurn.loaded(parameters["allowed"])
    return parameters


def transform_cases(reference: str | None) -> list[TransformCase]:
    """The cases of a reference.

    Raises:
        UsageError: no reference is named, or there is none to compare with.
    """
    known = PARAMETERS | RANDOM_PARAMETERS
    if reference not in known:
        said = (
            "none is named"
            if reference is None
            else f"{reference!r} is none{did_you_mean(reference, known)}"
        )
        raise UsageError(
            f"a transform is compared with a reference, and {said}; name one with "
            f"--reference-transform: {', '.join(known)}"
        )
    return [
        TransformCase(f"{reference}{list(parameters.values())}", reference, parameters)
        for parameters in known[reference]
    ]


@dataclass(frozen=True)
class Rows:
    """Rows of one kind."""

    histories: Tensor
    """long [B, T]."""
    logits: Tensor
    """float64 [B, V]."""
    exact: bool
    """Whether ties and sums of probabilities are exact in float64 and, rounded, in float32, so that
    decisions at equality show a convention; on other rows rounding makes them."""


def corpus(seed: int) -> dict[str, Rows]:
    """The rows every transform is tried on, by kind.

    Tied logits and dyadic probabilities sit on the boundaries where conventions part
    (algorithms.md section 2).
    """
    generator = Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def integers(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator)

    histories = integers(VOCAB_SIZE - 1, ROWS, HISTORY)
    histories += histories >= SPARED
    random = normal(ROWS, VOCAB_SIZE) * 2
    masked = random.masked_fill(torch.rand(random.shape, generator=generator) < 0.4, -torch.inf)
    masked[:, SPARED] = normal(ROWS)
    kinds = {
        "random": (random, False),
        "tied": (integers(4, ROWS, VOCAB_SIZE), True),
        "two levels": (_two_levels(generator), True),
        "dyadic": (_dyadic(generator), True),
        "masked": (masked, False),
        "peaked": (random * 20, False),
    }
    return {
        kind: Rows(histories, logits.double(), exact) for kind, (logits, exact) in kinds.items()
    }


def _two_levels(generator: Generator) -> Tensor:
    """Half of the tokens at 4, half at 0: 0 lies 2 standard deviations below the largest."""
    halves = 4 * (torch.arange(VOCAB_SIZE) % 2).expand(ROWS, -1)
    return halves.gather(1, torch.rand(ROWS, VOCAB_SIZE, generator=generator).argsort(1))


def _dyadic(generator: Generator) -> Tensor:
    """Rows of `_HALVINGS` with their tokens in random places, float64 [ROWS, V]."""
    rows = torch.full((ROWS, VOCAB_SIZE), -torch.inf, dtype=torch.float64)
    others = torch.tensor([token for token in range(VOCAB_SIZE) if token != SPARED])
    for row in range(ROWS):
        halvings = torch.tensor(_HALVINGS[row % len(_HALVINGS)], dtype=torch.float64)
        halvings = halvings[torch.randperm(len(halvings), generator=generator)]
        places = others[torch.randperm(len(others), generator=generator)[: len(halvings) - 1]]
        rows[row, SPARED] = -math.log(2) * halvings[0]
        rows[row, places] = -math.log(2) * halvings[1:]
    return rows
