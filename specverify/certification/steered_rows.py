"""The exact distribution that a transform with coins gives each row, by following its coins."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

from specverify.certification.exact_calls import MAXIMUM_RUNS, SteeredCalls
from specverify.errors import CannotSteer, OutsideRandomness, RowsDepend, SubjectError
from specverify.exact.branching import Crash, Exploration, Leaf
from specverify.exact.forcing import Explored, check_rows
from specverify.exact.outcomes import spread
from specverify.exact.programs import program_distribution
from specverify.subjects.checks import transformed_logits
from specverify.subjects.protocols import Subject


def keywords(subject: Subject, parameters: dict[str, Any], generator: Generator) -> dict[str, Any]:
    """What the factory of a transform with coins is called with.

    Args:
        subject: one that declares no generator, since it draws from the global ones, gets none.
        parameters: of the case.
        generator: source of its coins.
    """
    return parameters | ({"generator": generator} if subject.capabilities.generator else {})


def steered_calls(subject: Subject, time_limit: float) -> SteeredCalls:
    """Calls of the factory and of what it builds, whichever is named first."""

    def apply(call: Callable[..., Any], *arguments: Any, **parameters: Any) -> Any:
        return call(*arguments, **parameters)

    return SteeredCalls(subject, time_limit, function=apply)


@dataclass
class SteeredRows:
    """Rows that a transform with coins is handed, and what it makes of them on every path.

    It is built anew for every path, so that coins tossed by its factory are followed as well.
    """

    subject: Subject
    parameters: dict[str, Any]
    seed: int
    """Of whatever is not followed."""
    time_limit: float
    """Seconds for a single call."""
    findings: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._calls = steered_calls(self.subject, self.time_limit)

    def each(self, ids: Tensor, logits: Tensor, alone: int) -> Tensor:
        """The distribution of the token after each row: float64 [N, V].

        Args:
            ids: long [B, T].
            logits: [B, V].
            alone: N, at most B, where the rows of one call cannot be followed together and so have
                to be one by one; otherwise N is B.

        Raises:
            CannotSteer: its randomness cannot be followed.
            SubjectError: it fails on some path.
        """
        # Rows are known by their number, which must be that of nothing else.
        taken = {1, ids.shape[1], logits.shape[1]}
        count = next(n for n in range(len(ids), len(ids) + 4) if n not in taken)
        try:
            found = self._explored(ids, logits, torch.arange(count))
            check_rows(found, self.seed, logits.dtype)
            parts = [found]
        except OutsideRandomness:
            raise
        except CannotSteer as refusal:
            rows = range(min(alone, len(ids)))
            parts = [self._explored(ids, logits, torch.tensor([row])) for row in rows]
            if isinstance(refusal, RowsDepend):
                self.findings[f"is followed only with one row a call: {refusal}"] = None
        probabilities = torch.zeros(count, logits.shape[1], dtype=torch.float64)
        for part in parts:
            self.findings |= dict.fromkeys(part.exploration.findings)
            for leaf in part.leaves:
                index, tokens, masses = spread(leaf)
                places = leaf.rows[index], torch.from_numpy(tokens[:, 0])
                probabilities.index_put_(places, torch.from_numpy(masses), accumulate=True)
        return probabilities[: len(ids) if len(parts) == 1 else len(parts)]

    def together(self, ids: Tensor, logits: Tensor) -> Tensor:
        """The joint distribution of the tokens after two rows of one call: float64 [V, V].

        Raises:
            CannotSteer: its randomness cannot be followed.
            SubjectError: it fails on some path.
        """
        joint = program_distribution(
            lambda generator: self._tokens(ids, logits, generator).T,
            seed=self.seed,
            maximum_runs=MAXIMUM_RUNS,
            replays=1,
        )
        for text, mass in joint.crashes.items():
            raise SubjectError(f"with probability {mass:.3g} {text}")
        probabilities = logits.new_zeros(2 * logits.shape[1:], dtype=torch.float64)
        for (one, other), mass in joint.probabilities.items():
            probabilities[one, other] = mass
        return probabilities

    def _explored(self, ids: Tensor, logits: Tensor, rows: Tensor) -> Explored:
        def program(asked: Tensor, generator: Generator) -> Tensor:
            at = asked % len(ids)
            return self._tokens(ids[at], logits[at], generator)

        exploration = Exploration(program, MAXIMUM_RUNS, self.seed, replays=1)
        leaves: list[Leaf] = []
        for end in exploration.paths(rows):
            if isinstance(end, Crash):
                raise SubjectError(f"with probability {end.probability:.3g} {end.error}")
            leaves.append(end)
        return Explored(rows, rows, exploration, leaves, [])

    def _tokens(self, ids: Tensor, logits: Tensor, generator: Generator) -> Tensor:
        """A token after each row: long [B, 1]."""
        named = keywords(self.subject, self.parameters, generator)
        built = self._calls(self.subject.call, **named)
        made = self._calls(built, ids.clone(), logits.clone())
        what = f"output of {self.subject.name!r}"
        weights = transformed_logits(made, logits, what=what).double().softmax(-1)
        return torch.multinomial(weights, 1, generator=generator)
