"""Block verification: the draft tokens of a round are accepted or rejected together."""

import torch
from torch import Generator, Tensor

from specverify.verification.checks import RoundInputs
from specverify.verification.emission import coins, emit
from specverify.verification.protocol import Verified
from specverify.verification.reference import ReferenceVerification
from specverify.verification.residual import acceptance


def decide(inputs: RoundInputs, generator: Generator | None) -> Verified:
    """Accept the longest prefix whose own coin succeeds.

    Sun et al. 2024 (arXiv 2403.10444). Every position has an independent coin, and a
    failed one does not end the search: `tau` is the last position whose coin lies below its
    threshold. The correction comes from `norm((w * p - q)+)` with the prefix probability `w` at
    `tau`, the bonus token from the target. The expected number of accepted tokens is never below
    token verification's.
    """
    weights = prefix_probabilities(inputs)
    successes = (coins(inputs, generator) < thresholds(inputs, weights)) & inputs.offered
    positions = torch.arange(1, successes.shape[1] + 1, device=successes.device)
    accepted = torch.nn.functional.pad(successes * positions, (1, 0)).amax(1)
    return emit(inputs, accepted, generator, weights.gather(1, accepted.unsqueeze(1)).squeeze(1))


def prefix_probabilities(inputs: RoundInputs) -> Tensor:
    """`w_i = min(1, w_{i-1} p(x_i) / q(x_i))` with `w_0 = 1`, float64 [B, K+1].

    It is the probability that at least `i` tokens are accepted, given the first `i` of them.
    """
    p, q = inputs.p_drafted, inputs.q_drafted
    weights = [torch.ones_like(inputs.counts, dtype=torch.float64)]
    for position in range(inputs.tokens.shape[1]):
        weights.append(acceptance(weights[-1] * p[:, position], q[:, position]))
    return torch.stack(weights, 1)


def thresholds(inputs: RoundInputs, weights: Tensor) -> Tensor:
    """What the coin of each position must lie below, float64 [B, K].

    `S / (S + 1 - w)` before a row's last token, `S` being the sum of `(w * p - q)+` at the next
    position, and `w` at the last one. It is 0 wherever `w` is, so an impossible token has no coin
    that accepts it; 0/0 arises only for w = 1 and p = q at the next position, where it is 1.
    """
    q = inputs.q
    if q is None:
        one_hot = torch.zeros_like(inputs.p[:, :-1])
        q = one_hot.scatter_(2, inputs.index.unsqueeze(2), 1.0)
    w = weights[:, 1:]
    excess = torch.zeros_like(w)
    if w.shape[1] > 1:
        before_last = w[:, :-1]
        excess[:, :-1] = (
            (before_last.unsqueeze(2) * inputs.p[:, 1:-1] - q[:, 1:]).clamp(min=0).sum(2)
        )
    denominator = excess + (1.0 - w)
    inner = torch.where(denominator > 0, excess / denominator, 1.0)
    last = torch.arange(1, w.shape[1] + 1, device=w.device) == inputs.counts.unsqueeze(1)
    return torch.where(last, w, inner)


BLOCK = ReferenceVerification("block", decide)
"""Accepts at least as many tokens as `TOKEN` in expectation, and the same at K = 1."""
