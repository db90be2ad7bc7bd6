"""Chapter greedy, one round at a time: what rules make of rows that have one possible token."""

import torch
from torch import Generator, Tensor

from specverify.certification.probes.rule_trial import RuleTrial
from specverify.certification.registry import Outcome, register
from specverify.subjects.protocols import RULES, Subject

BLOCKS = ("K1", "K2", "K3", "K4", "K5")
ROWS, VOCAB_SIZE = 64, 16
_AGREES = 0.6
"""Share of the draft tokens that are the target's most likely ones."""


def declares_greedy(subject: Subject) -> str | None:
    """Need of what only greedy rules promise."""
    declared = subject.capabilities.algorithm
    return None if declared == "greedy" else "the subject does not declare the algorithm greedy"


@register(
    "greedy.rule",
    kinds=RULES,
    evidence="probed",
    inputs=BLOCKS,
    after=("joint.round in exact/random-V3-K2-float64",),
    why_kept="one round is proof, at every block length",
)
def rule(trial: RuleTrial, alpha: float) -> Outcome:
    """On one-hot target rows, as temperature 0 makes them, a rule emits the argmax and no more.

    Why it holds: a draft token that is not the target's one token has p = 0 and is rejected, one
    that is has p/q >= 1; residual and bonus are one-hot (algorithms.md section 1.1).

    What breaks it: acceptance by a threshold, tokens after a correction, a correction or bonus
    token from another row.

    Error rate: none, apart from a float32 coin of exactly 0 on a rejected token (2^-24 each).
    """
    best, tokens, q, source = _block(int(trial.input[1:]))
    p = torch.nn.functional.one_hot(best, VOCAB_SIZE).double()
    return _judged(trial.call(tokens, q, p, source), tokens, best)


@register(
    "greedy.rule_on_spread_rows",
    kinds=RULES,
    evidence="probed",
    inputs=("K1", "K3", "K5"),
    needs=declares_greedy,
    after=("joint.round", "greedy.rule"),
)
def rule_on_spread_rows(trial: RuleTrial, alpha: float) -> Outcome:
    """A greedy rule emits the target's argmax where the target's rows are spread out, too.

    Why it holds: greedy verification compares with the argmax, whatever its probability (Stern et
    al. 2018, section 3).

    What breaks it: accepting what is likely enough, drawing the correction from the residual, or
    the argmax of p - q in place of that of p.

    Error rate: none. The argmax is at least twice as likely as any other token.
    """
    best, tokens, q, source = _block(int(trial.input[1:]))
    weights = torch.rand((*best.shape, VOCAB_SIZE), dtype=torch.float64, generator=source) + 0.2
    weights.scatter_(2, best[:, :, None], 2.4)
    return _judged(
        trial.call(tokens, q, weights / weights.sum(2, keepdim=True), source), tokens, best
    )


def _block(width: int) -> tuple[Tensor, Tensor, Tensor, Generator]:
    """Best tokens [B, K+1], draft tokens [B, K], q [B, K, V], and the generator to go on with."""
    source = Generator().manual_seed(width)
    best = torch.randint(VOCAB_SIZE, (ROWS, width + 1), generator=source)
    shape = (ROWS, width, VOCAB_SIZE)
    q = torch.randn(shape, dtype=torch.float64, generator=source).softmax(2)
    drawn = torch.multinomial(q.flatten(0, 1), 1, generator=source).reshape(ROWS, width)
    agrees = torch.rand((ROWS, width), generator=source) < _AGREES
    return best, torch.where(agrees, best[:, :-1], drawn), q, source


def _judged(emitted: Tensor, tokens: Tensor, best: Tensor) -> Outcome:
    """Emitted tokens, and best ones, [B, K+1], against draft tokens [B, K]."""
    agreed = (tokens == best[:, :-1]).long().cumprod(1).sum(1, keepdim=True)
    index = torch.arange(best.shape[1])
    given = emitted >= 0
    wrong = given & ((index > agreed) | (emitted != best))
    if not bool(wrong.any()):
        return Outcome()
    row, at = wrong.nonzero()[0].tolist()
    right = best[row, : int(agreed[row]) + 1].tolist()
    return Outcome(
        violations=(
            f"{int(wrong.any(1).sum())} of {len(wrong)} rounds are wrong: with the draft tokens "
            f"{tokens[row].tolist()} one emits {emitted[row][given[row]].tolist()}, wrong from "
            f"position {at} on; greedy decoding gives {right}",
        )
    )
