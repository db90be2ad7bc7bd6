"""One case of a transform: a reference, its parameters, and logits that tell conventions apart."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from specverify.errors import UsageError
from specverify.transforms import REFERENCE, Transform

ROWS = 256
HISTORY = 12
VOCAB_SIZE = 16

PARAMETERS: dict[str, tuple[dict[str, Any], ...]] = {
    "temperature": ({"temperature": 0.5}, {"temperature": 1.0}, {"temperature": 1.7}),
    "top_k": ({"top_k": 1}, {"top_k": 3}, {"top_k": 8}, {"top_k": 100}),
    "top_p": ({"top_p": 0.25}, {"top_p": 0.5}, {"top_p": 0.75}, {"top_p": 0.9}, {"top_p": 1.0}),
    "min_p": ({"min_p": 0.0}, {"min_p": 0.05}, {"min_p": 0.25}, {"min_p": 1.0}),
    "typical_p": ({"typical_p": 0.2}, {"typical_p": 0.5}, {"typical_p": 0.9}),
    "epsilon": ({"epsilon": 0.01}, {"epsilon": 0.1}, {"epsilon": 0.25}),
    "eta": ({"epsilon": 0.001}, {"epsilon": 0.05}),
    "top_n_sigma": ({"n": 0.5}, {"n": 1.0}, {"n": 2.0}),
    "repetition_penalty": ({"penalty": 0.8}, {"penalty": 1.0}, {"penalty": 1.5}),
    "frequency_penalty": ({"penalty": 0.5}, {"penalty": -0.5}),
    "presence_penalty": ({"penalty": 0.5}, {"penalty": -0.5}),
    "no_repeat_ngram": ({"ngram_size": 1}, {"ngram_size": 2}, {"ngram_size": 3}),
    "bad_words": ({"bad_words": [[1], [2, 3]]}, {"bad_words": [[0, 1, 2], [4]]}),
    "logit_bias": ({"bias": {0: 1.5, 3: -2.0}},),
}
"""Parameters tried for each reference. Random transforms and those defined by a callable are left
out: a single pair of outputs says nothing about the former, and the latter are the caller's own."""


@dataclass(frozen=True)
class TransformCase:
    """Parameters of one transform, to be compared on the whole corpus."""

    id: str
    reference: str
    parameters: dict[str, Any]

    def build_reference(self) -> Transform:
        """The reference transform with these parameters."""
        return REFERENCE[self.reference](**self.parameters)


def transform_cases(reference: str | None) -> list[TransformCase]:
    """The cases of a reference.

    Raises:
        UsageError: no reference is named, or there is none to compare with.
    """
    if reference not in PARAMETERS:
        known = ", ".join(PARAMETERS)
        raise UsageError(
            f"a transform is compared with a reference, and {reference!r} is none; name one with "
            f"--reference-transform: {known}"
        )
    return [
        TransformCase(f"{reference}{list(parameters.values())}", reference, parameters)
        for parameters in PARAMETERS[reference]
    ]


def corpus(seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Histories long [B, T] and float32 logits [B, V], by the kind of row.

    Ties and dyadic probabilities, whose sums are exact in float32, sit on the boundaries where
    conventions part (algorithms.md section 2).
    """
    generator = Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def integers(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator)

    histories = integers(VOCAB_SIZE, ROWS, HISTORY)
    random = normal(ROWS, VOCAB_SIZE) * 2
    masked = random.masked_fill(torch.rand(random.shape, generator=generator) < 0.4, -torch.inf)
    masked[:, 5] = normal(ROWS)
    # 1/2, 1/4, ..., with the last one twice, so that they sum to 1.
    exponents = torch.arange(1, VOCAB_SIZE + 1).clamp(max=VOCAB_SIZE - 1)
    dyadic = 0.5 ** exponents.float()
    order = torch.rand(ROWS, VOCAB_SIZE, generator=generator).argsort(1)
    return {
        "random": (histories, random),
        "tied": (histories, integers(4, ROWS, VOCAB_SIZE).float()),
        "dyadic": (histories, dyadic.log().expand(ROWS, -1).gather(1, order)),
        "masked": (histories, masked),
        "peaked": (histories, random * 20),
    }
