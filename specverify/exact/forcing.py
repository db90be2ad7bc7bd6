"""The exact distribution of a verification rule: all draft blocks at once, or one by one."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from specverify.errors import CannotSteer, MalformedOutput, RowsDepend
from specverify.exact.branching import MAXIMUM_RUNS, Crash, Exploration, Leaf
from specverify.exact.distribution import JointDistribution, Method
from specverify.exact.outcomes import Outcomes, spread
from specverify.exact.round import Round

Rule = Callable[[Tensor, Tensor | None, Tensor, Generator], Tensor]
"""draft_tokens [R, K], draft_probs [R, K, V] or None, target_probs [R, K+1, V] and a generator to
the emitted tokens [R, K+1], padded right with -1."""

_ENTRIES = 1 << 22
"""Probabilities handed over in one call."""
_MIXED_RUNS = 3
_REPLAYS = 8
_FEW_ROWS = 64
"""Up to so many rows a single replay may show nothing of what decides outside."""
_COMPARED = 256
"""Rows of a mixed run that are held against what was read off them."""
_SPOT_CHECKS = 2
_AGREEMENT = {torch.float64: 1e-12, torch.float32: 1e-6}
"""How well a row in one batch must agree with itself in another: vectorised operations may round
differently there."""
_COARSE_AGREEMENT = 1e-2
Table: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Outcomes [N, L] and their masses [N]."""

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass
class _Result:
    """What exploring the blocks has given so far."""

    outcomes: Outcomes = field(default_factory=Outcomes)
    crashes: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    runs: int = 0
    findings: dict[str, None] = field(default_factory=dict)
    reuses: dict[str, None] = field(default_factory=dict)
    global_draws: dict[str, None] = field(default_factory=dict)

    def add(self, explored: "Explored", round: Round) -> None:
        """Add what some blocks emit, weighted with the probability that they are drafted."""
        weights = round.block_probabilities[explored.blocks.numpy()]
        for leaf in explored.leaves:
            index, tokens, masses = spread(leaf)
            row = leaf.rows.numpy()[index]
            first = row < len(weights)
            self.outcomes.add(tokens[first], masses[first] * weights[row[first]])
        for crash in explored.crashes:
            text = f"{type(crash.error).__name__}: {crash.error}"
            self.crashes[text] += crash.probability * float(weights[0])
        exploration = explored.exploration
        self.runs += exploration.runs
        self.findings |= dict.fromkeys(exploration.findings)
        self.reuses |= dict.fromkeys(exploration.reuses)
        self.global_draws |= dict.fromkeys(map(str, exploration.global_draws))

    def distribution(self, method: Method) -> JointDistribution:
        """All of it.

        Raises:
            CannotSteer: the masses do not sum to 1, which no steering that is right leaves behind.
        """
        joint = JointDistribution(
            self.outcomes.distribution(),
            method,
            self.runs,
            dict(self.crashes),
            tuple(self.findings),
            tuple(self.reuses),
            tuple(self.global_draws),
        )
        return joint.checked()


def forced_distribution(
    rule: Rule, round: Round, *, seed: int = 0, maximum_runs: int = MAXIMUM_RUNS
) -> JointDistribution:
    """What a batched rule emits, all draft blocks as rows of one call.

    Every acceptance pattern is forced on all rows at once, in as many runs as there are patterns:
    2^K for a rule that tosses all coins of a block in one go, K + 1 for a loop that stops at the
    first rejection. No pattern is left out because the rule "should" not look at it. Probabilities
    of the decisions, and of the token drawn last, are read off for every row.

    Time grows with the patterns times the V^(K+1) outcomes. `benchmarks/exact_distributions.py`
    printed, for token verification on one thread: V = 4, K = 1, 3, 5: 0.4, 0.5, 0.5 s; V = 8,
    K = 4: 0.6 s; V = 64, K = 2: 2.0 s; V = 1024, K = 1: 6.4 s. The whole table is in the docs.

    That rows do not influence each other is checked, not assumed: by runs in which every row
    decides at random for itself, and by branching over random rows alone.

    Args:
        rule: called with at most 4M probabilities at once.
        round: the draft blocks and their distributions.
        seed: of the checks.
        maximum_runs: calls after which to give up.

    Raises:
        CannotSteer: an operation cannot be followed, rows depend on each other or one of them
            raises; `branched_distribution` may still follow them one by one.
        MalformedOutput: the output is no tensor of token ids [R, K+1].
    """
    result = _Result()
    chunk = max(1, _ENTRIES // ((2 * round.num_draft_tokens + 1) * round.vocab_size))
    for part in torch.arange(len(round.blocks)).split(chunk):
        count = _row_count(len(part), round)
        replays = _REPLAYS if count <= _FEW_ROWS else 1
        explored = _explore(rule, round, part, count, seed, maximum_runs, replays)
        check_rows(explored, seed, round.dtype)
        result.add(explored, round)
    return result.distribution("forcing")


def branched_distribution(
    rule: Rule, round: Round, *, seed: int = 0, maximum_runs: int = MAXIMUM_RUNS
) -> JointDistribution:
    """The same, one draft block a call: V^K times as many runs, and no assumption about rows."""
    result = _Result()
    for block in range(len(round.blocks)):
        part = torch.tensor([block])
        left = maximum_runs - result.runs
        replays = _REPLAYS if block == 0 else 1
        result.add(_explore(rule, round, part, 1, seed, left, replays), round)
    return result.distribution("branching")


@dataclass(frozen=True)
class Explored:
    """Every path of some blocks."""

    blocks: Tensor
    """long [N]: which blocks of the round the rows 0 to N - 1 are; further rows repeat them."""
    rows: Tensor
    exploration: Exploration
    leaves: list[Leaf]
    crashes: list[Crash]


def _explore(
    rule: Rule,
    round: Round,
    part: Tensor,
    count: int,
    seed: int,
    maximum_runs: int,
    replays: int = 1,
) -> Explored:
    tokens, draft, target = round.inputs(round.blocks[part])

    def program(rows: Tensor, generator: Generator) -> Tensor:
        at = rows % len(part)
        arguments = (tokens[at], None if draft is None else draft[at], target[at])
        return emitted(rule(*arguments, generator), len(rows), round.num_draft_tokens + 1)

    exploration = Exploration(program, maximum_runs, seed, replays)
    leaves, crashes = [], []
    rows = torch.arange(count)
    for end in exploration.paths(rows):
        crashes.append(end) if isinstance(end, Crash) else leaves.append(end)
    return Explored(part, rows, exploration, leaves, crashes)


def _row_count(blocks: int, round: Round) -> int:
    """Rows to hand over for some blocks: more than one, and no other dimension's size."""
    taken = {1, round.num_draft_tokens, round.num_draft_tokens + 1, round.vocab_size}
    return next(rows for rows in range(blocks, blocks + 5) if rows not in taken)


def emitted(value: object, rows: int, width: int) -> Tensor:
    """Check the form of a rule's output; its values are looked at once they are known."""
    if not isinstance(value, Tensor) or value.dtype not in _INTEGERS:
        what = str(value.dtype) if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise MalformedOutput(
            f"the rule returned {what}; it must return token ids [{rows}, {width}]"
        )
    if tuple(value.shape) != (rows, width):
        raise MalformedOutput(
            f"the rule returned shape {list(value.shape)}; for {width - 1} draft tokens it must be "
            f"[{rows}, {width}], padded right with -1"
        )
    return value


def check_rows(explored: Explored, seed: int, dtype: torch.dtype) -> None:
    """Make sure that what was read off a row does not depend on the other rows.

    Raises:
        CannotSteer: it does.
    """
    found = {leaf.choices: leaf for leaf in explored.leaves}
    generator = Generator().manual_seed(seed)
    tolerance = _AGREEMENT.get(dtype, _COARSE_AGREEMENT)
    for attempt in range(_MIXED_RUNS):
        mixed, decisions = explored.exploration.mixed(explored.rows, seed + attempt)
        members: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for row in torch.randperm(len(decisions), generator=generator)[:_COMPARED].tolist():
            # A row that is done may decide on, for the others' sake.
            taken = decisions[row]
            known = next((taken[:n] for n in range(len(taken) + 1) if taken[:n] in found), None)
            if known is None:
                raise CannotSteer("a row takes decisions in a batch that it does not take alone")
            members[known].append(row)
        for choices, rows in members.items():
            _compare(_given(mixed, rows), _given(found[choices], rows), tolerance)
    for row in torch.randint(len(explored.rows), (_SPOT_CHECKS,), generator=generator).tolist():
        # The paths of all rows were replayed; these are held against them.
        ends = explored.exploration.paths(torch.tensor([row]), replays=0)
        alone = [end for end in ends if isinstance(end, Leaf)]
        _compare(_summed(alone, row), _summed(explored.leaves, row), tolerance)


def _given(leaf: Leaf, rows: list[int]) -> Table:
    """Row and output, and the probability of the output given that the row takes this path."""
    leaf = leaf.part(torch.isin(leaf.rows, torch.tensor(rows)))
    index, tokens, masses = spread(leaf)
    keys = np.column_stack([leaf.rows.numpy()[index], tokens])
    return keys, masses / leaf.probability.numpy()[index]


def _summed(leaves: list[Leaf], row: int) -> Table:
    """Output of one row over all of its paths."""
    parts = [spread(leaf.part(leaf.rows == row))[1:] for leaf in leaves]
    tokens, masses = (np.concatenate(part) for part in zip(*parts, strict=True))
    keys, group = np.unique(tokens, axis=0, return_inverse=True)
    return keys, np.bincount(group.reshape(-1), masses).astype(np.float64)


def _compare(left: Table, right: Table, tolerance: float) -> None:
    ordered = []
    for keys, masses in (left, right):
        order = np.lexsort(keys.T)
        ordered.append((keys[order], masses[order]))
    (keys, masses), (other_keys, other_masses) = ordered
    if not np.array_equal(keys, other_keys) or np.abs(masses - other_masses).max() > tolerance:
        raise RowsDepend("what a row emits depends on the other rows of its batch")
