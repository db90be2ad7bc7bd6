"""Penalties on tokens that the history already holds."""

import torch
from torch import Tensor

from specverify.transforms import parameters
from specverify.transforms.base import Transform, occurrences


class RepetitionPenalty(Transform):
    """Divide positive and multiply negative logits of every token seen so far.

    Keskar et al. (CTRL), arXiv 1909.05858, section 4.1, with the sign rule of Hugging Face. The
    history is prompt and output; repeats do not compound. Adding a constant to the logits
    changes the result, so it must see the model's raw logits, never log-probabilities.

    Args:
        penalty: above 0; 1 has no effect, above 1 discourages, below 1 encourages.
    """

    history_free = False

    def __init__(self, penalty: float) -> None:
        self.penalty = parameters.positive("penalty", penalty)

    def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
        logits = logits.double()
        seen = occurrences(input_ids, logits.shape[-1]) > 0
        scaled = torch.where(logits < 0, logits * self.penalty, logits / self.penalty)
        return torch.where(seen, scaled, logits)


class FrequencyPenalty(Transform):
    """Subtract the penalty once for every time the output holds the token.

    The OpenAI API's `frequency_penalty`: prompt tokens do not count.

    Args:
        penalty: finite; 0 has no effect, negative values encourage repetition.
        prompt_length: leading tokens of the history that are not output.
    """

    history_free = False

    def __init__(self, penalty: float, prompt_length: int = 0) -> None:
        self.penalty = parameters.finite("penalty", penalty)
        self.prompt_length = parameters.whole("prompt_length", prompt_length, least=0)

    def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
        counts = occurrences(input_ids[:, self.prompt_length :], logits.shape[-1])
        return logits.double() - self.penalty * counts.double()


class PresencePenalty(Transform):
    """Subtract the penalty once from every token that the output holds.

    The OpenAI API's `presence_penalty`: prompt tokens do not count.

    Args:
        penalty: finite; 0 has no effect, negative values encourage repetition.
        prompt_length: leading tokens of the history that are not output.
    """

    history_free = False

    def __init__(self, penalty: float, prompt_length: int = 0) -> None:
        self.penalty = parameters.finite("penalty", penalty)
        self.prompt_length = parameters.whole("prompt_length", prompt_length, least=0)

    def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
        counts = occurrences(input_ids[:, self.prompt_length :], logits.shape[-1])
        return logits.double() - self.penalty * (counts > 0).double()
