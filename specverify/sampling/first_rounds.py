"""How the first rounds of sampled runs ended: counts of corrections and bonus tokens."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specverify.sampling.context_tally import ContextTally
from specverify.sampling.tally import State


@dataclass
class FirstRounds:
    """First rounds of all runs of a case."""

    groups: int
    vocab_size: int
    accepted: dict[int, int] = field(default_factory=dict)
    """Runs by draft tokens accepted, where the subject reports it."""
    corrections: ContextTally = field(init=False)
    bonuses: ContextTally = field(init=False)
    judged_corrections: int = 0
    excluded_corrections: int = 0
    """Corrections that the residual of the declared algorithm excludes."""

    def __post_init__(self) -> None:
        self.corrections = ContextTally(self.groups, self.vocab_size)
        self.bonuses = ContextTally(self.groups, self.vocab_size)

    def count_accepted(self, accepted: NDArray[np.int64]) -> None:
        """Count runs by accepted draft tokens, [N]."""
        for count, runs in enumerate(np.bincount(accepted)):
            if runs:
                self.accepted[count] = self.accepted.get(count, 0) + int(runs)

    def merge(self, other: "FirstRounds") -> None:
        """Add the first rounds of other runs."""
        for count, runs in other.accepted.items():
            self.accepted[count] = self.accepted.get(count, 0) + runs
        self.corrections.merge(other.corrections)
        self.bonuses.merge(other.bonuses)
        self.judged_corrections += other.judged_corrections
        self.excluded_corrections += other.excluded_corrections

    def state(self) -> State:
        """All of it, as plain arrays and numbers."""
        return {
            "accepted": {str(count): runs for count, runs in sorted(self.accepted.items())},
            "corrections": self.corrections.state(),
            "bonuses": self.bonuses.state(),
            "judged_corrections": self.judged_corrections,
            "excluded_corrections": self.excluded_corrections,
        }

    def restore(self, state: State) -> None:
        """Take over what `state` returned."""
        self.accepted = {int(count): runs for count, runs in state["accepted"].items()}
        self.corrections.restore(state["corrections"])
        self.bonuses.restore(state["bonuses"])
        self.judged_corrections = state["judged_corrections"]
        self.excluded_corrections = state["excluded_corrections"]
