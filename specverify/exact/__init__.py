"""Joint distributions of token sequences computed without sampling.

`joint_distribution` steers an implementation's own randomness and returns the distribution of what
it emits; `enumerate` has the distributions of models and reference rules in closed form, and
`compare_round` holds the one against the other. All work on plain callables; this layer knows no
decoder.
"""

from specverify.exact.coins import Coins
from specverify.exact.compare_round import RoundComparison, compare_round
from specverify.exact.distribution import JointDistribution
from specverify.exact.round import Round
from specverify.exact.steer import joint_distribution

__all__ = [
    "Coins",
    "JointDistribution",
    "Round",
    "RoundComparison",
    "compare_round",
    "joint_distribution",
]
