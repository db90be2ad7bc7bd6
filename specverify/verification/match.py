"""Sampler-match: the target samples as if there were no draft; tokens that agree come for free."""

import torch
from torch import Generator, Tensor

from specverify.categorical import draw
from specverify.verification.checks import RoundInputs
from specverify.verification.emission import assemble, leading
from specverify.verification.protocol import Verified
from specverify.verification.reference import ReferenceVerification


def decide(inputs: RoundInputs, generator: Generator | None) -> Verified:
    """Draw `y_i` from the target at every position and emit `y` up to its first difference.

    Exact for any draft, sampled or not, whatever it reports as q: each `y_i` has its own noise,
    independent of what decides that position `i` is reached. The rule of prompt lookup in
    transformers and of llama.cpp's speculative loop. A token is accepted with probability
    `sum_x p(x) q(x)`: what `TOKEN` reaches for one-hot drafts, and less for others.
    """
    sampled = draw(_drawable(inputs), generator)
    accepted = leading((sampled[:, :-1] == inputs.tokens) & inputs.offered)
    return assemble(inputs, accepted, sampled.gather(1, accepted.unsqueeze(1)).squeeze(1))


def _drawable(inputs: RoundInputs) -> Tensor:
    """The target's rows, with those beyond a row's own count, which may hold anything, replaced."""
    width = inputs.tokens.shape[1]
    used = torch.arange(width + 1, device=inputs.p.device) <= inputs.counts.unsqueeze(1)
    if bool(used.all()):
        return inputs.p
    return torch.where(used.unsqueeze(2), inputs.p, 1.0)


MATCH = ReferenceVerification("match", decide)
"""Needs no draft probabilities; right for deterministic drafts and drafts without a density."""
