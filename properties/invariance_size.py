"""Chapter invariance, to the number of tokens."""

import numpy as np
from numpy.typing import NDArray

from specverify.certification.probes.rule_trial import RuleTrial
from specverify.certification.probes.suited import suited_round
from specverify.certification.registry import Outcome, register
from specverify.exact.round import Round
from specverify.subjects.protocols import RULES

SIZES = {"V64": 64, "V257": 257, "V1000": 1000}
_DRAFTED, _POSSIBLE, _WHOLE = 12, 25, 64
"""Tokens that the draft knows, those that are possible at its position, and the size up to which
all are: a rule that draws the target's token first has a path for each."""


@register(
    "invariance.vocabulary_size_of_rule",
    kinds=RULES,
    tests=1,
    evidence="probed",
    inputs=tuple(SIZES),
    lossy=True,
    after=("joint.round in exact/random-V3-K1-float64",),
)
def size_of_rule(trial: RuleTrial, alpha: float) -> Outcome:
    """With many tokens, one round of one draft token has the target's joint distribution.

    The draft knows twelve of them, from the first to the last. In the larger
    vocabularies the target has twenty-five at its position; behind it, it has all of them.

    Why it holds: nothing in a rule depends on the number of tokens.

    What breaks it: the best few of the residual in place of all of it, tiles of a kernel that do
    not cover the vocabulary, ids kept in a byte.

    Error rate: none where the round is computed; otherwise an e-process at its share.
    """
    size = SIZES[trial.input]
    round = suited_round(_wide_round(size), trial.subject)
    return trial.follows(round, f"one round over {size} tokens")


def _wide_round(size: int) -> Round:
    rng = np.random.default_rng(size)
    tables = [_softmax(rng.normal(size=(size**depth, size))) for depth in range(2)]
    if size > _WHOLE:
        tables[0] = _spread(rng, size, _POSSIBLE)
    q = _spread(rng, size, _DRAFTED)

    def target(prefixes: NDArray[np.int64]) -> NDArray[np.float64]:
        table = tables[prefixes.shape[1]]
        return table[prefixes[:, 0]] if prefixes.shape[1] else table.repeat(len(prefixes), 0)

    return Round(target, lambda prefixes: q.repeat(len(prefixes), 0), size, 1)


def _spread(rng: np.random.Generator, size: int, count: int) -> NDArray[np.float64]:
    """A row [1, V] with mass on `count` tokens, from the first to the last."""
    row = np.zeros((1, size))
    tokens = np.linspace(0, size - 1, count).round().astype(np.int64)
    row[0, tokens] = _softmax(rng.normal(size=(1, count)))[0]
    return row


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)
