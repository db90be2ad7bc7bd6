"""All that is counted of the runs of one case; its size does not depend on how many there were."""

from collections.abc import Iterable

from specverify.certification.decoder_case import DecoderCase
from specverify.certification.positions import new_positions
from specverify.certification.round_ends import new_first_rounds
from specverify.sampling.tally import State, Tally
from specverify.sampling.token_scores import TokenScores


class CaseTally:
    """Tallies of one shard, or of several that were merged."""

    def __init__(self, case: DecoderCase) -> None:
        self.case = case
        self.tallies = tuple(Tally(tree) for tree in case.trees)
        self.first_rounds = new_first_rounds(case)
        self.positions = new_positions(case)
        self.scores = case.new_scores()
        self.recorded: TokenScores | None = None
        """Tokens held against the distributions that the subject says it drew them from."""
        self.rounding = 0.0
        """How far those may be rounded, relatively."""
        self.findings: dict[str, None] = {}
        """Remarks of the calls, each once, in order of appearance."""
        self.failure: str | None = None
        """What the subject failed with, after the runs that are counted here."""

    @property
    def runs(self) -> int:
        """Runs tallied."""
        return sum(tally.runs for tally in self.tallies)

    @property
    def tokens(self) -> int:
        """Tokens tallied."""
        return sum(tally.tokens for tally in self.tallies)

    def note(self, findings: Iterable[str]) -> None:
        """Add remarks of a call."""
        self.findings.update(dict.fromkeys(findings))

    def merge(self, other: "CaseTally") -> None:
        """Add the runs of another shard, of a higher number."""
        for tally, more in zip(self.tallies, other.tallies, strict=True):
            tally.merge(more)
        self.first_rounds.merge(other.first_rounds)
        self.positions.merge(other.positions)
        self.scores.merge(other.scores)
        if other.recorded is not None:
            self.recorded = self.recorded or self.case.new_scores()
            self.recorded.merge(other.recorded)
            self.rounding = max(self.rounding, other.rounding)
        self.note(other.findings)
        self.failure = self.failure or other.failure

    def state(self) -> State:
        """All of it, as plain arrays, numbers and lists."""
        return {
            "tallies": {str(i): tally.state() for i, tally in enumerate(self.tallies)},
            "first_rounds": self.first_rounds.state(),
            "positions": self.positions.state(),
            "scores": self.scores.state(),
            "recorded": None if self.recorded is None else self.recorded.state(),
            "rounding": self.rounding,
            "findings": dict.fromkeys(self.findings, True),
            "failure": self.failure,
        }

    @classmethod
    def restored(cls, case: DecoderCase, state: State) -> "CaseTally":
        """A tally from what `state` returned."""
        made = cls(case)
        for i, tally in enumerate(made.tallies):
            tally.restore(state["tallies"][str(i)])
        made.first_rounds.restore(state["first_rounds"])
        made.positions.restore(state["positions"])
        made.scores.restore(state["scores"])
        if state["recorded"] is not None:
            made.recorded = case.new_scores()
            made.recorded.restore(state["recorded"])
            made.rounding = state["rounding"]
        made.note(state["findings"])
        made.failure = state["failure"]
        return made
