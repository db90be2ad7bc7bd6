"""The two functions of `p` and `q` that speculative sampling is made of.

Both work on whole tables: every leading dimension is a batch dimension, so a table of contexts
[C, V] is compiled by the same code that verifies a block [B, K, V].
"""

import torch
from torch import Tensor


def acceptance(p: Tensor, q: Tensor) -> Tensor:
    """Probability that the token rule keeps a token drawn from `q`: `min(1, p / q)`.

    Leviathan et al. 2023 (arXiv 2211.17192), section 2.3. Compare it with a coin in [0, 1) by
    `coin < acceptance`: strictly, so that a token with p = 0 is refused even by a coin of exactly
    0, and one with p = q, whose quotient is exactly 1, is kept by every coin.

    Where q = 0 the token can never be proposed by a draft that reports its q truthfully; the
    value is the limit from above, 1 if p > 0 and 0 if p = 0.

    Args:
        p: target probabilities, any shape.
        q: draft probabilities, broadcastable to `p`.

    Returns:
        float64, in [0, 1].
    """
    p, q = p.double(), q.double()
    ratio = torch.where(q > 0, p / q, (p > 0).double())
    return ratio.clamp(max=1.0)


def residual(p: Tensor, q: Tensor, weight: Tensor | None = None) -> Tensor:
    """Distribution of the correction: `norm((weight * p - q)+)` along the last dimension.

    Leviathan et al. 2023, section 2.3; with a weight, the probability of the accepted prefix, it
    is the residual of block verification (Sun et al. 2024, arXiv 2403.10444).

    If `p <= q` everywhere the positive part is zero. Both sum to 1, so then p = q, every ratio is
    1 and a rejection has probability 0: no value is ever needed. Rounding can leave p below q by
    an ulp without leaving any excess; such a rejection happens with the probability of that
    rounding, about 1e-16, and any distribution inside the support of p serves. `p` itself is
    returned in both cases, so a row is never 0/0 and an impossible token never appears.

    Args:
        p: target probabilities [..., V].
        q: draft probabilities [..., V].
        weight: [...], between 0 and 1; 1 when omitted.

    Returns:
        float64 [..., V], summing to 1 wherever `p` does.
    """
    p, q = p.double(), q.double()
    scaled = p if weight is None else weight.double().unsqueeze(-1) * p
    excess = (scaled - q).clamp(min=0.0)
    total = excess.sum(-1, keepdim=True)
    return torch.where(total > 0, excess / total, p)
