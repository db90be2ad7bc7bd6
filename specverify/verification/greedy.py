"""Greedy verification: a draft token stands if the target's most probable token is the same."""

from torch import Generator

from specverify.verification.checks import RoundInputs
from specverify.verification.emission import assemble, leading
from specverify.verification.protocol import Verified
from specverify.verification.reference import ReferenceVerification


def decide(inputs: RoundInputs, generator: Generator | None) -> Verified:
    """Accept up to the first token that is not the argmax; emit the argmax there, or as bonus.

    Blockwise parallel decoding's exact criterion (Stern et al. 2018, arXiv 1811.03115, section 3).
    Ties go to the first index, as in greedy decoding. Uses no randomness: `generator` is not
    touched.
    """
    best = inputs.p.argmax(-1)
    accepted = leading((best[:, :-1] == inputs.tokens) & inputs.offered)
    return assemble(inputs, accepted, best.gather(1, accepted.unsqueeze(1)).squeeze(1))


GREEDY = ReferenceVerification("greedy", decide)
"""Token for token the target's greedy decoding; the draft's probabilities play no part."""
