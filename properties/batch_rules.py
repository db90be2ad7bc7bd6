"""Chapter batch, for rules: each row of a call is decided by its own arguments and draws."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from specverify.certification.probes.rule_trial import RuleTrial, completed
from specverify.certification.probes.together import comparisons, mixed_outcome, tuples_apart
from specverify.certification.registry import Outcome, register
from specverify.exact.conditional import Conditional
from specverify.exact.round import Round
from specverify.subjects.protocols import RULES, Subject

SIZES = (2, 3, 5, 8, 17, 33, 64, 130, 257)
BUILT_ON = ("joint.round in exact/random-V3-K2-float64",)
_VOCAB_SIZE, _DRAFTED = 4, 3
_CALLS = 64
_ROWS = 96
_AGREEMENT = 0.7


def takes_rows(subject: Subject) -> str | None:
    """Need of what is asked about rows of a call."""
    return None if subject.capabilities.batch else "the subject takes one row a call"


def samples_rows(subject: Subject) -> str | None:
    """Need of what is asked about rows that are sampled."""
    if subject.capabilities.algorithm == "greedy":
        return "the subject decides greedily, without randomness"
    return takes_rows(subject)


@register(
    "batch.rows_of_rule",
    kinds=RULES,
    tests=1,
    evidence="probed",
    inputs=tuple(map(str, SIZES)),
    needs=takes_rows,
    after=BUILT_ON,
    why_kept="tries batches of all sizes, up to several hundred rows, and names the row",
)
def rows_of_rule(trial: RuleTrial, alpha: float) -> Outcome:
    """Each row of a call is decided as it would be alone: the first, the last, any.

    Why it holds: rows are requests of different users. Where the target leaves one outcome, a row
    in any place must emit a beginning of it; where it does not, each row has the target's joint
    distribution.

    What breaks it: a kernel that forgets the tail of a tile or reads another row's probabilities
    from some row on (vLLM pull 48055), indices that count rows as if all had drafted alike.

    Error rate: none for the first part; then one e-process at its share, the mean of those of the
    first, the last and the other rows together and of each row by itself.
    """
    size = int(trial.input)
    fault = _forced(trial, size)
    if fault is not None:
        return Outcome(violations=(fault,))
    if samples_rows(trial.subject) is not None:
        return Outcome()
    round = Round.random(3, 2, seed=23)
    law = np.ones(1)
    for depth in range(round.num_draft_tokens + 1):
        law = (law[:, None] * round.p(depth)).reshape(-1)
    rng = np.random.default_rng([trial.seed, size])
    cells = np.stack([_emitted(trial, round, size, call, rng) for call in range(_CALLS)])
    counts = [np.bincount(row, minlength=len(law)) for row in cells.T]
    classes = [counts[0], np.bincount(cells[:, 1:-1].reshape(-1), minlength=len(law)), counts[-1]]
    by_row = {f"row {row}": ([own], [law]) for row, own in enumerate(counts)}
    return mixed_outcome(
        {"first, others, last": (classes, [law] * 3), **by_row}, cells.size, trial.share
    )


@register(
    "batch.independent_rows_of_rule",
    kinds=RULES,
    tests=1,
    evidence="probed",
    inputs=("all",),
    needs=samples_rows,
    after=(*BUILT_ON, "batch.rows_of_rule"),
)
def independent_rows_of_rule(trial: RuleTrial, alpha: float) -> Outcome:
    """Rows of a call are independent at every distance.

    Why it holds: the first token of a row has the target's distribution, and rows share no draw.

    What breaks it: uniforms broadcast over rows, or lanes of a tile that read the same ones. Two
    rows in exact evidence (`randomness.own_draws`) need not be two that do.

    Error rate: one e-process at its share, the mean of those of pairs of rows at several distances
    and of three rows in succession.
    """
    # Most rows are offered the same token, which is accepted half of the time.
    round = Round(_always((0.4, 0.35, 0.25)), _always((0.8, 0.1, 0.1)), 3, 2)
    law = round.p(0)[0]
    rng = np.random.default_rng([trial.seed, _ROWS])
    counts: dict[str, tuple[list[NDArray[np.int64]], list[NDArray[np.float64]]]] = {}
    for call in range(_CALLS):
        tokens = trial.call(*round.inputs(_blocks(round, _ROWS, rng)), trial.generator(call))
        for name, apart, size in comparisons(_ROWS):
            cells, product = tuples_apart(tokens[:, :1].numpy(), law, apart, size)
            known = counts[name][0][0] if name in counts else np.zeros_like(cells)
            counts[name] = ([known + cells], [product])
    return mixed_outcome(counts, _CALLS * _ROWS, trial.share)


def _forced(trial: RuleTrial, rows: int) -> str | None:
    """What is wrong with a call in which each row's target leaves one outcome."""
    generator = trial.generator()
    shape = (rows, _DRAFTED + 1)
    right = torch.randint(_VOCAB_SIZE, shape, generator=generator)
    agrees = torch.rand(rows, _DRAFTED, generator=generator) < _AGREEMENT
    drafted = torch.where(agrees, right[:, :-1], (right[:, :-1] + 1) % _VOCAB_SIZE)
    draft = one_hot(drafted, _VOCAB_SIZE).double() * 0.4 + 0.15
    tokens = trial.call(drafted, draft, one_hot(right, _VOCAB_SIZE).double(), trial.generator(1))
    longest = agrees.long().cumprod(1).sum(1, keepdim=True) + 1
    emitted = tokens >= 0
    wrong = (emitted & (tokens != right)) | (emitted.sum(1, keepdim=True) > longest)
    if not bool(wrong.any()):
        return None
    row = int(wrong.any(1).nonzero()[0])
    allowed = right[row, : int(longest[row])].tolist()
    return (
        f"row {row} of {rows} emits {tokens[row][emitted[row]].tolist()}; its target allows "
        f"{allowed} only, after the draft {drafted[row].tolist()}"
    )


def _emitted(
    trial: RuleTrial, round: Round, rows: int, call: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Completed outcome of each row of one call, as a number in base V."""
    tokens: Tensor = trial.call(*round.inputs(_blocks(round, rows, rng)), trial.generator(2 + call))
    powers = round.vocab_size ** np.arange(round.num_draft_tokens, -1, -1)
    return completed(round, tokens.numpy(), rng) @ powers


def _blocks(round: Round, rows: int, rng: np.random.Generator) -> Tensor:
    """Draft blocks [B, K] as the draft draws them."""
    weights = round.block_probabilities / round.block_probabilities.sum()
    return round.blocks[torch.from_numpy(rng.choice(len(weights), rows, p=weights))]


def _always(law: tuple[float, ...]) -> Conditional:
    return lambda prefixes: np.tile(law, (len(prefixes), 1))
