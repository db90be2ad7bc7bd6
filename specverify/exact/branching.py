"""Every path a program can take through its own randomness, each with its exact probability."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

import torch
from torch import Generator, Tensor

from specverify.errors import CannotSteer, MalformedOutput, OutsideRandomness
from specverify.exact.steering.draws import Group
from specverify.exact.steering.escapes import RandomNumber
from specverify.exact.steering.mode import steered
from specverify.exact.steering.outside import outside_randomness
from specverify.exact.steering.path import Fork, Path, Policy
from specverify.exact.steering.source_line import Line
from specverify.exact.steering.steering import Steering
from specverify.exact.steering.symbols import Pending

Program = Callable[[Tensor, Generator], Tensor]
"""Which rows to run, long [R], and the source of all draws, to what each emits, long [R, L]."""

MAXIMUM_RUNS = 1 << 20
REPLAYS = 8
_REPLAY_TOLERANCE = 1e-12
_APART = 1_000_003
"""Distance between the seeds of two runs, beyond what a subject may add to a seed."""
_OUTSIDE = 1 << 40
"""Sets the seeds outside apart from those of the generators that are handed over."""


@dataclass(frozen=True)
class Slot:
    """Tokens of an output that were drawn and never looked at."""

    place: Tensor
    """long [N, 2]: row among the path's rows, and column."""
    member: Tensor
    """long [N]: which of the group's draws."""
    group: Group

    @property
    def probabilities(self) -> Tensor:
        """Of each of them, float64 [N, n]."""
        return self.group.probabilities[self.member]

    @property
    def values(self) -> Tensor:
        """What the draws can become, long [N, n]."""
        values = self.group.values
        return values.expand(len(self.member), -1) if values.dim() == 1 else values[self.member]

    def part(self, kept: Tensor) -> "Slot | None":
        """The draws in some of the rows, bool [R], which are counted anew; None without any."""
        inside = kept[self.place[:, 0]]
        if not bool(inside.any()):
            return None
        place = self.place[inside].clone()
        place[:, 0] = (kept.cumsum(0) - 1)[place[:, 0]]
        return Slot(place, self.member[inside], self.group)


@dataclass(frozen=True)
class Leaf:
    """A path that came to its end."""

    rows: Tensor
    """long [R]."""
    probability: Tensor
    """float64 [R], positive."""
    tokens: Tensor
    """long [R, L]; what stands in the places of `slots` means nothing."""
    slots: tuple[Slot, ...]
    choices: tuple[int, ...]
    """Outcome of each decision."""

    def part(self, kept: Tensor) -> "Leaf":
        """The same for some of its rows, bool [R]."""
        slots = tuple(part for slot in self.slots if (part := slot.part(kept)) is not None)
        return Leaf(self.rows[kept], self.probability[kept], self.tokens[kept], slots, self.choices)


@dataclass(frozen=True)
class Crash:
    """A path on which the program raised; there is one row only."""

    probability: float
    error: Exception


@dataclass(frozen=True)
class _Task:
    """The beginning of a path."""

    script: tuple[int, ...]
    reached: Tensor
    """float64 [R]: its probability, as an earlier run found it."""


@dataclass
class Exploration:
    """Runs a program along every path.

    All rows of a run take the same decisions, each with its own probability, so a batch needs no
    more runs than one row. A leaf costs one run: it follows its script, then takes the likeliest
    outcome of each further decision; the others are put on a stack. The number of leaves grows
    exponentially with the decisions that matter. A draw that nothing looks at before the output is
    none of them.
    """

    program: Program
    maximum_runs: int = MAXIMUM_RUNS
    seed: int = 0
    """Of the randomness outside torch, which changes with every run, and of torch's generators."""
    replays: int = REPLAYS
    """Paths that are taken a second time at the end, to see whether the same comes out."""
    runs: int = 0
    global_draws: dict[Line, None] = field(default_factory=dict)
    """Lines that draw from torch's global generator."""
    repeated: dict[tuple[Line, Line], None] = field(default_factory=dict)
    """Lines that draw from a generator state that was drawn from before, with the first of them."""
    reused: dict[tuple[Line, Line], None] = field(default_factory=dict)
    """Lines that draw a uniform, and lines that decide by it after it has decided already."""
    reseeded: dict[Line, None] = field(default_factory=dict)
    """Lines that draw from one generator state in several runs, which have seeds of their own."""
    standing: dict[Line, None] = field(default_factory=dict)
    """Lines that draw from a copy of the generator that was handed over."""
    _states: dict[int, int] = field(default_factory=dict)
    """Digests of generator states that were drawn from, with the first run that did."""

    def paths(self, rows: Tensor, replays: int | None = None) -> Iterator[Leaf | Crash]:
        """Explore.

        Args:
            rows: long [R].
            replays: instead of the exploration's own.

        Yields:
            Leaves and crashes; the probabilities of each row sum to 1 over all of them.

        Raises:
            CannotSteer: something cannot be followed.
            OutsideRandomness: the program is not determined by its arguments and torch's
                randomness.
        """
        stack = [_Task((), torch.ones(len(rows), dtype=torch.float64))]
        replays = self.replays if replays is None else replays
        kept: list[Leaf] = []
        random = Random(self.seed)
        while stack:
            task = stack.pop()
            if self.runs >= self.maximum_runs:
                raise CannotSteer(
                    "there are more paths than may be run; use a smaller vocabulary, fewer draft "
                    "tokens or a shorter run, or raise maximum_runs"
                )
            path, result = self._run(rows, _following(task.script))
            _check_replay(path, task)
            if isinstance(result, Exception) and len(rows) > 1:
                raise CannotSteer(f"a row of a batch raises {result!r}") from result
            for index in range(len(task.script), len(path.forks)):
                stack += _others(path, index)
            if isinstance(result, Exception):
                yield Crash(float(path.probability[0]), result)
            elif bool((path.probability > 0).any()):
                leaf = _leaf(path, rows, result)
                yield leaf
                if len(kept) < replays:
                    kept.append(leaf)
                elif (place := random.randrange(self.runs)) < replays:
                    kept[place] = leaf
        for turn in range(replays if kept else 0):
            self._replay(rows, kept[turn % len(kept)])

    def _note_standing(self, steering: Steering, generator: Generator, seed: int) -> None:
        """Note draws from a copy of the generator that was handed over, which stands still."""
        start = hash(Generator().manual_seed(seed).get_state().numpy().tobytes())
        now = hash(generator.get_state().numpy().tobytes())
        if now == start and start in steering.states:
            self.standing[steering.states[start][0]] = None

    def _replay(self, rows: Tensor, leaf: Leaf) -> None:
        """Take a path again, while everything outside is another, and compare what comes out.

        A path is run once, so nothing else would tell that its output is not determined by it.
        """
        path, result = self._run(rows, _following(leaf.choices))
        again = None if isinstance(result, Exception) else _leaf(path, rows, result)
        if again is None or not _same(again, leaf):
            raise OutsideRandomness(
                "the same decisions emit something else when the subject is run again: something "
                "outside torch's randomness decides (random, time, a thread, or state kept "
                "between calls)"
            )

    @property
    def findings(self) -> list[str]:
        """Generator states that were drawn from twice, in words."""
        repeated = [
            f"draws twice from the same generator state: {first} and {second}"
            for first, second in self.repeated
        ]
        reseeded = [
            f"draws from the same generator state whatever seed it is handed: {line}"
            for line in self.reseeded
        ]
        return [
            *repeated,
            *reseeded,
            *(
                "draws from a copy of the generator that it is handed, so that the next call draws "
                f"the same: {line}"
                for line in self.standing
            ),
        ]

    @property
    def reuses(self) -> list[str]:
        """Uniforms that decided more than once, in words."""
        return [
            f"a uniform drawn at {drawn} decides more than once, again at {used}"
            for drawn, used in self.reused
        ]

    def mixed(self, rows: Tensor, seed: int) -> tuple[Leaf, list[tuple[int, ...]]]:
        """One run in which every row takes decisions of its own, at random.

        Returns:
            What came out, and the decisions of each row.
        """
        generator = torch.Generator().manual_seed(seed)

        def policy(index: int, probabilities: Tensor, reached: Tensor) -> Tensor:
            spread = (probabilities.T > 0).double()
            return torch.multinomial(spread, 1, generator=generator)[:, 0]

        path, result = self._run(rows, policy)
        if isinstance(result, Exception):
            raise CannotSteer(f"rows that decide differently raise {result!r}")
        leaf = _leaf(path, rows, result)
        taken = [fork.chosen.tolist() for fork in path.forks]
        return leaf, [tuple(column[row] for column in taken) for row in range(len(rows))]

    def _run(self, rows: Tensor, policy: Policy) -> tuple[Path, "Ended | Exception"]:
        self.runs += 1
        seed = self.seed + self.runs * _APART
        generator = Generator().manual_seed(seed)
        path = Path(len(rows), policy)
        result: Ended | Exception
        with outside_randomness(seed + _OUTSIDE) as outside:
            steering = Steering(path, generator)
            try:
                with steered(steering):
                    tokens = self.program(rows, generator)
            except (CannotSteer, MalformedOutput):
                raise
            except Exception as error:
                if steering.refusal is not None:
                    raise steering.refusal from error
                if steering.numbers_out and error is not steering.raised:
                    raise CannotSteer(
                        f"it raises {error!r} after it has taken a random number out of torch, "
                        "which stands for a float here but is none"
                    ) from error
                if RandomNumber.__name__ in str(error):
                    raise CannotSteer(f"a random number is used as a float: {error}") from error
                result = error
            else:
                with torch.inference_mode(tokens.is_inference()):
                    result = _finish(steering, tokens)
            outside.check()
        self._note_standing(steering, generator, seed)
        for state, (line, _) in steering.states.items():
            if self._states.setdefault(state, self.runs) != self.runs:
                self.reseeded[line] = None
        self.global_draws |= steering.global_draws
        self.repeated |= steering.repeated
        self.reused |= path.reused
        return path, result


@dataclass(frozen=True)
class Ended:
    """What a run emitted."""

    tokens: Tensor
    slots: tuple[Slot, ...]


def _following(script: tuple[int, ...]) -> Policy:
    """The script's outcomes, then the likeliest ones."""

    def policy(index: int, probabilities: Tensor, reached: Tensor) -> Tensor:
        if index < len(script):
            option = torch.tensor(script[index])
        else:
            option = (probabilities @ reached).argmax()
        return option.expand(probabilities.shape[1])

    return policy


def _check_replay(path: Path, task: _Task) -> None:
    """Refuse a program that decides otherwise when it is run again."""
    length = len(task.script)
    if not length:
        return
    reached = None
    if len(path.forks) > length:
        reached = path.forks[length].before
    elif len(path.forks) == length:
        reached = path.probability
    if reached is None or not torch.allclose(
        reached, task.reached, rtol=_REPLAY_TOLERANCE, atol=0.0
    ):
        raise OutsideRandomness(
            "the same decisions lead elsewhere when the subject is run again: something outside "
            "torch's randomness decides (numpy, random, time, or state kept between calls)"
        )


def _others(path: Path, index: int) -> Iterator[_Task]:
    """The outcomes of a decision that were not taken."""
    fork: Fork = path.forks[index]
    taken = int(fork.chosen[0])
    script = tuple(int(earlier.chosen[0]) for earlier in path.forks[:index])
    for option, probabilities in enumerate(fork.probabilities):
        reached = fork.before * probabilities
        if option != taken and bool((reached > 0).any()):
            yield _Task((*script, option), reached)


def _leaf(path: Path, rows: Tensor, result: "Ended") -> Leaf:
    """The rows that can come this far."""
    choices = tuple(int(fork.chosen[0]) for fork in path.forks)
    whole = Leaf(rows, path.probability, result.tokens, result.slots, choices)
    return whole.part(path.probability > 0)


def _same(left: Leaf, right: Leaf) -> bool:
    """Whether two leaves emit the same with the same probabilities."""
    if left.choices != right.choices or not torch.equal(left.rows, right.rows):
        return False
    if left.tokens.shape != right.tokens.shape or len(left.slots) != len(right.slots):
        return False
    drawn = torch.zeros_like(left.tokens, dtype=torch.bool)
    for mine, theirs in zip(left.slots, right.slots, strict=True):
        if not torch.equal(mine.place, theirs.place):
            return False
        if mine.probabilities.shape != theirs.probabilities.shape:
            return False
        if not torch.equal(mine.values, theirs.values) or not torch.allclose(
            mine.probabilities, theirs.probabilities, rtol=_REPLAY_TOLERANCE, atol=1e-300
        ):
            return False
        drawn[mine.place[:, 0], mine.place[:, 1]] = True
    return torch.equal(left.tokens[~drawn], right.tokens[~drawn]) and torch.allclose(
        left.probability, right.probability, rtol=_REPLAY_TOLERANCE, atol=0.0
    )


def _finish(steering: Steering, tokens: Tensor) -> Ended:
    """Read the output, the draws in it apart."""
    symbol = steering.shadows.of(tokens)
    if symbol is not None and not isinstance(symbol, Pending):
        steering.settle_in(tokens, symbol)
        symbol = steering.shadows.of(tokens)
    if symbol is None:
        return Ended(tokens.long().clone(), ())
    if not isinstance(symbol, Pending):
        raise CannotSteer("the output holds random numbers that were never decided")
    drawn, counts = symbol.ids[symbol.ids >= 0].unique(return_counts=True)
    if bool((counts > 1).any()):
        # A draw in several places is one decision, not several.
        steering.draws.take(drawn[counts > 1])
        return _finish(steering, tokens)
    places = (symbol.ids >= 0).nonzero()
    draws = symbol.ids[places[:, 0], places[:, 1]]
    _claim(steering, places, draws)
    slots = []
    for group in steering.draws.groups:
        inside = (draws >= group.first) & (draws < group.first + len(group.row))
        if bool(inside.any()):
            slots.append(Slot(places[inside], draws[inside] - group.first, group))
    return Ended(tokens.long().clone(), tuple(slots))


def _claim(steering: Steering, places: Tensor, draws: Tensor) -> None:
    """Make sure that no two draws of a row depend on the same noise."""
    rank = torch.zeros(len(places), dtype=torch.long)
    if len(places) > 1:
        same = places[1:, 0] == places[:-1, 0]
        for index in same.nonzero()[:, 0].tolist():
            rank[index + 1] = rank[index] + 1
    for turn in range(int(rank.max()) + 1 if len(rank) else 0):
        chosen = draws[rank == turn]
        for group in steering.draws.groups:
            member = chosen[(chosen >= group.first) & (chosen < group.first + len(group.row))]
            member = (member - group.first).unique()
            if len(member) and group.noise is not None and group.edges is None:
                steering.path.claim(group.noise[member], group.line)
