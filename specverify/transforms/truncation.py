"""Truncations: keep a part of the vocabulary, judged by the row's own distribution.

All of them leave the logits they keep unchanged, keep at least one token, and order tokens as
Hugging Face transformers 5.24 does, rounding included, so masks agree with it on float64 logits.
"""

from typing import Literal

import torch
from torch import Tensor

from specverify.transforms import parameters
from specverify.transforms.base import IMPOSSIBLE, Transform, mask

TopPBoundary = Literal["drop", "keep"]


class TopK(Transform):
    """Keep the k largest logits (Fan, Lewis, Dauphin, arXiv 1805.04833).

    Args:
        top_k: at least 1; no effect from V on.
        keep_ties: keep every token that ties with the k-th (transformers, vLLM); otherwise keep
            exactly k, lower ids first (engines that cut a sorted list).
    """

    def __init__(self, top_k: int, *, keep_ties: bool = True) -> None:
        self.top_k = parameters.whole("top_k", top_k, least=1)
        self.keep_ties = keep_ties

    def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
        logits = logits.double()
        if self.top_k >= logits.shape[-1]:
            return logits
        if self.keep_ties:
            smallest = logits.topk(self.top_k, dim=-1).values[..., -1:]
            return mask(logits, logits < smallest)
        order = logits.sort(dim=-1, descending=True, stable=True).indices
        removed = torch.ones_like(logits, dtype=torch.bool)
        return mask(logits, removed.scatter_(-1, order[..., : self.top_k], False))  # noqa: FBT003


class TopP(Transform):
    """Nucleus: the fewest tokens, most likely first, whose mass reaches p.

    The token that crosses p is kept (Holtzman et al., arXiv 1904.09751, section 3.1). As in
    transformers the mass is summed from the least likely token up and compared with 1 - p.

    Which of several tied tokens at the border survive depends on the sort, as it does in
    transformers: torch's default sort is not stable, so on rows of more than 32 tokens the
    choice belongs to the processor at hand.

    Args:
        top_p: in (0, 1]; 1 has no effect.
        boundary: what happens to a token when the mass above it is exactly p: "drop" it
            (transformers, vLLM) or "keep" it (SGLang).
    """

    def __init__(self, top_p: float, *, boundary: TopPBoundary = "drop") -> None:
        self.top_p = parameters.probability("top_p", top_p, zero=False, one=True)
        parameters.require(boundary in ("drop", "keep"), "boundary", boundary, "'drop' or 'keep'")
        self.boundary: TopPBoundary = boundary

    def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
        logits = logits.double()
        if self.top_p == 1.0:
            return logits
        ascending, order = logits.sort(dim=-1)
        mass = ascending.softmax(-1).cumsum(-1)
        rest = 1 - self.top_p
        removed = mass <= rest if self.boundary == "drop" else mass < rest
        removed[..., -1] = False
        return mask(logits, removed.scatter(-1, order, removed))


class MinP(Transform):
    """Keep tokens at least `min_p` times as likely as the most likely one.

    Nguyen et al., arXiv 2407.01082, section 3. A token exactly at the threshold is kept.

    Args:
        min_p: in [0, 1]; 0 has no effect, 1 keeps the maximum and its ties.
    """

    def __init__(self, min_p: float) -> None:
        self.min_p = parameters.probability("min_p", min_p, zero=True, one=True)

    def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
        logits = logits.double()
        probs = logits.softmax(-1)
        return mask(logits, probs < self.min_p * probs.amax(-1, keepdim=True))


class TypicalP(Transform):
    """Keep the tokens whose surprise is nearest to the entropy, until their mass reaches p.

    Locally typical sampling (Meister et al., arXiv 2202.00666, section 4). Tokens that tie with
    the last one kept are kept. The most likely token may be dropped.

    Args:
        typical_p: in (0, 1]; 1 has no effect.
    """

    def __init__(self, typical_p: float) -> None:
        self.typical_p = parameters.probability("typical_p", typical_p, zero=False, one=True)

    def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
        logits = logits.double()
        if self.typical_p == 1.0:
            return logits
        log_probs = logits.log_softmax(-1)
        # A masked token is -inf times 0, to be counted as 0.
        entropy = -(log_probs * log_probs.exp()).nansum(-1, keepdim=True)
        distance, order = (-log_probs - entropy).abs().sort(dim=-1)
        mass = logits.gather(-1, order).softmax(-1).cumsum(-1)
        last = (mass < self.typical_p).sum(-1, keepdim=True).clamp_(max=logits.shape[-1] - 1)
        removed = distance > distance.gather(-1, last)
        return mask(logits, removed.scatter(-1, order, removed))


class EpsilonCutoff(Transform):
    """Keep tokens with probability at least epsilon; the maximum and its ties always.

    Hewitt, Manning, Liang, arXiv 2210.15191, section 4.

    Args:
        epsilon: in (0, 1).
    """

    def __init__(self, epsilon: float) -> None:
        self.epsilon = parameters.probability("epsilon", epsilon, zero=False, one=False)

    def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
        logits = logits.double()
        removed = logits.softmax(-1) < self.epsilon
        return mask(logits, removed & (logits < logits.amax(-1, keepdim=True)))


class EtaCutoff(Transform):
    """Keep tokens with probability at least min(epsilon, sqrt(epsilon) * exp(-entropy)).

    Hewitt, Manning, Liang, arXiv 2210.15191, section 4; the maximum and its ties always stay.

    Args:
        epsilon: in (0, 1).
    """

    def __init__(self, epsilon: float) -> None:
        self.epsilon = parameters.probability("epsilon", epsilon, zero=False, one=False)
        # transformers holds epsilon, and takes its root, in float32.
        held = torch.tensor(self.epsilon, dtype=torch.float32)
        self._flat = held.item()
        self._root = held.sqrt().item()

    def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
        logits = logits.double()
        log_probs = logits - logits.logsumexp(-1, keepdim=True)
        lowest = torch.finfo(torch.float64).min
        entropy = -(log_probs.clamp(min=lowest) * log_probs.softmax(-1)).sum(-1, keepdim=True)
        threshold = (self._root * (-entropy).exp()).clamp(max=self._flat)
        removed = logits.softmax(-1) < threshold
        return mask(logits, removed & (logits < logits.amax(-1, keepdim=True)))


class TopNSigma(Transform):
    """Keep logits within n standard deviations of the largest one.

    Tang et al., arXiv 2411.07641. The deviation is that of the population of tokens still
    possible; a logit exactly at the threshold is kept. The tokens kept do not depend on the
    temperature.

    Args:
        n: above 0.
    """

    def __init__(self, n: float) -> None:
        self.n = parameters.positive("n", n)

    def __call__(self, input_ids: Tensor, logits: Tensor, /) -> Tensor:
        logits = logits.double()
        possible = logits > IMPOSSIBLE
        number = possible.sum(-1, keepdim=True)
        mean = logits.where(possible, 0.0).sum(-1, keepdim=True) / number
        variance = (logits - mean).where(possible, 0.0).square().sum(-1, keepdim=True) / number
        return mask(logits, logits < logits.amax(-1, keepdim=True) - self.n * variance.sqrt())
