"""What a rule emits when a coin of its own has an extreme value, by running it with that value."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor

from specverify.errors import CannotSteer
from specverify.exact.branching import Crash, Exploration, Leaf
from specverify.exact.coin_cases import Case, Expected, cases_of_leaf, expectation, single_value
from specverify.exact.forcing import Rule, emitted
from specverify.exact.joint import Tokens
from specverify.exact.round import Round
from specverify.exact.steering.outside import outside_randomness
from specverify.exact.steering.pinned import Drawn, Pins, pinned

Kind = Literal["right", "finding", "violation", "crash"]

TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-6,
    torch.float16: 1e-3,
    torch.bfloat16: 5e-3,
}
"""Mass up to which a wrong outcome is a finding, by the coarser of the dtypes of coins and
probabilities (design.md section 1)."""

_ENTRIES = 1 << 22


@dataclass(frozen=True)
class EdgeOutcome:
    """What one draft block led to with one coin at one value."""

    kind: Kind
    """right: emitted as exact steering says it must be, and possible for the target. Otherwise
    finding or violation, by `mass`; crash: it raised."""
    block: Tokens
    coin: str
    """u = 0; largest below 1; threshold, which is the first value on its upper side, or the value
    below or above it; inside, a coin in the middle of its interval like all others, which stands
    for the whole path; any, where a crash was found by steering."""
    element: int | None
    """Which of the row's uniforms, in the order in which they are drawn."""
    value: float | None
    mass: float
    """Probability that the block is drafted, the row decides otherwise as here and the coin has
    this very value; of the whole path for inside and any."""
    emitted: Tokens | None
    """None for a crash."""
    detail: str
    """What is wrong; empty if nothing is."""
    line: str
    """Of the rule, which draws the coin."""


class EdgeSummary(NamedTuple):
    """Outcomes of one kind for one coin at one kind of value."""

    kind: Kind
    coin: str
    element: int | None
    line: str
    cases: int
    mass: float
    """Sum over blocks and paths, which exclude each other: the probability of all of it."""
    example: EdgeOutcome
    """The one with the largest mass."""


def edge_coin_outcomes(
    rule: Rule,
    round: Round,
    *,
    batch: bool = True,
    seed: int = 0,
    maximum_calls: int = 1 << 16,
) -> tuple[EdgeOutcome, ...]:
    """Run a rule with its uniforms at the ends of every interval on which it decides alike.

    The rule is steered first, one draft block a call; each path gives an interval of the grid for
    every uniform that is drawn on it. Then the rule runs for real: one uniform has the value 0, the
    largest below 1, a threshold or the value next to it, whichever of them lie in the interval, and
    the others have values inside theirs. What it emits must be what steering says of this path, and
    tokens that the target can produce there. A path that is wrong in the middle of its intervals is
    one outcome; its ends are left out. Its own arithmetic is met as it is: the logarithm of
    0, a ratio 0 / 0, a search that runs past the last entry of a cumulative sum.

    Exercised: every uniform that `rand`, `rand_like` or `uniform_` draws on any path, including
    those that are compared with nothing, those of a race of Gumbel noise (one at a time, at 0 and
    at the largest) and those of a draw by thresholds (all ends of all tokens). Not exercised:
    several coins at their ends at once; the inner values of multinomial, exponential and integer
    draws, which torch draws as usual and whose outcome need only be possible; a `bernoulli`, whose
    coin no rule sees, goes as the path says.

    Args:
        rule: see `exact.joint_distribution`.
        round: blocks and distributions; a small one, since there are some calls for each path of
            each block.
        batch: whether the rule takes more than one row a call. Then cases are rows of common calls;
            whatever is not right that way, or draws otherwise than alone, is run again alone.
        seed: of draws that are not chosen.
        maximum_calls: of the rule, after which to give up.

    Returns:
        One outcome for each case, in the order of the blocks. `summary` adds them up.

    Raises:
        CannotSteer: the rule cannot be followed, or needs more calls.

    Example:
        >>> import torch
        >>> from specverify.exact import Round
        >>> def closed(tokens, q, p, generator):
        ...     index = tokens[..., None]
        ...     ratio = (p[:, :-1].gather(2, index) / q.gather(2, index))[..., 0]
        ...     accepted = torch.rand(tokens.shape, generator=generator) <= ratio
        ...     weights = torch.where(accepted, p[:, 1], (p[:, 0] - q[:, 0]).clamp(min=0))
        ...     last = torch.multinomial(weights, 1, generator=generator)
        ...     both = torch.cat([tokens, last], 1)
        ...     alone = torch.cat([last, torch.full_like(last, -1)], 1)
        ...     return torch.where(accepted, both, alone)
        >>> rows = lambda *p: lambda prefixes: [p] * len(prefixes)
        >>> round = Round(rows(1, 0), rows(0.5, 0.5), 2, 1)
        >>> for outcome in edge_coin_outcomes(closed, round):
        ...     if outcome.kind != "right":
        ...         print(outcome.kind, outcome.block, outcome.coin, outcome.mass * 2**24)
        finding (1,) u = 0 0.5
    """
    plan = _Plan(_Runner(rule, round, seed, maximum_calls))
    plan.explore()
    outcomes = plan.in_batches() if batch else {}
    for number, case in enumerate(plan.cases):
        if number not in outcomes:
            outcomes[number] = plan.judge(case, plan.runner.alone(case))
    found = [*plan.done, *(outcomes[number] for number in range(len(plan.cases)))]
    order = {tuple(block): index for index, block in enumerate(round.blocks.tolist())}
    return tuple(sorted(found, key=lambda outcome: order[outcome.block]))


def summary(outcomes: Iterable[EdgeOutcome]) -> tuple[EdgeSummary, ...]:
    """Add outcomes up by kind, coin and value; worst kinds first, then by mass."""
    groups: dict[tuple[Kind, str, int | None, str], list[EdgeOutcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.kind, outcome.coin, outcome.element, outcome.line].append(outcome)
    rank = {"violation": 0, "crash": 1, "finding": 2, "right": 3}
    rows = [
        EdgeSummary(
            *key,
            cases=len(group),
            mass=sum(outcome.mass for outcome in group),
            example=max(group, key=lambda outcome: outcome.mass),
        )
        for key, group in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (rank[row.kind], -row.mass)))


class _Ran(NamedTuple):
    """One row of a real run."""

    tokens: list[int] | None
    error: Exception | None
    drawn: list[Drawn]


@dataclass
class _Runner:
    """Calls the rule for real."""

    rule: Rule
    round: Round
    seed: int
    maximum_calls: int
    calls: int = 0

    def alone(self, case: Case) -> _Ran:
        """One case."""
        return self.together([case])[0]

    def together(self, cases: Sequence[Case]) -> list[_Ran]:
        """Cases as rows of one call; an exception belongs to all of them."""
        if self.calls >= self.maximum_calls:
            raise CannotSteer(
                f"edge coins need more than {self.maximum_calls:,} calls; use a smaller vocabulary "
                "or fewer draft tokens"
            )
        self.calls += 1
        arguments = self.round.inputs(
            torch.tensor([case.block for case in cases], dtype=torch.long)
        )
        width = max(len(case.integers) for case in cases)
        integers = torch.full((len(cases), width), -1)
        for row, case in enumerate(cases):
            integers[row, : len(case.integers)] = case.integers
        pins = Pins(integers)
        generator = Generator().manual_seed(self.seed + self.calls)
        with outside_randomness(self.seed + self.calls + 1):
            try:
                with pinned(pins):
                    value = self.rule(*arguments, generator)
                tokens = emitted(value, len(cases), self.round.num_draft_tokens + 1).tolist()
            except CannotSteer:
                raise
            except Exception as error:
                return [_Ran(None, error, pins.drawn)] * len(cases)
        return [_Ran(row, None, pins.drawn) for row in tokens]

    def explored(self, block: Tensor) -> Iterator[Leaf | Crash]:
        """Every path of one draft block."""

        def program(rows: Tensor, generator: Generator) -> Tensor:
            value = self.rule(*self.round.inputs(block[None]), generator)
            return emitted(value, 1, self.round.num_draft_tokens + 1)

        exploration = Exploration(program, self.maximum_calls - self.calls, self.seed, replays=1)
        yield from exploration.paths(torch.zeros(1, dtype=torch.long))
        self.calls += exploration.runs


@dataclass
class _Plan:
    """All cases of a round."""

    runner: _Runner
    cases: list[Case] = field(default_factory=list)
    done: list[EdgeOutcome] = field(default_factory=list)
    expected: dict[Tokens, list[Expected]] = field(default_factory=dict)
    drawn: dict[int, list[Drawn]] = field(default_factory=dict)
    """What each path draws alone, by the id of the path."""

    def explore(self) -> None:
        """Find the paths of every block and the ends of their intervals."""
        round = self.runner.round
        for block, weight in zip(round.blocks, round.block_probabilities.tolist(), strict=True):
            key = tuple(block.tolist())
            found = self.expected[key] = []
            for end in list(self.runner.explored(block)):
                if isinstance(end, Crash):
                    text, mass = _text(end.error), weight * end.probability
                    self.done.append(
                        EdgeOutcome("crash", key, "any", None, None, mass, None, text, "")
                    )
                    continue
                found.append(expectation(self.runner.rule, round, block, end, self.runner.seed))
            for expected in found:
                self._cut(expected, key, weight)

    def _cut(self, expected: Expected, block: Tokens, weight: float) -> None:
        """Run a path once for all; if that is right, list the ends of its intervals."""
        path = len(self.drawn)
        inside = expected.inside(block, path, weight)
        ran = self.runner.alone(inside)
        self.drawn[path] = ran.drawn
        inside = single_value(expected, inside, ran.drawn)
        outcome = self.judge(inside, ran)
        self.done.append(outcome)
        if outcome.kind == "right":
            self.cases += cases_of_leaf(expected, inside, ran.drawn)

    def in_batches(self) -> dict[int, EdgeOutcome]:
        """Cases whose outcome is right as rows of common calls."""
        round = self.runner.round
        size = max(1, _ENTRIES // ((2 * round.num_draft_tokens + 1) * round.vocab_size))
        found: dict[int, EdgeOutcome] = {}
        for start in range(0, len(self.cases), size):
            part = list(range(start, min(start + size, len(self.cases))))
            taken = {1, round.num_draft_tokens, round.num_draft_tokens + 1, round.vocab_size}
            repeated = (part * 5)[
                : next(n for n in range(len(part), len(part) + 5) if n not in taken)
            ]
            for number, ran in self._ran(repeated):
                case = self.cases[number]
                alone = self.drawn[case.path]
                if ran.error is None and ran.drawn[: len(alone)] == alone:
                    outcome = self.judge(case, ran)
                    if outcome.kind == "right":
                        found[number] = outcome
        return found

    def _ran(self, numbers: list[int]) -> list[tuple[int, _Ran]]:
        """A call, split in two while some row raises; nothing for rows that do not go together."""
        if len(numbers) == 1:
            return []
        try:
            ran = self.runner.together([self.cases[number] for number in numbers])
        except CannotSteer:
            return []
        if ran[0].error is None:
            return list(zip(numbers, ran, strict=True))
        half = len(numbers) // 2
        return self._ran(numbers[:half]) + self._ran(numbers[half:])

    def judge(self, case: Case, ran: _Ran) -> EdgeOutcome:
        """Hold a real run against the paths of its block and the target's support."""
        tokens, detail = None, ""
        if ran.error is not None:
            kind, detail = "crash", _text(ran.error)
        else:
            assert ran.tokens is not None
            tokens = _unpadded(ran.tokens)
            if tokens is None:
                detail = f"emits {ran.tokens}, which is not tokens and then padding"
                tokens = tuple(ran.tokens)
            elif (place := impossible_token(self.runner.round, tokens)) is not None:
                detail = f"emits {tokens[place]} at position {place}, which the target cannot"
            elif not any(e.allows(case.integers, ran.tokens) for e in self.expected[case.block]):
                detail = "the emitted tokens are not those of any path that has these coins"
            kind = self._kind(case, ran.drawn) if detail else "right"
        return EdgeOutcome(
            kind,
            case.block,
            case.coin,
            case.element,
            case.value,
            case.mass,
            tokens,
            detail,
            case.line,
        )

    def _kind(self, case: Case, drawn: list[Drawn]) -> Kind:
        dtypes = [self.runner.round.dtype, *(entry.dtype for entry in drawn)]
        tolerance = max(TOLERANCE.get(dtype, 0.0) for dtype in dtypes)
        return "finding" if case.mass <= tolerance else "violation"


def impossible_token(round: Round, tokens: Tokens) -> int | None:
    """The first position at which the target cannot emit this after what stands before.

    Args:
        round: whose target counts, as the rule is handed it.
        tokens: 1 to K+1 of them.

    Returns:
        The position, 0 for an empty tuple, None if all are possible.
    """
    code = 0
    for position, token in enumerate(tokens):
        if not 0 <= token < round.vocab_size or not round.p(position)[code, token] > 0:
            return position
        code = code * round.vocab_size + token
    return None if tokens else 0


def _unpadded(row: list[int]) -> Tokens | None:
    """Tokens without the padding; None if -1 stands before a token or an id lies below."""
    length = next((n for n, token in enumerate(row) if token < 0), len(row))
    return tuple(row[:length]) if all(token == -1 for token in row[length:]) else None


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
