"""Temperature, and its limit 0: greedy decoding."""

import torch
from torch import Tensor

from specverify.errors import SettingsError
from specverify.transforms import parameters
from specverify.transforms.base import IMPOSSIBLE, Transform

_OVERFLOWS_BELOW = 1e-290
"""Dividing ordinary logits by less than this can leave the range of float64."""


class Temperature(Transform):
    """Divide the logits by a temperature (Ackley, Hinton, Sejnowski 1985).

    Masked tokens stay masked at any temperature: the limit at infinity is uniform over the
    tokens that are possible.

    Args:
        temperature: above 0.

    Raises:
        SettingsError: the temperature is 0 (use `Greedy`), negative or not finite.
    """

    def __init__(self, temperature: float) -> None:
        if temperature == 0:
            raise SettingsError(
                "temperature=0 has no quotient; use Greedy, or SamplingSettings(temperature=0), "
                "which skips the sampling transforms as well"
            )
        self.temperature = parameters.positive("temperature", temperature)

    def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
        logits = logits.double()
        if self.temperature < _OVERFLOWS_BELOW:
            logits = logits - logits.amax(-1, keepdim=True)
        return logits / self.temperature


class Greedy(Transform):
    """Keep the token with the largest logit, the first of them where several tie.

    The result is one-hot: logit 0 at that token, -inf elsewhere.
    """

    def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
        best = logits.argmax(-1, keepdim=True)
        result = torch.full_like(logits, IMPOSSIBLE, dtype=torch.float64)
        return result.scatter_(-1, best, 0.0)
