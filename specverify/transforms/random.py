"""Transforms that draw coins of their own."""

import torch
from torch import Generator, Tensor

from specverify.errors import UsageError
from specverify.transforms import parameters
from specverify.transforms.base import RandomTransform, mask


class XTC(RandomTransform):
    """Exclude top choices: at times, drop all but the least likely of the likely tokens.

    With the given probability, and if at least two tokens reach the threshold, every token that
    reaches it is removed except the least likely one (the highest id where several tie). The
    rule is that of the sampler's first publication (oobabooga/text-generation-webui, pull
    request 6335) and of llama.cpp.

    The law of the token is a mixture, so speculative decoding stays exact only if every candidate
    position tosses its own coin, independent of the draft: each row of each call here does.

    Args:
        probability: in [0, 1], how often to exclude.
        threshold: in (0, 1]; above 0.5 there are never two such tokens, so no effect.
        generator: source of the coins. Needed to call the transform, not for `outcomes`.
    """

    def __init__(
        self, probability: float, threshold: float, generator: Generator | None = None
    ) -> None:
        self.probability = parameters.probability("probability", probability, zero=True, one=True)
        self.threshold = parameters.probability("threshold", threshold, zero=False, one=True)
        self.generator = generator

    def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
        """Transform each row by one sampled outcome.

        Raises:
            UsageError: no generator was given.
        """
        if self.generator is None:
            raise UsageError(
                "XTC draws coins and was built without a generator; pass a torch.Generator, or "
                "use outcomes() for the exact mixture"
            )
        logits = logits.double()
        coins = torch.rand(
            logits.shape[0],
            1,
            dtype=torch.float64,
            device=self.generator.device,
            generator=self.generator,
        ).to(logits.device)
        return mask(logits, self._excluded(logits) & (coins < self.probability))

    def outcomes(self, input_ids: Tensor, logits: Tensor, /) -> list[tuple[float, Tensor]]:
        """The untouched row and the row without its top choices, with their probabilities."""
        logits = logits.double()
        return [
            (1 - self.probability, logits),
            (self.probability, mask(logits, self._excluded(logits))),
        ]

    def _excluded(self, logits: Tensor) -> Tensor:
        """Tokens removed when the coin says so, bool [B, V]."""
        descending, order = logits.sort(dim=-1, descending=True, stable=True)
        reaches = descending.softmax(-1) >= self.threshold
        # A likely token goes exactly if the next one in the order is likely too.
        excluded = torch.zeros_like(reaches)
        excluded[..., :-1] = reaches[..., 1:]
        return excluded.scatter(-1, order, excluded)
