"""Token verification: standard speculative sampling, one coin a draft token."""

from torch import Generator

from specverify.verification.checks import RoundInputs
from specverify.verification.emission import coins, emit, leading
from specverify.verification.protocol import Verified
from specverify.verification.reference import ReferenceVerification
from specverify.verification.residual import acceptance


def decide(inputs: RoundInputs, generator: Generator | None) -> Verified:
    """Accept each token with probability `min(1, p/q)`, stop at the first rejection.

    Leviathan et al. 2023 (arXiv 2211.17192, algorithm 1) and Chen et al. 2023 (arXiv 2302.01318,
    algorithm 2): the correction comes from `norm((p - q)+)` at the rejected position, the bonus
    token from the target after the last draft token.
    """
    threshold = acceptance(inputs.p_drafted, inputs.q_drafted)
    kept = (coins(inputs, generator) < threshold) & inputs.offered
    return emit(inputs, leading(kept), generator)


TOKEN = ReferenceVerification("token", decide)
"""The lossless rule that accepts most when each position is decided on its own."""
